"""The link between daemon and child: frames of messages over a socketpair.

A frame is a 4-byte little-endian length and a msgpack array of tagged messages
(``aioflow.protocol.reports``). Messages are sent in batches. ``frames`` splits a batch, so that no
number of small messages exceeds the limit of a frame. A child without an event loop uses the
blocking link.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Generic, TypeVar, cast

import msgspec

from aioflow.errors import LinkClosed, Unserializable
from aioflow.protocol.commands import Command
from aioflow.protocol.reports import Report
from aioflow.worker.query.messages import UNDECODABLE

__all__ = (
    "FRAME_LIMIT",
    "FRAME_MESSAGES",
    "MESSAGE_LIMIT",
    "BlockingLink",
    "Link",
    "child_link",
    "complete_frames",
    "daemon_link",
    "frames",
    "packed",
)

FRAME_LIMIT = 128 * 1024 * 1024
"""Maximum bytes of a frame. A longer frame closes the link: the other end is broken or hostile."""

FRAME_MESSAGES = 1_000
"""Number of messages at which a frame is full."""
_FRAME_BYTES = 16 * 1024 * 1024
"""Number of bytes at which a frame is full, including its last message."""

MESSAGE_LIMIT = FRAME_LIMIT - _FRAME_BYTES - 1024
"""Maximum bytes of one message. Such a message fits into any frame that is not full."""

_HEADER = struct.Struct("<I")
_ARRAY = struct.Struct(">BI")
_ARRAY_32 = 0xDD
_START = _HEADER.size + _ARRAY.size
_encoder = msgspec.msgpack.Encoder()


def packed(message: object) -> msgspec.Raw:
    """Encode one message, to be sent later in a batch.

    Use it for messages with content of user code. An encoding error then fails only this message,
    and not the whole batch.

    Raises:
        Unserializable: If the message cannot be encoded, or has more than ``MESSAGE_LIMIT`` bytes.
    """
    name = type(message).__name__
    try:
        data = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError) as exc:
        raise Unserializable(name, "value", str(exc)) from exc
    if len(data) > MESSAGE_LIMIT:
        why = f"{len(data)} bytes, {MESSAGE_LIMIT} are allowed"
        raise Unserializable(name, "value", why)
    return msgspec.Raw(data)


def frames(messages: Sequence[object]) -> Iterator[bytearray]:
    """Split messages into frames. An empty batch becomes one empty frame."""
    frame, count = bytearray(_START), 0
    for message in messages:
        _encoder.encode_into(message, frame, -1)
        count += 1
        if count >= FRAME_MESSAGES or len(frame) >= _FRAME_BYTES:
            yield _closed(frame, count)
            frame, count = bytearray(_START), 0
    if count or not messages:
        yield _closed(frame, count)


def _closed(frame: bytearray, count: int) -> bytearray:
    _HEADER.pack_into(frame, 0, len(frame) - _HEADER.size)
    _ARRAY.pack_into(frame, _HEADER.size, _ARRAY_32, count)
    return frame


def _checked_length(header: bytes | bytearray) -> int:
    length: int = _HEADER.unpack_from(header)[0]
    if length > FRAME_LIMIT:
        raise LinkClosed(f"a frame of {length} bytes is longer than {FRAME_LIMIT}")
    return length


def complete_frames(buffer: bytearray) -> list[bytes]:
    """Remove the complete frames from the buffer and return them, without their lengths.

    Raises:
        LinkClosed: If a frame is too long.
    """
    frames, start, size = [], 0, len(buffer)
    while size - start >= _HEADER.size:
        length = _checked_length(buffer[start : start + _HEADER.size])
        end = start + _HEADER.size + length
        if end > size:
            break
        frames.append(bytes(buffer[start + _HEADER.size : end]))
        start = end
    del buffer[:start]
    return frames


@cache
def _command_decoder() -> msgspec.msgpack.Decoder[list[Command]]:
    """Return the decoder of commands.

    It is created on first use, because its creation takes as long as parsing a small DAG file.
    """
    return msgspec.msgpack.Decoder(list[Command])


class BlockingLink:
    """A child's end of the link without an event loop, in slot workers, parsers, callback workers.

    One thread may call ``send`` while another is in ``receive``.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, messages: Sequence[object]) -> None:
        """Send messages in as few frames as possible. Blocks while the socket's buffer is full.

        Raises:
            LinkClosed: If the daemon has closed the link or died.
        """
        try:
            for frame in frames(messages):
                self._sock.sendall(frame)
        except OSError as exc:
            raise LinkClosed(str(exc)) from exc

    def receive(self) -> list[Command]:
        """Return the commands of the next frame. Blocks until the frame is complete.

        Raises:
            LinkClosed: If the daemon has closed the link or died.
        """
        length = _checked_length(self._exactly(_HEADER.size))
        return _command_decoder().decode(self._exactly(length))

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, have = memoryview(data), 0
        while have < size:
            try:
                count = self._sock.recv_into(view[have:])
            except OSError as exc:
                raise LinkClosed(str(exc)) from exc
            if count == 0:
                raise LinkClosed("the daemon closed the link")
            have += count
        return data


