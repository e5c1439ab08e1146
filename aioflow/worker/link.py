"""The link between daemon and child on an event loop: frames of messages over a socketpair."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

import msgspec

from aioflow.errors import LinkClosed
from aioflow.protocol.commands import Order
from aioflow.protocol.reports import Report
from aioflow.worker.frames import complete_frames, frames

__all__ = ("Link", "child_link", "daemon_link")

Incoming = TypeVar("Incoming")


class Link(asyncio.Protocol, Generic[Incoming]):
    """One end of a link on an event loop. Created by ``daemon_link`` and ``child_link``.

    Messages are passed to ``on_messages`` in the loop's own callback, those of all complete frames
    together, without a task in between. ``on_closed`` is called once, with the reason, when the
    other end closes the link or sends something invalid; no message follows.
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
        """Whether ``send`` still reaches an open socket."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, messages: Sequence[object]) -> None:
        """Send messages in as few frames as possible. Never blocks; does nothing once closed.

        It does not raise then, because ``on_closed`` reports the end; its receiver knows which
        messages were sent and never answered.
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
        # A socket's transport always is one, though uvloop's does not derive from the class.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._buffer += data
        messages: list[Incoming] = []
        problem = None
        try:
            for frame in complete_frames(self._buffer):
                messages += self._decoder.decode(frame)
        except (LinkClosed, msgspec.DecodeError) as exc:
            problem = str(exc)
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
    on_messages: Callable[[list[Order]], None],
    on_closed: Callable[[str], None],
) -> Link[Order]:
    """Return a child's end on an event loop, which receives commands."""
    return await _connect(sock, msgspec.msgpack.Decoder(list[Order]), on_messages, on_closed)


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
