"""One worker on the machine of a Dask worker: its supervisor, its link and its output.

The supervisor starts and ends the program, see ``worker.supervisor``. The other ends of the
program's link and output are here, so the messages between program and daemon do not pass through
the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import cast

import anyio
import msgspec

from aioflow._threads import in_thread
from aioflow.clock import SystemClock
from aioflow.executors.dask.messages import OUTPUT_WINDOW_BYTES, Kind
from aioflow.executors.dask.stream import Stream
from aioflow.model.states import Failure
from aioflow.processes import PROGRAM, describe_exit
from aioflow.processes.environment import MARK
from aioflow.processes.orphans import kill_marked, mark_limits
from aioflow.processes.process import OomCounter, own_words
from aioflow.worker.supervisor import (
    BEAT,
    KILL,
    SUPERVISOR_FD,
    ProgramEnd,
    ProgramStarted,
    SupervisorOrder,
)

__all__ = ("HostedWorker", "NotStarted")

SUPERVISOR = (sys.executable, "-P", "-m", "aioflow.worker.supervisor")

LINK_GRACE_SECONDS = 1.0
"""Grace period in which a program may exit by itself once its link has closed."""

OUTPUT_GRACE_SECONDS = 5.0
"""Time after which a dead program's output counts as complete, even if its pipe is still open."""

KILL_GRACE_SECONDS = 1.0
"""Time after which a supervisor that has not killed its program is killed itself."""

_CHUNK = 64 * 1024
_LAST_WORDS = 2_048
_BACKLOG_LIMIT = 4 * 1024 * 1024
"""Maximum bytes waiting for the daemon. Above it, no more is read from a program's link."""

_RESUME_SECONDS = 0.1
_UNASSIGNED = -1

_from_supervisor = msgspec.json.Decoder(ProgramStarted | ProgramEnd)


class NotStarted(Exception):
    """Raised if the program could not be started."""


