"""Common part of the shared child programs: event loop, link, report buffer, forwarded output."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from aioflow.errors import TaskError
from aioflow.model.ids import StartNo, TaskNo
from aioflow.protocol.commands import Command, Hello, Ping, Reply
from aioflow.protocol.reports import CancelQuery, Pong, Query, Report
from aioflow.worker.code.installed_packages import InstalledPackages
from aioflow.worker.crash_recorder import CrashRecorder
from aioflow.worker.link import Link, child_link, packed
from aioflow.worker.stdio import (
    Attributed,
    OutputBuffer,
    OutputOwner,
    configure_logging,
    line_by_line,
    waker,
)
from aioflow.worker.watchdog import Watchdog, announcer

__all__ = (
    "ABANDONED_LIMIT",
    "GIVEN_UP",
    "REPORTS_AT_ONCE",
    "OutputForwarder",
    "ReportBuffer",
    "Role",
    "RoleFactory",
    "serve",
)

ABANDONED_LIMIT = 100
"""Number of coroutines that outlived cancellation at which the process exits, to be replaced."""

GIVEN_UP = 70
"""Exit status of a process that exits because of ``ABANDONED_LIMIT``."""

REPORTS_AT_ONCE = 250
"""Number of reports that are sent without waiting for the end of the loop iteration.

