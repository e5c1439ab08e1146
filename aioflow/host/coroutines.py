"""The role ``async``: hosts ``async def`` bodies and sensors side by side on one loop."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from aioflow.author.asking import asker
from aioflow.author.node import Node
from aioflow.errors import LinkClosed, TaskTimeout
from aioflow.host.arguments import KnownRun
from aioflow.host.asker import LineAsker
from aioflow.host.attempt import Attempt
from aioflow.host.blackbox import BlackBox
from aioflow.host.code import CodeShelf
from aioflow.host.nursery import Hosted, Nursery
from aioflow.host.outcome import LostInHost, ended_badly, not_begun, now, pack, succeeded
from aioflow.host.output import Attributed, OutputBuffer, waker
from aioflow.host.questions import ResultsPage, ResultsWanted
from aioflow.host.runs import Runs
from aioflow.host.shared import Line
from aioflow.messages import (
    Began,
    Ended,
    ForgetRun,
    Order,
    RunInfo,
    Start,
    Stop,
    Welcome,
)

__all__ = ("CANCEL_SECONDS", "CoroutineHost")

CANCEL_SECONDS = 10.0
"""How long a cancelled try may clean up before it is abandoned."""

Key: TypeAlias = tuple[int, int]

_TIMEOUT = "timeout"


class HostedTry(Hosted):
    """A try in the nursery.

    Attributes:
        node: Set once its body begins, as is ``began_at``.
        is_reported: The daemon has been told how it ended.
    """

    __slots__ = ("began_at", "is_reported", "key", "node", "start")

    def __init__(self, start: Start) -> None:
        super().__init__()
        self.start = start
        self.key: Key = (start.task_no, start.start_no)
        self.node: Node | None = None
        self.began_at = 0
        self.is_reported = False


class CoroutineHost:
    """Hosts tries, each in one task of the nursery.

    A try that was stopped reports nothing more. One that its own time limit ended reports
    ``timeout`` as soon as it has let go, or when the limit for that has passed.
    """

    def __init__(self, line: Line, box: BlackBox, welcome: Welcome) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._nursery: Nursery[HostedTry] = Nursery(
            box, CANCEL_SECONDS, self._forget, self._abandoned
        )
        self._shelf = CodeShelf(Path(welcome.code), exclusive=False)
        self._results = Path(welcome.results)
        self._runs = Runs(self._shelf)
        self._hosted: dict[Key, HostedTry] = {}
        # Not the loop's own threads: user code may keep all of those busy.
        self._writers = ThreadPoolExecutor(2, thread_name_prefix="aioflow-results")
        self._current: ContextVar[Key | None] = ContextVar("aioflow_current", default=None)
        self._output = OutputBuffer(waker(self._loop, self._pump))
        self._pumping = False
        sys.stdout = Attributed(sys.stdout, self._current, self._output)
        sys.stderr = Attributed(sys.stderr, self._current, self._output)

    def obey(self, order: Order) -> None:
        """See ``shared.Role``."""
        match order:
            case Start():
                hosted = HostedTry(order)
                self._hosted[hosted.key] = hosted
                self._nursery.start(order.task_no, hosted, self._host(hosted))
            case Stop():
                stopped = self._hosted.get((order.task_no, order.start_no))
                if stopped is not None:
                    self._nursery.cancel(stopped, order.reason)
            case RunInfo():
                self._runs.tell(order)
            case ForgetRun():
                self._runs.forget(order.run_no)
                self._shelf.put_back(self._runs.versions)
            case _:
                raise LinkClosed(f"an async host was ordered {type(order).__name__}")

    # ── one try ─────────────────────────────────────────────────────────────────────────

    async def _host(self, hosted: HostedTry) -> None:
        start = hosted.start
        self._current.set(hosted.key)
        asker.set(LineAsker(self._line, start.run_no))
        try:
            run = self._runs.of(start)
            node = hosted.node = run.dag.nodes[start.position]
        except BaseException as exc:  # noqa: BLE001 - importing the DAG file is user code
            self._report(hosted, not_begun(start, exc))
            return
        hosted.began_at = now()
        self._line.report(Began(start.task_no, start.start_no, hosted.began_at))
        ended = await self._outcome(run, node, hosted)
        if not hosted.abandoned and hosted.ending in {"", _TIMEOUT}:
            self._report(hosted, ended)

    async def _outcome(self, run: KnownRun, node: Node, hosted: HostedTry) -> Ended:
        start = hosted.start
        expire = partial(self._nursery.cancel, hosted, _TIMEOUT)
        attempt = Attempt(run, node, start, self._page, self._results, expire)
        problem: BaseException
        try:
            value = await attempt.value()
            packed = pack(node, start, value, self._results)
            if packed.write is not None:
                await self._loop.run_in_executor(self._writers, packed.write)
            if hosted.ending != _TIMEOUT:
                return succeeded(start, hosted.began_at, packed)
            problem = _too_long(node)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            problem = exc if hosted.ending != _TIMEOUT else _too_long(node, exc)
        return ended_badly(node, start, hosted.began_at, problem, attempt.operator)

    async def _page(self, run_no: int, position: int, after: int) -> ResultsPage:
        wanted = msgspec.msgpack.encode(ResultsWanted(position, after))
        body = await self._line.ask(run_no, "results", wanted)
        return msgspec.msgpack.decode(body, type=ResultsPage)

    # ── endings ─────────────────────────────────────────────────────────────────────────

    def _forget(self, hosted: HostedTry) -> None:
        if self._hosted.get(hosted.key) is hosted:
            del self._hosted[hosted.key]
        if not hosted.is_reported and not hosted.ending:
            # Something in here broke. The engine must not wait for it forever.
            self._report(hosted, not_begun(hosted.start, LostInHost()))

    def _abandoned(self, hosted: HostedTry) -> None:
        """Report for a try that swallows its cancellation; give up when they are many."""
        self._forget(hosted)
        if hosted.ending == _TIMEOUT and hosted.node is not None:
            problem = _too_long(hosted.node)
            self._report(hosted, ended_badly(hosted.node, hosted.start, hosted.began_at, problem))
        self._line.give_up_if(self._nursery.abandoned_count)

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def _report(self, hosted: HostedTry, ended: Ended) -> None:
        # What it printed stands in its log before anyone learns that it has ended.
        for output in self._output.take(hosted.key):
            self._line.report(output)
        hosted.is_reported = True
        self._line.report(ended)

    def _pump(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._nursery.serve(self._send_output())

    async def _send_output(self) -> None:
        """Send what was printed, as fast as the daemon takes it."""
        try:
            while outputs := self._output.take():
                for output in outputs:
                    self._line.report(output)
                await asyncio.sleep(0)  # the line sends when the loop comes round
                await self._line.drain()
        finally:
            self._pumping = False


def _too_long(node: Node, cause: BaseException | None = None) -> TaskTimeout:
    limit_us = node.spec.execution_timeout_us if node.spec is not None else None
    problem = TaskTimeout(
        f"{node.task_id!r} took longer than its execution_timeout of {(limit_us or 0) / 1e6:g} s"
    )
    # Where it stood when it was cancelled is what its author wants to see.
    return problem if cause is None else problem.with_traceback(cause.__traceback__)