class HostedWorker:
    """One worker. ``run`` owns it. The other methods are called in the same event loop.

    The worker may be started before it is needed. It has no number before ``assign``, and its
    output is held back until then.

    Args:
        stream: The stream that its frames and its output are sent on.
        mark: The mark of its program and of everything that it starts, see ``processes.orphans``.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        mark: str,
        environment: Mapping[str, str],
        contact_seconds: float,
        oom: OomCounter,
    ) -> None:
        self.log_nonce = secrets.token_hex(8)
        self._no = _UNASSIGNED
        self._stream = stream
        self._mark = mark
        self._environment = environment
        self._contact_seconds = contact_seconds
        self._oom = oom
        self._clock = SystemClock()
        self._heard_at = self._clock.monotonic_us()
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._link = _ProgramLink(stream)
        self._is_killed = False
        self._is_closing = False
        self._window = OUTPUT_WINDOW_BYTES
        self._window_opened = asyncio.Event()
        self._assigned = asyncio.Event()
        self._output_over = anyio.Event()
        self._last_words = b""

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def assign(self, worker_no: int) -> None:
        """Set the worker's number.

        The program sends nothing before the first command, which follows.
        """
        self._no = self._link.worker_no = worker_no
        self._assigned.set()

    def write(self, data: bytes) -> None:
        """Write to the link of the program. Never blocks."""
        self._link.write(data)

    def consumed(self, count: int) -> None:
        """Let the program print more, as the daemon has written ``count`` bytes to its logs."""
        self._window += count
        self._window_opened.set()

    def beat(self) -> None:
        """Pass on a sign of life of the daemon."""
        self._heard_at = self._clock.monotonic_us()
        self._tell(BEAT)

    def kill(self) -> None:
        """Kill the program and everything that it has started."""
        if not self._is_killed:
            self._is_killed = True
            self._tell(KILL)
            asyncio.get_running_loop().call_later(KILL_GRACE_SECONDS, self._kill_supervisor)

    def close(self) -> None:
        """Close the link, so that the program exits by itself. Kill it after a second."""
        self._link.close()
        asyncio.get_running_loop().call_later(LINK_GRACE_SECONDS, self.kill)

    def shut_down(self) -> None:
        """Kill the program because its daemon or Dask worker ends. Do not wait for its output."""
        self._is_closing = True
        self.kill()
        self._window_opened.set()
        self._assigned.set()

    def _tell(self, byte: bytes) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):  # the supervisor has ended, or hangs
                self._control.send(byte, socket.MSG_DONTWAIT)

    def _kill_supervisor(self) -> None:
        """Kill a supervisor that hangs. The kernel then kills its program."""
        if self._supervisor is not None and self._supervisor.returncode is None:
            self._supervisor.kill()

    # ── lifecycle ───────────────────────────────────────────────────────────────────────

    async def run(self, on_started: Callable[[int], None]) -> Failure:
        """Start the program, call ``on_started`` with its process id, and return how it ended.

        When this returns, the program and everything it has started are dead, and all it sent is in
        the stream.

        Raises:
            NotStarted: If the program could not be started.
        """
        with ExitStack() as stack:
            output = self._spawn(stack)
            try:
                await self._link.connect()
                async with anyio.create_task_group() as group:
                    group.start_soon(self._pump, output)
                    end = await self._follow(on_started)
                    await self._drain()
                    group.cancel_scope.cancel()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._reap()
        return self._failure(end)

    def _spawn(self, stack: ExitStack) -> int:
        """Start the supervisor and send its order. Return the reading end of the output."""
        with ExitStack() as theirs:
            self._control, control_end = _pair(stack, theirs)
            link, link_end = _pair(stack, theirs)
            self._link.sock = link
            output, output_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, output)
            theirs.callback(os.close, output_end)
            os.set_blocking(output_end, True)
            passed = control_end.fileno(), link_end.fileno(), output_end
            try:
                self._supervisor = subprocess.Popen(
                    SUPERVISOR,
                    stdin=subprocess.DEVNULL,
                    pass_fds=passed,
                    start_new_session=True,
                    env={
                        **self._environment,
                        SUPERVISOR_FD: str(control_end.fileno()),
                        MARK: self._mark,
                    },
                )
            except OSError as exc:
                raise NotStarted(str(exc)) from exc
            order = SupervisorOrder(
                program=PROGRAM,
                environment={
                    **self._environment,
                    "AIOFLOW_LINK_FD": str(link_end.fileno()),
                    "AIOFLOW_LOG_NONCE": self.log_nonce,
                    MARK: self._mark,
                },
                descriptors=(link_end.fileno(),),
                output=output_end,
                limits=((resource.RLIMIT_CORE, 0, 0), *mark_limits(self._mark)),
                contact_seconds=self._contact_seconds,
            )
            self._control.sendall(msgspec.json.encode(order) + b"\n")
            self._control.setblocking(False)
        return output

    async def _follow(self, on_started: Callable[[int], None]) -> ProgramEnd | None:
        """Follow the supervisor until its program has ended.

        Return ``None`` if the supervisor died.
        """
        assert self._control is not None  # noqa: S101 - set by ``_spawn``
        data = b""
        while True:
            await anyio.wait_readable(self._control)
            try:
                piece = self._control.recv(4096)
            except OSError:
                return None
            if not piece:
                return None
            *lines, data = (data + piece).split(b"\n")
            for line in lines:
                message = _from_supervisor.decode(line)
                if isinstance(message, ProgramEnd):
                    return message
                on_started(message.pid)

    async def _drain(self) -> None:
        """Wait for the remaining messages and output of a program that has died."""
        with anyio.move_on_after(LINK_GRACE_SECONDS):
            await self._link.closed.wait()
        while not self._output_over.is_set():
            with anyio.move_on_after(OUTPUT_GRACE_SECONDS):
                await self._output_over.wait()
            # The daemon may read the output slowly. Wait for it, unless the daemon is dead or this
            # Dask worker ends.
            silent_us = self._clock.monotonic_us() - self._heard_at
            if self._window > 0 or self._is_closing or silent_us > self._contact_seconds * 1e6:
                return

    async def _reap(self) -> None:
        """Wait for the end of the supervisor, and kill all processes that it could not kill."""
        self._tell(KILL)  # unless it has ended already: this Dask worker may be ending abruptly
        await self._link.abort()
        supervisor, self._control = self._supervisor, None
        if supervisor is None:
            return
        handle = os.pidfd_open(supervisor.pid)
        try:
            with anyio.move_on_after(KILL_GRACE_SECONDS):
                await anyio.wait_readable(handle)
            supervisor.kill()
            await anyio.wait_readable(handle)
        finally:
            os.close(handle)
        if supervisor.wait() != 0:
            await in_thread(partial(kill_marked, self._mark))

    async def _pump(self, output: int) -> None:
        """Pass on the output. Read it no faster than the daemon writes it to its logs."""
        try:
            await self._assigned.wait()
            while True:
                while self._window <= 0 and not self._is_closing:
                    self._window_opened.clear()
                    await self._window_opened.wait()
                await anyio.wait_readable(output)
                data = os.read(output, max(1, min(_CHUNK, self._window)))
                if not data:
                    return
                self._window -= len(data)
                self._last_words = (self._last_words + data)[-_LAST_WORDS:]
                self._stream.put(Kind.OUTPUT, self._no, data)
        finally:
            self._output_over.set()

    def _failure(self, end: ProgramEnd | None) -> Failure:
        if end is None:
            return _killed("its supervisor died, and the kernel killed it")
        if end.returncode is None:
            raise NotStarted(end.error)
        if end.cause == "contact":
            seconds = self._contact_seconds
            return _killed(f"it heard nothing of the daemon for {seconds:g} s, and ended itself")
        if end.cause in {"agent", "signal"} or self._is_closing:
            return _killed("its Dask worker ended")
        return describe_exit(
            end.returncode,
            out_of_memory=not end.cause and end.returncode == -9 and self._oom.claim(),
            last_words=own_words(self._last_words),
        )


def _pair(ours: ExitStack, theirs: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Return our end and their end of a connection. Each is closed by its stack."""
    end, other_end = socket.socketpair()
    ours.callback(end.close)
    theirs.callback(other_end.close)
    return end, other_end