So if a thousand coroutines end in one iteration, the daemon handles the first ones while others
run.
"""

Of = TypeVar("Of")

_log = logging.getLogger("aioflow.worker")


class ReportBuffer:
    """A shared child's end of the link: buffers reports until the next loop iteration.

    Reports of one iteration are sent together, in chunks of ``REPORTS_AT_ONCE``.

    Args:
        installed: The installed packages; ``None`` if the child runs inside another process.
    """

    def __init__(self, installed: InstalledPackages | None = None) -> None:
        self._installed = installed
        self._package_thread = ThreadPoolExecutor(1, "aioflow-packages")
        self._loop = asyncio.get_running_loop()
        self._link: Link[Command] | None = None
        self._reports: list[msgspec.Raw] = []
        self._before_flush: list[Callable[[], None]] = []
        self._pending_queries: dict[int, tuple[Callable[[Any, Reply], None], Any]] = {}
        self._open_queries: dict[int, Callable[[Reply], None]] = {}
        # Start from the clock, so that a late reply to an earlier process matches no query of this
        # process.
        self._numbers = itertools.count(time.monotonic_ns())

    def connect(self, link: Link[Command]) -> None:
        """Attach the link. Reports made earlier are buffered until then."""
        self._link = link

    def report(self, report: Report) -> None:
        """Queue a report for sending. Call it only from the loop's thread.

        Raises:
            Unserializable: If the report cannot be encoded; other reports are not affected.
        """
        message = packed(report)
        if not self._reports:
            self._flush_soon()
        self._reports.append(message)
        if len(self._reports) >= REPORTS_AT_ONCE:
            self._flush()

    def before_flush(self, send: Callable[[], None]) -> None:
        """Call ``send`` in the next flush, and send its reports before those already buffered.

        So a query that many tasks share is sent before the end of any of them is reported. If the
        query were made on behalf of a task's run after the end of that task, the daemon would
        refuse it for all the tasks.
        """
        self._flush_soon()
        self._before_flush.append(send)

    def _flush_soon(self) -> None:
        if not self._reports and not self._before_flush:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        reports, self._reports = self._reports, []
        before_flush, self._before_flush = self._before_flush, []
        try:
            for send in before_flush:
                send()
        finally:
            self._reports += reports
        if self._reports and self._link is not None:
            reports, self._reports = self._reports, []
            self._link.send(reports)

    def exit_if_abandoned(self, abandoned_count: int) -> None:
        """Exit with ``GIVEN_UP``, to be replaced, if too many coroutines outlived cancellation."""
        if abandoned_count >= ABANDONED_LIMIT:
            self._flush()
            os.write(2, b"aioflow: too many coroutines swallow their cancellation\n")
            os._exit(GIVEN_UP)

    async def is_outdated(self) -> bool:
        """Return whether installed packages have changed, which may explain a recent failure."""
        if self._installed is None:
            return False
        check = partial(self._installed.check_again, time.monotonic())
        return bool(await self._loop.run_in_executor(self._package_thread, check))

    async def drain(self) -> None:
        """Wait until most of the sent bytes have left the write buffer."""
        if self._link is not None:
            await self._link.drain()

    async def query(self, run_no: int, kind: str, body: bytes) -> bytes:
        """Send a query and return the daemon's answer. There is no timeout.

        Raises:
            TaskError: If the daemon replies with an error.
            Unserializable: If the query cannot be encoded.
        """
        answer: asyncio.Future[Reply] = self._loop.create_future()
        number = self.query_then(run_no, kind, body, _resolve, answer)
        try:
            got = await answer
        finally:
            self.cancel_query(number)
        if got.error:
            raise TaskError(got.error)
        return got.body

    def query_then(
        self, run_no: int, kind: str, body: bytes, then: Callable[[Of, Reply], None], of: Of
    ) -> int:
        """Send a query. Call ``then(of, reply)`` when the reply arrives. There is no timeout.

        Returns:
            The number of the query, for ``cancel_query``.

        Raises:
            Unserializable: If the query cannot be encoded.
        """
        number = next(self._numbers)
        self.report(Query(number, run_no, kind, body))
        self._pending_queries[number] = (then, of)
        return number

    def open_query(self, take: Callable[[Reply], None]) -> int:
        """Open a continuing query and return its number. ``take`` gets every reply to it."""
        number = next(self._numbers)
        self._open_queries[number] = take
        return number

    def extend_query(self, number: int, run_no: int, kind: str, body: bytes) -> None:
        """Add further targets to a continuing query."""
        self.report(Query(number, run_no, kind, body))

    def cancel_query(self, number: int, parts: tuple[int, ...] = ()) -> None:
        """Cancel a query that has no reply yet. Any other query is ignored.

        Args:
            parts: Cancel only these parts of a continuing query. If empty, cancel the whole query.
        """
        if number not in self._pending_queries and number not in self._open_queries:
            return
        if not parts:
            self._pending_queries.pop(number, None)
            self._open_queries.pop(number, None)
        self.report(CancelQuery(number, parts))

    def handle_reply(self, answer: Reply) -> None:
        """Pass a reply to its waiter, unless the query has been cancelled."""
        take = self._open_queries.get(answer.question)
        if take is not None:
            take(answer)
            return
        waiting = self._pending_queries.pop(answer.question, None)
        if waiting is not None:
            then, of = waiting
            then(of, answer)


def _resolve(waiting: asyncio.Future[Reply], answer: Reply) -> None:
    if not waiting.done():
        waiting.set_result(answer)


class Role(Protocol):
    """The role of a shared child: how it handles its commands.

    Attributes:
        evicted: Number of suspended coroutines that were evicted for lack of memory.
    """

    evicted: int

    def watches(self) -> tuple[tuple[str, int, int | None], ...] | None:
        """Return the watches of this child; see ``Pong``."""

    def handle(self, command: Command) -> None:
        """Handle one command. Never blocks, and never raises because of user code."""


def _pong(ping: Ping, role: Role, installed: InstalledPackages) -> Pong:
    late_us = time.monotonic_ns() // 1_000 - ping.sent_us if ping.sent_us else 0
    return Pong(max(late_us, 0), role.evicted, role.watches(), installed.changed)


RoleFactory: TypeAlias = Callable[[ReportBuffer, CrashRecorder, Hello], Role]


def _new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop.

    It is uvloop's if uvloop is installed, as it is beside the daemon.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def serve(role: RoleFactory, hello: Hello, first: Sequence[Command], sock: socket.socket) -> int:
    """Serve on one event loop until the daemon closes the link, then exit with status 0.

    Callbacks and tasks of user code may raise ``SystemExit`` or ``KeyboardInterrupt``. Both stop
    the loop, which is then restarted.
    """
    line_by_line()
    configure_logging()
    recorder = CrashRecorder.from_environment("AIOFLOW_BLACKBOX_FD")
    _watch(recorder, hello)
    # Tens of thousands of suspended coroutines are not garbage, and traversing them is expensive.
    gc.set_threshold(20_000, 50, 100)
    gc.freeze()
    loop = _new_event_loop()
    asyncio.set_event_loop(loop)
    closed = False

    def on_closed(reason: str) -> None:
        nonlocal closed
        closed = True
        _log.info("%s", reason)
        loop.stop()

    serving = loop.create_task(_serve(role, recorder, hello, first, sock, on_closed))
    while not closed:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as exc:
            _log.warning("user code outside of any try raised %s; continuing", type(exc).__name__)
        if serving.done() and (problem := serving.exception()) is not None:
            raise problem
    # The daemon no longer listens. Waiting for coroutines to end would only delay the exit.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _watch(recorder: CrashRecorder, hello: Hello) -> None:
    """Start the watchdog thread, which reports code that blocks the event loop of this thread."""
    nonce = os.environ.pop("AIOFLOW_LOG_NONCE", "").encode()
    if nonce:
        say, limit = announcer(nonce), hello.stall_seconds
        Watchdog(recorder, say, limit_seconds=limit, code=hello.code).start()


async def _serve(
    role: RoleFactory,
    recorder: CrashRecorder,
    hello: Hello,
    first: Sequence[Command],
    sock: socket.socket,
    on_closed: Callable[[str], None],
) -> None:
    installed = InstalledPackages(hello.code)
    installed.watch()
    reports = ReportBuffer(installed)
    served = role(reports, recorder, hello)

    def handle(commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Reply):
                reports.handle_reply(command)
            elif isinstance(command, Ping):
                reports.report(_pong(command, served, installed))
            else:
                served.handle(command)

    reports.connect(await child_link(sock, handle, on_closed))
    handle(first)


class OutputForwarder:
    """A replacement for the standard streams of a shared child, which forwards their output.

    Args:
        reports: Buffer for the reported output.
        serve: Runs a coroutine of aioflow itself.
        current: Returns the supervised coroutine whose code is running.
    """

    def __init__(
        self,
        reports: ReportBuffer,
        serve: Callable[[Coroutine[Any, Any, None]], None],
        current: Callable[[], OutputOwner | None],
    ) -> None:
        self._reports = reports
        self._serve = serve
        self._is_pumping = False
        self._buffer = OutputBuffer(waker(asyncio.get_running_loop(), self._forward))
        sys.stdout = Attributed(sys.stdout, current, self._buffer)
        sys.stderr = Attributed(sys.stderr, current, self._buffer, is_stderr=True)

    def add(self, of: tuple[TaskNo, StartNo], text: str) -> None:
        """Add a text to the output of a try or trigger."""
        if text:
            self._buffer.add(of, text.encode("utf-8", "backslashreplace"))

    def flush(self, of: tuple[TaskNo, StartNo]) -> None:
        """Report the buffered output of a try or trigger.

        Called before a report that must come after it.
        """
        if self._buffer.has_output:
            for output in self._buffer.take(of):
                self._reports.report(output)

    def _forward(self) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            self._serve(self._send())

    async def _send(self) -> None:
        try:
            while outputs := self._buffer.take():
                for output in outputs:
                    self._reports.report(output)
                await asyncio.sleep(0)  # the line sends in the next loop iteration
                await self._reports.drain()
        finally:
            self._is_pumping = False
