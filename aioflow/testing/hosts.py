"""Hosts without processes: their real code runs on the node's event loop, with real frames.

The executors and the triggerer on the daemon's side, the hosts of coroutines and triggers on the
other side, and every message in between are real; the socket and the process are not. Because
several hosts share one process, ``print`` is routed to the log of the try that prints.
"""

from __future__ import annotations

import asyncio
import contextvars
import io
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol, TextIO, cast

import anyio
import msgspec

from aioflow.author.callbacks import Notification
from aioflow.model.states import Failure
from aioflow.protocol.commands import Command, Hello, Ping, Reply, StartTask
from aioflow.protocol.reports import Pong, Report
from aioflow.testing.fake_time import HostScope, host_scope
from aioflow.testing.function_bodies import BodyHost, CallingHost
from aioflow.worker.code.loader import CodeCache
from aioflow.worker.coroutines import CoroutineHost
from aioflow.worker.crash_recorder import NO_OWNER, CrashRecorder
from aioflow.worker.link import Link, frames
from aioflow.worker.shared_host import ABANDONED_LIMIT, ReportBuffer
from aioflow.worker.triggerer import TriggerHost

__all__ = (
    "ForwardedOutput",
    "InlineChildren",
    "process_streams",
    "streams_are_shared",
)


class ForwardedOutput(io.TextIOBase):
    """A stream that passes written text to a function.

    Args:
        take: Called with each written text.
    """

    def __init__(self, take: Callable[[str], object]) -> None:
        self._take = take

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._take(text)
        return len(text)


class _SharedStream(ForwardedOutput):
    """A replacement for a standard stream that writes to the stream of the current host."""

    def __init__(self, real: TextIO, index: int) -> None:
        super().__init__(self._give)
        self.real = real
        self._index = index

    def _give(self, text: str) -> None:
        home = host_scope.get()
        mine = None if home is None else home.streams
        (self.real if mine is None else mine[self._index]).write(text)

    def fileno(self) -> int:
        return self.real.fileno()

    def flush(self) -> None:
        self.real.flush()


def process_streams() -> tuple[TextIO, TextIO]:
    """Return streams that write to the process's standard streams, looked up at each write."""

    def to(name: str) -> TextIO:
        def write(text: str) -> None:
            stream = getattr(sys, name)
            (stream.real if isinstance(stream, _SharedStream) else stream).write(text)

        return ForwardedOutput(write)  # type: ignore[return-value]

    return to("stdout"), to("stderr")


@contextmanager
def streams_are_shared() -> Iterator[None]:
    """Route the output of each host to its own streams, within the block."""
    before = sys.stdout, sys.stderr
    sys.stdout = _SharedStream(before[0], 0)
    sys.stderr = _SharedStream(before[1], 1)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


_HEADER_BYTES = 4

_commands = msgspec.msgpack.Decoder(list[Command])
_reports = msgspec.msgpack.Decoder(list[Report])


class _Role(Protocol):
    def handle(self, command: Command) -> None: ...


class InlineChildren:
    """A substitute for ``Children``, whose children run on the event loop of the node."""

    def __init__(
        self, code_cache: CodeCache, on_notification: Callable[[Notification], None]
    ) -> None:
        self._code_cache = code_cache
        self._on_notification = on_notification

    @asynccontextmanager
    async def child(
        self,
        role: str,
        *,
        on_reports: Callable[[list[Report]], None],
        on_output: Callable[[bytes], Awaitable[None]],
        **_: object,
    ) -> AsyncIterator[InlineChild]:
        """See ``Children``."""
        child = InlineChild(self._code_cache, on_reports, self._on_notification)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(child.pump, on_output)
                yield child
                child.kill()
                await child.output_over()
                group.cancel_scope.cancel()
        finally:
            child.kill()

    async def wait_for_headroom(self) -> None:
        """See ``Children``. Returns at once, since no process is started."""


class _InlineReportBuffer(ReportBuffer):
    """A report buffer that kills the simulated child where the real one ends the process."""

    def __init__(self, child: InlineChild) -> None:
        super().__init__()
        self._child = child

    def exit_if_abandoned(self, abandoned_count: int) -> None:
        if abandoned_count >= ABANDONED_LIMIT:
            self._child.kill()


