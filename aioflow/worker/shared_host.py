"""What both shared hosts stand on: one event loop, one link, and a place where reports gather."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
import uvloop

from aioflow.errors import TaskError
from aioflow.protocol.commands import Hello, Order, Ping, Reply
from aioflow.protocol.reports import CancelQuery, Pong, Query, Report
from aioflow.worker.crash_recorder import BlackBox
from aioflow.worker.frames import packed
from aioflow.worker.installed import InstalledPackages
from aioflow.worker.link import Link, child_link
from aioflow.worker.stdio import configure_logging, line_by_line
from aioflow.worker.watchdog import Watchdog, announcer

__all__ = ("ABANDONED_LIMIT", "GIVEN_UP", "REPORTS_AT_ONCE", "Line", "Role", "RoleFactory", "serve")

ABANDONED_LIMIT = 100
"""Coroutines that outlived their cancellation, from which on a host asks to be replaced."""

GIVEN_UP = 70
"""The exit status for that."""

REPORTS_AT_ONCE = 250
"""Of a thousand coroutines that are stepped in one iteration, the first to end are reported while
the others run: the daemon decides what follows meanwhile, and neither waits for the other."""

Of = TypeVar("Of")

_log = logging.getLogger("aioflow.worker")


class Line:
    """A shared host's end of the link: reports gather here until the loop comes round.

    What is reported within one iteration of the loop is sent together, unless that is very much.

    Args:
        installed: What is installed; ``None`` for a host that is no process of its own.
    """

    def __init__(self, installed: InstalledPackages | None = None) -> None:
        self._installed = installed
        self._looking = ThreadPoolExecutor(1, "aioflow-packages")
        self._loop = asyncio.get_running_loop()
        self._link: Link[Order] | None = None
        self._reports: list[msgspec.Raw] = []
        self._gathering: list[Callable[[], None]] = []
        self._questions: dict[int, tuple[Callable[[Any, Reply], None], Any]] = {}
        self._going_on: dict[int, Callable[[Reply], None]] = {}
        # No number of this process is one of an earlier process, which may be answered late.
        self._numbers = itertools.count(time.monotonic_ns())

    def connect(self, link: Link[Order]) -> None:
        """Take the link. Before that reports are kept."""
        self._link = link

    def report(self, report: Report) -> None:
        """Have it sent soon. Only from the loop's thread.

        Raises:
            Unserializable: If it cannot travel; the others are not touched by that.
        """
        message = packed(report)
        self._flush_soon()
        self._reports.append(message)
        if len(self._reports) >= REPORTS_AT_ONCE:
            self._flush()

    def gather(self, send: Callable[[], None]) -> None:
        """Have ``send`` called once the loop comes round; what it reports leaves first.

        So what was asked together for many leaves before the end of any of those: after that the
        daemon would refuse what is asked in the name of its run, and the others wait for the same.
        """
        self._flush_soon()
        self._gathering.append(send)

    def _flush_soon(self) -> None:
        if not self._reports and not self._gathering:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        reports, self._reports = self._reports, []
        gathering, self._gathering = self._gathering, []
        try:
            for send in gathering:
                send()
        finally:
            self._reports += reports
        if self._reports and self._link is not None:
            reports, self._reports = self._reports, []
            self._link.send(reports)

    def give_up_if(self, abandoned_count: int) -> None:
        """Ask to be replaced, by ending, once too many coroutines outlive their cancellation."""
        if abandoned_count >= ABANDONED_LIMIT:
            self._flush()
            os.write(2, b"aioflow: too many coroutines swallow their cancellation\n")
            os._exit(GIVEN_UP)

    async def is_outdated(self) -> bool:
        """Return whether installed packages changed, which may explain what failed just now."""
        if self._installed is None:
            return False
        look = partial(self._installed.look_again, time.monotonic())
        return bool(await self._loop.run_in_executor(self._looking, look))

    async def drain(self) -> None:
        """Wait until the daemon has taken most of what was sent."""
        if self._link is not None:
            await self._link.drain()

    async def ask(self, run_no: int, kind: str, body: bytes) -> bytes:
        """Return the daemon's answer, however long it takes.

        Raises:
            TaskError: If it has none to give.
            Unserializable: If the question cannot travel.
        """
        answer: asyncio.Future[Reply] = self._loop.create_future()
        number = self.ask_then(run_no, kind, body, _settle, answer)
        try:
            got = await answer
        finally:
            self.withdraw(number)
        if got.error:
            raise TaskError(got.error)
        return got.body

    def ask_then(
        self, run_no: int, kind: str, body: bytes, then: Callable[[Of, Reply], None], of: Of
    ) -> int:
        """Ask, and have ``then`` called with ``of`` and the answer, however late that comes.

        Returns:
            The number of the question, by which it can be withdrawn.

        Raises:
            Unserializable: If the question cannot travel.
        """
        number = next(self._numbers)
        self.report(Query(number, run_no, kind, body))
        self._questions[number] = (then, of)
        return number

    def follow(self, take: Callable[[Reply], None]) -> int:
        """Return the number of a question that goes on: every answer to it is taken."""
        number = next(self._numbers)
        self._going_on[number] = take
        return number

    def ask_on(self, number: int, run_no: int, kind: str, body: bytes) -> None:
        """Ask further things under the number of a question that goes on."""
        self.report(Query(number, run_no, kind, body))

    def withdraw(self, number: int, parts: tuple[int, ...] = ()) -> None:
        """Have a question forgotten that has no answer yet; else nothing is left to do.

        Args:
            parts: Of one that goes on, only these.
        """
        if number not in self._questions and number not in self._going_on:
            return
        if not parts:
            self._questions.pop(number, None)
            self._going_on.pop(number, None)
        self.report(CancelQuery(number, parts))

    def answered(self, answer: Reply) -> None:
        """Hand an answer to whoever asked, if that one still waits."""
        take = self._going_on.get(answer.question)
        if take is not None:
            take(answer)
            return
        waiting = self._questions.pop(answer.question, None)
        if waiting is not None:
            then, of = waiting
            then(of, answer)


def _settle(waiting: asyncio.Future[Reply], answer: Reply) -> None:
    if not waiting.done():
        waiting.set_result(answer)


class Role(Protocol):
    """What a shared host does with its orders.

    Attributes:
        evicted: Parked coroutines it has let go of for want of memory.
    """

    evicted: int

    def watches(self) -> tuple[tuple[str, int, int | None], ...] | None:
        """Return the watches it has; see ``Pong``."""

    def obey(self, order: Order) -> None:
        """Take one order. Never blocks, never raises for what user code does."""


def _pong(ping: Ping, role: Role, installed: InstalledPackages) -> Pong:
    late_us = time.monotonic_ns() // 1_000 - ping.sent_us if ping.sent_us else 0
    return Pong(max(late_us, 0), role.evicted, role.watches(), installed.changed)


RoleFactory: TypeAlias = Callable[[Line, BlackBox, Hello], Role]


def serve(role: RoleFactory, welcome: Hello, first: Sequence[Order], sock: socket.socket) -> int:
    """Serve on one event loop until the daemon closes the link; return the exit status.

    The callbacks and tasks of user code may raise ``SystemExit`` or ``KeyboardInterrupt``,
    which both end a loop. This one goes on.
    """
    line_by_line()
    configure_logging()
    box = BlackBox.from_environment("AIOFLOW_BLACKBOX_FD")
    _watch(box, welcome)
    # Tens of thousands of parked coroutines are not garbage, and walking them is dear.
    gc.set_threshold(20_000, 50, 100)
    gc.freeze()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    closed = False

    def on_closed(reason: str) -> None:
        nonlocal closed
        closed = True
        _log.info("%s", reason)
        loop.stop()

    serving = loop.create_task(_serve(role, box, welcome, first, sock, on_closed))
    while not closed:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as exc:
            _log.warning("user code outside of any try raised %s; going on", type(exc).__name__)
        if serving.done() and (problem := serving.exception()) is not None:
            raise problem
    # Nobody is left to hear how coroutines end; waiting for them would only delay the end.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _watch(box: BlackBox, welcome: Hello) -> None:
    """Have a thread name what holds up the loop of this one."""
    nonce = os.environ.pop("AIOFLOW_LOG_NONCE", "").encode()
    if nonce:
        say, limit = announcer(nonce), welcome.stall_seconds
        Watchdog(box, say, limit_seconds=limit, code=welcome.code).start()


async def _serve(
    role: RoleFactory,
    box: BlackBox,
    welcome: Hello,
    first: Sequence[Order],
    sock: socket.socket,
    on_closed: Callable[[str], None],
) -> None:
    installed = InstalledPackages(welcome.code)
    installed.watch()
    line = Line(installed)
    served = role(line, box, welcome)

    def obey(orders: Sequence[Order]) -> None:
        for order in orders:
            if isinstance(order, Reply):
                line.answered(order)
            elif isinstance(order, Ping):
                line.report(_pong(order, served, installed))
            else:
                served.obey(order)

    line.connect(await child_link(sock, obey, on_closed))
    obey(first)