def _killed(what: str) -> Failure:
    return Failure(type="Killed", message=f"the worker was killed: {what}", reason="killed")


class _ProgramLink(asyncio.Protocol):
    """The agent's end of a program's link. It passes bytes on in both directions, unread.

    Attributes:
        worker_no: Number of its worker.
        sock: The socket, set before ``connect``.
        closed: Set when the program has closed its end.
    """

    def __init__(self, stream: Stream) -> None:
        self.worker_no = _UNASSIGNED
        self.sock: socket.socket | None = None
        self.closed = anyio.Event()
        self._stream = stream
        self._transport: asyncio.Transport | None = None

    async def connect(self) -> None:
        """Start to receive."""
        assert self.sock is not None  # noqa: S101 - set by the caller
        self.sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self, sock=self.sock)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def abort(self) -> None:
        """Close the socket and discard the unsent bytes."""
        if self._transport is not None:
            self._transport.abort()
            await self.closed.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        # The transport of a socket can read and write, although uvloop's does not derive from this
        # class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self._stream.put(Kind.FRAME, self.worker_no, data)
        if self._stream.backlog > _BACKLOG_LIMIT and self._transport is not None:
            self._transport.pause_reading()
            self._resume_later()

    def _resume_later(self) -> None:
        asyncio.get_running_loop().call_later(_RESUME_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._stream.backlog > _BACKLOG_LIMIT:
            self._resume_later()
        else:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self.closed.set()