Incoming = TypeVar("Incoming")


class Link(asyncio.Protocol, Generic[Incoming]):
    """One end of a link on an event loop. Created by ``daemon_link`` and ``child_link``.

    The loop calls the transport's callback, which passes the messages of all complete frames
    together to ``on_messages``, without a task in between. When the other end closes the link or
    sends something invalid, ``on_closed`` is called once, with the reason. After that, no message
    follows.
    """

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[list[Incoming]],
        on_messages: Callable[[list[Incoming]], None],
        on_closed: Callable[[str], None],
    ) -> None:
        self._decoder = decoder
        self._on_messages = on_messages
        self._on_closed = on_closed
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def is_open(self) -> bool:
        """Whether the socket is still open, so that ``send`` has an effect."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, messages: Sequence[object]) -> None:
        """Send messages in as few frames as possible. Never blocks.

        If the link is closed, this does nothing and does not raise, because ``on_closed`` reports
        the end. The callee of ``on_closed`` knows which of its messages were never answered.
        """
        if self._transport is not None and not self._transport.is_closing():
            for frame in frames(messages):
                self._transport.write(frame)

    async def drain(self) -> None:
        """Wait until most of the sent bytes have left the write buffer."""
        await self._writable.wait()

    def close(self) -> None:
        """Close this end. ``on_closed`` is still called."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        # The transport of a socket can always write, although uvloop's does not derive from this
        # class.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._buffer += data
        messages: list[Incoming] = []
        problem = None
        try:
            for frame in complete_frames(self._buffer):
                messages += self._decoder.decode(frame)
        except (LinkClosed, *UNDECODABLE) as exc:
            problem = str(exc) or type(exc).__name__
        if messages:
            self._on_messages(messages)
        if problem is not None:
            self._end(problem)

    def pause_writing(self) -> None:
        """Called by the loop."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by the loop."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._end(str(exc) if exc else "the other end closed the link")

    def _end(self, reason: str) -> None:
        self._writable.set()
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.close()
            self._on_closed(reason)


async def daemon_link(
    sock: socket.socket,
    on_messages: Callable[[list[Report]], None],
    on_closed: Callable[[str], None],
) -> Link[Report]:
    """Return the daemon's end, which receives reports."""
    return await _connect(sock, msgspec.msgpack.Decoder(list[Report]), on_messages, on_closed)


async def child_link(
    sock: socket.socket,
    on_messages: Callable[[list[Command]], None],
    on_closed: Callable[[str], None],
) -> Link[Command]:
    """Return a child's end on an event loop, which receives commands."""
    return await _connect(sock, msgspec.msgpack.Decoder(list[Command]), on_messages, on_closed)


async def _connect(
    sock: socket.socket,
    decoder: msgspec.msgpack.Decoder[list[Incoming]],
    on_messages: Callable[[list[Incoming]], None],
    on_closed: Callable[[str], None],
) -> Link[Incoming]:
    sock.setblocking(False)
    link = Link(decoder, on_messages, on_closed)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=sock)
    return link