class InlineChild:
    """See ``Child``."""

    pid = 0
    log_nonce = "inline"

    def __init__(
        self,
        code_cache: CodeCache,
        on_reports: Callable[[list[Report]], None],
        on_notification: Callable[[Notification], None],
    ) -> None:
        self._code_cache = code_cache
        self._on_notification = on_notification
        self._on_reports = on_reports
        self._loop = asyncio.get_running_loop()
        self._host_scope = HostScope()
        self._context = contextvars.copy_context()
        self._context.run(host_scope.set, self._host_scope)
        self._role: _Role | None = None
        self._report_buffer: _InlineReportBuffer | None = None
        self._is_dead = False
        self._over = asyncio.Event()
        self._printed: deque[bytes] = deque()
        self._has_printed = asyncio.Event()
        self._all_is_handed_on = asyncio.Event()
        self._all_is_handed_on.set()

    # ── the daemon's side ───────────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """See ``Child``."""
        return not self._is_dead

    def send(self, messages: Sequence[object]) -> None:
        """See ``Child``."""
        if not self._is_dead:
            for frame in frames(messages):
                commands = bytes(frame[_HEADER_BYTES:])
                self._loop.call_soon(self._handle_all, commands, context=self._context)

    def kill(self) -> None:
        """End everything in the child: cancel its coroutines, and end its paused bodies."""
        if self._is_dead:
            return
        self._is_dead = True
        if isinstance(self._role, BodyHost | CallingHost):
            self._role.kill()
        for task in self._host_scope.tasks:
            task.cancel()
        self._over.set()

    dismiss = kill

    async def ended(self) -> Failure:
        """See ``Child``."""
        await self._over.wait()
        return Failure(type="Killed", message="the process was killed", reason="killed")

    def memory_bytes(self) -> int:
        """See ``Child``."""
        return 0

    def loop_seconds(self) -> float:
        """See ``Child``."""
        return 0.0

    def culprit(self) -> int:
        """See ``Child``."""
        return NO_OWNER

    async def pump(self, on_output: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass the child's output to ``on_output`` until cancelled."""
        while True:
            while self._printed:
                await on_output(self._printed.popleft())
            self._all_is_handed_on.set()
            self._has_printed.clear()
            await self._has_printed.wait()

    async def output_over(self) -> None:
        """See ``Child``."""
        await self._all_is_handed_on.wait()

    # ── the child's side, which sends through ``_Link`` ─────────────────────────────────

    def on_data(self, frame: bytes) -> None:
        """Deliver a frame that the child sends."""
        if not self._is_dead:
            self._loop.call_soon(self._on_data, frame, context=contextvars.Context())

    def _on_data(self, frame: bytes) -> None:
        if not self._is_dead:
            self._on_reports(_reports.decode(frame))

    def _handle_all(self, commands: bytes) -> None:
        if self._is_dead:
            return
        for command in _commands.decode(commands):
            self._handle(command)

    def _handle(self, command: Command) -> None:
        if isinstance(command, Hello):
            self._begin(command)
            return
        assert self._report_buffer is not None  # noqa: S101 - set by the first command, a ``Hello``
        assert self._role is not None  # noqa: S101
        match command:
            case Reply():
                self._report_buffer.handle_reply(command)
            case Ping():
                self._report_buffer.report(Pong())
            case _:
                self._role.handle(command)

    def _begin(self, hello: Hello) -> None:
        report_buffer = self._report_buffer = _InlineReportBuffer(self)
        report_buffer.connect(cast("Link[Command]", _Link(self)))
        if hello.role == "slot":
            own = ForwardedOutput(self._print), ForwardedOutput(self._print)
            self._host_scope.streams = cast(Any, own)
            self._role = BodyHost(report_buffer, hello, self._code_cache, self._announce)
            return
        if hello.role == "callbacks":
            self._host_scope.streams = cast(
                Any, (ForwardedOutput(self._print), ForwardedOutput(self._print))
            )
            self._role = CallingHost(
                report_buffer, self._code_cache, self._mark, self._on_notification
            )
            return
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = process_streams()
        try:
            make = CoroutineHost if hello.role == "async" else TriggerHost
            self._role = make(report_buffer, CrashRecorder(), hello, self._code_cache)
            self._host_scope.streams = sys.stdout, sys.stderr
        finally:
            sys.stdout, sys.stderr = before

    def _announce(self, start: StartTask) -> None:
        self._mark(start.task_no, start.start_no)

    def _mark(self, number: int, start_no: int = 0) -> None:
        self._put(b"\x1e%b %d %d\n" % (self.log_nonce.encode(), number, start_no))

    def _print(self, text: str) -> None:
        self._put(text.encode("utf-8", "backslashreplace"))

    def _put(self, data: bytes) -> None:
        self._printed.append(data)
        self._loop.call_soon_threadsafe(self._note_output)

    def _note_output(self) -> None:
        self._all_is_handed_on.clear()
        self._has_printed.set()


class _Link:
    """The link through which a report buffer sends."""

    def __init__(self, child: InlineChild) -> None:
        self._child = child

    def send(self, messages: Sequence[object]) -> None:
        """See ``Link``."""
        for frame in frames(messages):
            self._child.on_data(bytes(frame[_HEADER_BYTES:]))

    async def drain(self) -> None:
        """See ``Link``. Returns at once, since sending never blocks."""
