"""The daemon's end of the link to the agent in one Dask worker.

The link is opened when the first pilot on a Dask worker announces itself. If its connection breaks,
or the agent is silent, the daemon dials again, and the stream continues where it was. The agent is
dead if its port refuses connections, or if another agent answers. Otherwise it is *lost*: it may
have been stopped or cut off, and its workers may be running until they end themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Protocol
from urllib.parse import urlsplit

import anyio
import msgspec

from aioflow.clock import Clock
from aioflow.executors.dask.messages import LINK_OP, Kind, LinkHello, LinkWelcome
from aioflow.executors.dask.stream import Comm, Stream

__all__ = ("AgentLink", "Dial", "LinkOwner")

BEAT_SECONDS = 1.5
LOST_BEATS = 3
"""Number of unanswered beats after which an agent is lost: at most 6 s after it was stopped."""

DIAL_SECONDS = 3.0
REDIAL_SECONDS = 0.5
PORT_SECONDS = 0.1
"""Interval between two checks of a port while the port is dialled."""

DEATH_SECONDS = 0.5
"""Time within which the supervisors of a dead Dask worker have killed its processes."""

_link_numbers = itertools.count(1)
"""Numbers of links, unique in this process, and so in one epoch."""

Dial = Callable[[str], Awaitable[Comm]]
"""Opens a connection to a Dask worker's address. Raises ``OSError``."""


class LinkOwner(Protocol):
    """The part of the backend that an ``AgentLink`` uses."""

    def on_message(self, link: AgentLink, kind: int, worker_no: int, data: bytes) -> None:
        """Handle a message that has arrived."""

    def on_contact(self, link: AgentLink, why: str) -> None:
        """Handle the loss of an agent, with the reason; or its return if ``why`` is empty."""

    def on_dying(self, link: AgentLink) -> None:
        """Handle the death of an agent, whose workers may still be dying."""

    def on_death(self, link: AgentLink, why: str) -> None:
        """Handle the death of an agent and all its workers."""

    def on_unused(self, link: AgentLink) -> None:
        """Handle a link that broke while nothing ran there.

        The Dask worker may have left for good.
        """

    def has_workers(self, link: AgentLink) -> bool:
        """Return whether the link is needed."""


