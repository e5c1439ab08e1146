"""A stream of messages that survives its connection: numbered, acknowledged, resent.

A connection between hosts may break while both ends continue. The workers behind the connection can
continue only if no message is lost or duplicated, since the messages carry the bytes of other
streams. So each end stores a message until the other end has acknowledged it. After a reconnection,
both ends exchange the number of messages that they have received, and resend the missing ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio
import msgspec

from aioflow.executors.dask.messages import Batch, Message

__all__ = ("Comm", "Stream")

_BATCH_MESSAGES = 1_000
_BATCH_BYTES = 1024 * 1024
"""Size at which a batch is full, including its last message."""

_ACKNOWLEDGE_MESSAGES = 64
_ACKNOWLEDGE_BYTES = 256 * 1024
"""Number of unacknowledged messages or bytes at which an end that sends nothing acknowledges."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Batch).decode


class Comm(Protocol):
    """A Dask connection, see ``distributed.comm.Comm``. Its errors are ``OSError``."""

    async def read(self) -> object:
        """Return the next message."""

    async def write(self, msg: object) -> object:
        """Send a message."""

    def abort(self) -> None:
        """Close the connection at once."""


class Stream:
    """One end of a stream.

    Args:
        deliver: Called with each message, in order and exactly once. It must not raise.
        on_contact: Called for each batch that arrives.

    Attributes:
        received: Number of messages received.
        echoed: The last ``beat`` that the other end repeated.
    """

    def __init__(
        self, deliver: Callable[[int, int, bytes], None], on_contact: Callable[[], None]
    ) -> None:
        self.received = 0
        self.echoed = 0
        self._deliver = deliver
        self._on_contact = on_contact
        self._first = 0  # number of the first message of ``_sent``
        self._sent: deque[Message] = deque()
        self._unsent: deque[Message] = deque()
        self._bytes = 0
        self._acknowledged = 0
        self._unacknowledged_bytes = 0
        self._beat = self._echo = 0
        self._is_due = False
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, kind: int, worker_no: int, data: bytes = b"") -> None:
        """Queue a message, to be sent when there is a connection. Never blocks."""
        self._unsent.append((kind, worker_no, data))
        self._bytes += len(data)
        self._empty.clear()
        self._wake.set()

    def beat(self, number: int) -> None:
        """Request a sign of life from the other end, which sets ``echoed`` to ``number``."""
        self._beat = number
        self._wake.set()

    @property
    def backlog(self) -> int:
        """Number of bytes that the other end has not acknowledged."""
        return self._bytes

    async def flushed(self) -> None:
        """Wait until the other end has acknowledged everything."""
        self.beat(1)  # the answer is an immediate acknowledgement
        await self._empty.wait()

    async def run(self, comm: Comm, received: int) -> None:
        """Exchange messages over a connection until it breaks.

        Args:
            received: Number of messages that the other end has received.

        Raises:
            ValueError: If ``received`` is a number that was never sent, or is no longer stored.
        """
        self._resume(received)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._write, comm, group.cancel_scope)
                await self._read(comm)
                group.cancel_scope.cancel()
        finally:
            comm.abort()

    # ── sending ─────────────────────────────────────────────────────────────────────────

    def _resume(self, received: int) -> None:
        if not self._first <= received <= self._first + len(self._sent):
            raise ValueError(f"message {received} was not sent, or is no longer stored")
        self._forget(received)
        self._unsent.extendleft(reversed(self._sent))
        self._sent.clear()
        self._echo = 0
        self._is_due = True
        self._wake.set()

    async def _write(self, comm: Comm, scope: anyio.CancelScope) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while (batch := self._next_batch()) is not None:
                    await comm.write(batch)
        except OSError:
            scope.cancel()

    def _next_batch(self) -> bytes | None:
        """Return the next batch to send, encoded; ``None`` if there is nothing to send."""
        if not (self._unsent or self._beat or self._echo or self._is_due):
            return None
        first, size = self._first + len(self._sent), 0
        messages: list[Message] = []
        while self._unsent and len(messages) < _BATCH_MESSAGES and size < _BATCH_BYTES:
            messages.append(self._unsent.popleft())
            size += len(messages[-1][2])
        self._sent.extend(messages)
        batch = Batch(first, self.received, self._beat, self._echo, tuple(messages))
        self._beat = self._echo = 0
        self._acknowledged, self._unacknowledged_bytes, self._is_due = self.received, 0, False
        return _encode(batch)

    def _forget(self, received: int) -> None:
        """Drop the messages that the other end has received."""
        while self._first < received and self._sent:
            self._bytes -= len(self._sent.popleft()[2])
            self._first += 1
        if not self._sent and not self._unsent:
            self._empty.set()

    # ── receiving ───────────────────────────────────────────────────────────────────────

    async def _read(self, comm: Comm) -> None:
        try:
            while True:
                data = await comm.read()
                if not isinstance(data, bytes | bytearray | memoryview):
                    return
                batch = _decode(data)
                if batch.first > self.received:
                    return  # a message is missing: a new connection resumes from here
                self._take(batch)
        except (OSError, msgspec.DecodeError):
            return

    def _take(self, batch: Batch) -> None:
        self._forget(batch.received)
        self._on_contact()
        if batch.echo:
            self.echoed = batch.echo
        if batch.beat:
            self._echo = batch.beat
            self._wake.set()
        for kind, worker_no, data in batch.messages[self.received - batch.first :]:
            self.received += 1
            self._unacknowledged_bytes += len(data)
            self._deliver(kind, worker_no, data)
        waiting = self.received - self._acknowledged
        if waiting >= _ACKNOWLEDGE_MESSAGES or self._unacknowledged_bytes >= _ACKNOWLEDGE_BYTES:
            self._is_due = True
            self._wake.set()