class AgentLink:
    """The link to one agent.

    Args:
        hello: The first message. Its ``link_no`` and ``received`` are replaced.
        patience_seconds: An agent that is lost for longer counts as dead.

    Attributes:
        is_running: Whether ``run`` is running. It ends when the agent is dead, or when the
            connection breaks while nothing runs there.
        is_lost: Whether contact with the agent is lost at the moment.
    """

    def __init__(
        self,
        address: str,
        hello: LinkHello,
        owner: LinkOwner,
        dial: Dial,
        clock: Clock,
        patience_seconds: float,
    ) -> None:
        self.address = address
        self.is_running = False
        self.is_lost = False
        self._hello = msgspec.structs.replace(hello, link_no=next(_link_numbers))
        self._owner = owner
        self._dial = dial
        self._clock = clock
        self._patience_us = round(patience_seconds * 1e6)
        self._lost_at = 0
        self._beats = 0
        self._stream = Stream(self._deliver, self._on_batch)

    def put(self, kind: Kind, worker_no: int, data: bytes = b"") -> None:
        """Send a message. Never blocks."""
        self._stream.put(kind, worker_no, data)

    @property
    def backlog(self) -> int:
        """Number of bytes that the agent has not received."""
        return self._stream.backlog

    async def flushed(self) -> None:
        """Wait until the agent has received all messages."""
        await self._stream.flushed()

    async def run(self) -> None:
        """Keep the link until its agent is dead, or until it breaks while nothing runs there."""
        self.is_running = True
        try:
            why = await self._keep()
        finally:
            self.is_running = False
        if why:
            self._owner.on_death(self, why)
        else:
            self._owner.on_unused(self)

    async def _keep(self) -> str:
        """Return why the agent is dead; empty if the link is merely not needed any more."""
        while True:
            try:
                if not await self._connect_once():
                    return "its Dask worker was restarted"
                trouble = ""
            except OSError as exc:
                trouble = f"its Dask worker at {self.address} does not answer: {exc}"
            if await self._is_refused():
                self._owner.on_dying(self)
                await self._clock.sleep(DEATH_SECONDS)
                return "its Dask worker died"
            if trouble:
                self._set_lost(trouble)
            if not self._owner.has_workers(self):
                return ""
            now = self._clock.monotonic_us()
            if self.is_lost and now - self._lost_at >= self._patience_us:
                return "its Dask worker did not answer for too long"
            await self._clock.sleep(REDIAL_SECONDS if self.is_lost else 0)

    async def _connect_once(self) -> bool:
        """Serve one connection until it breaks. Return false if it leads to another agent.

        Raises:
            OSError: If there is no connection.
        """
        comm, welcome = await self._open()
        if welcome.refused:
            comm.abort()
            return False
        self._set_lost("")
        async with anyio.create_task_group() as group:
            group.start_soon(self._beat, comm)
            try:
                await self._stream.run(comm, welcome.received)
            except ValueError:
                return False  # this stream belongs to another agent
            finally:
                group.cancel_scope.cancel()
        return True

    async def _open(self) -> tuple[Comm, LinkWelcome]:
        """Dial the agent. Return the connection and the agent's answer.

        Raises:
            OSError: If the agent does not answer.
        """
        with anyio.fail_after(2 * DIAL_SECONDS):
            comm = await self._reach()
            is_open = False
            try:
                hello = msgspec.structs.replace(self._hello, received=self._stream.received)
                data = msgspec.msgpack.encode(hello)
                await comm.write({"op": LINK_OP, "reply": False, "hello": data})
                answer = await comm.read()
                is_open = isinstance(answer, bytes)
            finally:
                if not is_open:
                    comm.abort()
        if not isinstance(answer, bytes):
            return comm, LinkWelcome(refused="it has no agent")
        return comm, msgspec.msgpack.decode(answer, type=LinkWelcome)

    async def _reach(self) -> Comm:
        """Dial the agent, and stop if no process listens at its port. Dask would dial on.

        When a process is killed, the kernel may close its connections before or after its port.

        Raises:
            OSError: If there is no connection.
        """
        comm, problem = None, OSError("no process listens there")
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._await_refusal, group.cancel_scope)
                try:
                    comm = await self._dial(self.address)
                except OSError as exc:
                    problem = exc
                group.cancel_scope.cancel()
        except BaseException:
            if comm is not None:
                comm.abort()
            raise
        if comm is None:
            raise problem
        return comm

    async def _await_refusal(self, dialling: anyio.CancelScope) -> None:
        while True:
            await self._clock.sleep(PORT_SECONDS)
            if await self._is_refused():
                dialling.cancel()
                return

    async def _beat(self, comm: Comm) -> None:
        """Request signs of life. If the agent sends none, abort the connection.

        Silence is counted in beats instead of clock time. So a daemon that was itself stopped for a
        while does not blame the agent. After the abort the daemon sends no further signs of life
        itself, so the workers end themselves in time.
        """
        missed = 0
        while missed < LOST_BEATS:
            self._beats += 1
            self._stream.beat(self._beats)
            await self._clock.sleep(BEAT_SECONDS)
            missed = 0 if self._stream.echoed == self._beats else missed + 1
        comm.abort()
        seconds = BEAT_SECONDS * LOST_BEATS
        self._set_lost(f"its Dask worker at {self.address} has not answered for {seconds:g} s")

    async def _is_refused(self) -> bool:
        """Return whether no process listens at the agent's address."""
        parts = urlsplit(self.address)
        try:
            with anyio.fail_after(DIAL_SECONDS):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return False

    def _set_lost(self, why: str) -> None:
        if bool(why) == self.is_lost:
            return
        self.is_lost = bool(why)
        self._lost_at = self._clock.monotonic_us()
        self._owner.on_contact(self, why)

    def _deliver(self, kind: int, worker_no: int, data: bytes) -> None:
        self._owner.on_message(self, kind, worker_no, data)

    def _on_batch(self) -> None:
        """Do nothing. Signs of life are counted by their echoes."""
