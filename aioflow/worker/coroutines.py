"""The role ``async``: runs ``async def`` bodies and sensors concurrently on one event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from aioflow.author.client import asker
from aioflow.author.named_values import Held, held
from aioflow.author.node import Node
from aioflow.author.steps import Steps, at_once
from aioflow.author.waiting import calls
from aioflow.errors import LinkClosed, TaskError, TaskTimeout, UnknownValue
from aioflow.model.dag import ValueKind
from aioflow.model.trigger_description import Watched
from aioflow.protocol.commands import (
    CallRecorded,
    Describe,
    ForgetRun,
    Hello,
    ItemsStored,
    Order,
    ResumeCoroutine,
    RunInfo,
    StartTask,
    StopTask,
)
from aioflow.protocol.reports import (
    Awaiting,
    Described,
    Ended,
    NextEventRequested,
    NotSuspended,
    Report,
    RunCalled,
    TaskStopped,
)
from aioflow.worker import values
from aioflow.worker.arguments import KnownRun, spec_of
from aioflow.worker.code import CodeShelf
from aioflow.worker.cooperative import Slices
from aioflow.worker.crash_recorder import BlackBox
from aioflow.worker.durable_calls import DurableCalls
from aioflow.worker.item_stream import Giver
from aioflow.worker.memory_pressure import LOOK_SECONDS, Pressure, own_memory
from aioflow.worker.outcome import (
    LostInHost,
    ended_badly,
    gives_items,
    handled,
    not_begun,
    now,
    pack,
    succeeded,
)
from aioflow.worker.output_forwarder import OutputPump
from aioflow.worker.pages import fetch_page
from aioflow.worker.queries import RecordItem, RecordsPage, RecordsWanted
from aioflow.worker.query_client import Channels, LineAsker
from aioflow.worker.result_writer import kept, written
from aioflow.worker.runs import Runs
from aioflow.worker.shared_host import Line
from aioflow.worker.span_context import enter
from aioflow.worker.task_supervisor import Hosted, Nursery, guest
from aioflow.worker.task_try import Attempt

__all__ = ("CANCEL_SECONDS", "CoroutineHost")

CANCEL_SECONDS = 10.0
"""How long a cancelled try may clean up before it is abandoned."""

STEP_THREADS = 32
"""``def`` steps that run concurrently; further ones queue."""

Key: TypeAlias = tuple[int, int]

_TIMEOUT, _EVICTED = "timeout", "evicted"


class HostedTry(Hosted):
    """A supervised try.

    Attributes:
        start: The current execution; a resumed coroutine has had several.
        calls: Its durable calls; set when its body begins.
        giver: Sends the items it yields, if other tasks consume them as a stream.
        node: Set when its body begins, as is ``began_at``.
        attempt: Set when its body begins.
        is_reported: Its outcome has been reported to the daemon.
    """

    __slots__ = (
        *("_host", "attempt", "began_at", "calls"),
        *("giver", "is_reported", "key", "node", "start"),
    )

    def __init__(self, host: CoroutineHost, start: StartTask) -> None:
        super().__init__()
        self._host = host
        self.start = start
        self.key: Key = (start.task_no, start.start_no)
        self.calls: DurableCalls | None = None
        self.giver: Giver | None = None
        self.node: Node | None = None
        self.attempt: Attempt | None = None
        self.began_at = 0
        self.is_reported = False

    @property
    def number(self) -> int:
        """See ``Hosted``."""
        return self.start.task_no

    @property
    def is_parked(self) -> bool:
        """Whether the coroutine is suspended in a call and will be resumed by an answer."""
        return self.calls is not None and self.calls.is_parked and not self.ending

    @property
    def on_code_change(self) -> str:
        """See ``calls.Conversation``."""
        return "fail" if self.node is None else self.node.settings.on_code_change

    @property
    def is_over(self) -> bool:
        """See ``calls.Conversation``."""
        return bool(self.ending) or self.is_reported

    def cancel(self, reason: str) -> None:
        """See ``calls.Conversation``."""
        self._host.cancel(self, reason)

    def report(self, report: Report) -> None:
        """See ``calls.Conversation``."""
        self._host.report_for(self, report)

    async def packed(self, steps: Steps[bytes]) -> bytes:
        """See ``giving.Talk``."""
        return await self._host.packed(steps)

    def find_class(self, path: str) -> Any:
        """See ``calls.Conversation``."""
        return self._host.find_class(self.start, path)


class CoroutineHost:
    """Runs tries, each as one supervised coroutine.

    A stopped try reports only ``TaskStopped``. A try that exceeds its execution timeout reports
    ``timeout`` when it has ended, or when the time allowed for its cleanup is over.

    Attributes:
        evicted: See ``shared.Role``.
    """

    def __init__(
        self, line: Line, box: BlackBox, welcome: Hello, shelf: CodeShelf | None = None
    ) -> None:
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._nursery: Nursery[HostedTry] = Nursery(
            box, CANCEL_SECONDS, self._forget, self._abandoned
        )
        self._shelf = shelf or CodeShelf(Path(welcome.code), exclusive=False)
        self._code = welcome.code
        self._results = Path(welcome.results)
        self._traces = welcome.traces
        self._runs = Runs(self._shelf)
        self._hosted: dict[Key, HostedTry] = {}
        self._parked: dict[int, HostedTry] = {}
        self._sensors: dict[int, HostedTry] = {}
        # Not the loop's default threads: user code may occupy all of those.
        self._pressure = Pressure(welcome.memory_limit_bytes, own_memory)
        self._writers = ThreadPoolExecutor(2, thread_name_prefix="aioflow-results")
        self._steps = ThreadPoolExecutor(STEP_THREADS, thread_name_prefix="aioflow-step")
        self._slices = Slices()
        self._output = OutputPump(line, self._nursery.serve, guest.get)
        self._channels = Channels(line)
        self.evicted = 0

    def watches(self) -> None:
        """Return ``None``: this role has no watches; see ``shared.Role``."""

    def obey(self, order: Order) -> None:
        """See ``shared.Role``."""
        match order:
            case StartTask():
                self._begin(order)
            case ResumeCoroutine():
                self._resume(order)
            case CallRecorded():
                self._confirm(order)
            case ItemsStored():
                giving = self._hosted.get((order.task_no, order.start_no))
                if giving is not None and giving.giver is not None:
                    giving.giver.take(order.upto)
            case StopTask():
                stopped = self._hosted.get((order.task_no, order.start_no))
                if stopped is not None:
                    self._nursery.cancel(stopped, order.reason)
            case RunInfo():
                self._runs.tell(order)
            case Describe():
                self._describe(order)
            case ForgetRun():
                self._runs.forget(order.run_no)
                self._let_go_of_run(order.run_no)
                self._shelf.put_back(self._runs.versions)
            case _:
                raise LinkClosed(f"an async host was ordered {type(order).__name__}")

    def _describe(self, order: Describe) -> None:
        """Report the last and next poke of sensors, by task number."""
        told = []
        for number in order.numbers:
            attempt = self._sensors[number].attempt if number in self._sensors else None
            if attempt is not None:
                told.append((number, Watched(0, attempt.next_look_at, attempt.last_look_at)))
        self._line.report(Described(order.question, tuple(told)))

    # ── one try ─────────────────────────────────────────────────────────────────────────

    def _begin(self, start: StartTask) -> None:
        left = self._parked.pop(start.task_no, None)
        if left is not None:  # a suspended execution that the daemon has forgotten
            self._nursery.cancel(left, "reassigned")
        hosted = HostedTry(self, start)
        self._hosted[hosted.key] = hosted
        self._nursery.start(hosted, self._host(hosted))

    def _resume(self, order: ResumeCoroutine) -> None:
        hosted = self._parked.pop(order.task_no, None)
        known = hosted is not None and hosted.key[1] == order.was_start_no
        if hosted is None or hosted.calls is None or not known or not hosted.is_parked:
            self._line.report(NotSuspended(order.task_no, order.start_no))
            return
        del self._hosted[hosted.key]
        hosted.start = msgspec.structs.replace(hosted.start, start_no=order.start_no)
        hosted.key = (order.task_no, order.start_no)
        self._hosted[hosted.key] = hosted
        hosted.began_at = now()
        hosted.calls.answered(order.answer, order.failure)

    def _confirm(self, order: CallRecorded) -> None:
        confirmed = self._hosted.get((order.task_no, order.start_no))
        if confirmed is None or confirmed.ending == _EVICTED:
            # Evicted while it requested something that was already there; or the command is late.
            self._line.report(NotSuspended(order.task_no, order.start_no))
            return
        if confirmed.calls is None:
            return
        if self._parked.get(order.task_no) is confirmed:  # the answer was already there
            del self._parked[order.task_no]
        confirmed.calls.answered(order.answer, order.failure, ordinal=order.ordinal)

    def report_for(self, hosted: HostedTry, report: Report) -> None:
        """Report a durable call to the engine, after flushing what was printed before it."""
        self._output.flush(hosted.key)
        self._line.report(report)
        if isinstance(report, Awaiting | NextEventRequested | RunCalled):
            self._parked[hosted.start.task_no] = hosted
            self._relieve()

    async def packed(self, steps: Steps[bytes]) -> bytes:
        """Encode a value in slices, so that a large one does not block the loop."""
        return await self._slices.run(steps)

    def cancel(self, hosted: HostedTry, reason: str) -> None:
        """Cancel a try; from here on it reports only ``TaskStopped``."""
        self._nursery.cancel(hosted, reason)

    def _relieve(self) -> None:
        """If memory is short, evict the coroutines that have been suspended longest.

        The daemon need not be notified: an evicted try is replayed from the top when it is resumed.
        """
        if not self._parked or not self._pressure.is_due(self._loop.time()):
            return
        excess = self._pressure.excess(len(self._parked))
        for hosted in list(islice(self._parked.values(), excess)):
            del self._parked[hosted.start.task_no]
            self._nursery.cancel(hosted, _EVICTED)
            self.evicted += 1
        if excess:
            self._loop.call_later(LOOK_SECONDS, self._relieve)

    def find_class(self, start: StartTask, path: str) -> Any:
        """Resolve ``path`` in the try's code version or in an installed package."""
        version = self._runs.of(start).info.version
        return self._shelf.version(version).find_class(path)

    async def _host(self, hosted: HostedTry) -> None:
        start = hosted.start
        place = (start.position, start.map_index)
        info = self._runs.info(start.run_no)
        dag_id = "" if info is None else info.dag_id
        asker.set(LineAsker(self._channels, start.run_no, place, dag_id=dag_id))
        held.set({})
        try:
            run = self._runs.of(start)
            node = hosted.node = run.dag.nodes[start.position]
            if self._traces:
                enter(run.info, start)
        except BaseException as exc:  # noqa: BLE001 - importing the DAG file is user code
            self._report(hosted, not_begun(start, exc))
            return
        hosted.began_at = now()
        if node.sensor is None:
            recorded = await self._records(start) if start.recorded else []
            code = f"{self._code}/{run.info.version}/"
            hosted.calls = DurableCalls(hosted, recorded, self._steps, code, self._slices)
            calls.set(hosted.calls)
        else:
            self._sensors[start.task_no] = hosted
        ended = await self._outcome(run, node, hosted)
        if not hosted.abandoned and hosted.ending in {"", _TIMEOUT}:
            self._report(hosted, ended)

    async def _outcome(self, run: KnownRun, node: Node, hosted: HostedTry) -> Ended:
        expire = partial(self._nursery.cancel, hosted, _TIMEOUT)
        hosted.giver = Giver(hosted) if spec_of(node).streams else None
        attempt = hosted.attempt = Attempt(
            *(run, node, hosted.start, partial(fetch_page, self._line), self._results),
            *(expire, self._line.report, hosted.giver),
        )
        problem: BaseException
        try:
            if names := spec_of(node).values:
                held.set(await self._values(hosted.start, names))
            value = await attempt.value()
            if hosted.calls is not None:
                hosted.calls.end()
            if gives_items(node, hosted.start) and hosted.ending != _TIMEOUT:
                items = handled(node, hosted.start, hosted.began_at, value)
                return await self._slices.run(items)
            packed = await self._slices.run(pack(node, hosted.start, value, self._results))
            if packed.write is not None:
                await written(packed.write, self._writers, kept(hosted.start, self._line.report))
            if hosted.ending != _TIMEOUT:
                return succeeded(hosted.start, hosted.began_at, packed)
            problem = _too_long(node)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            problem = exc if hosted.calls is None else hosted.calls.explained(exc)
            problem = problem if hosted.ending != _TIMEOUT else _too_long(node, exc)
        steps = ended_badly(node, hosted.start, hosted.began_at, problem, attempt.operator)
        return await self._slices.run(steps)

    async def _values(self, start: StartTask, names: tuple[tuple[ValueKind, str], ...]) -> Held:
        question = values.question(start.position, names)
        try:
            return values.told(names, await self._line.ask(start.run_no, "values", question))
        except TaskError as exc:
            raise UnknownValue(str(exc)) from None

    async def _records(self, start: StartTask) -> list[RecordItem]:
        items: list[RecordItem] = []
        while len(items) < start.recorded:
            wanted = RecordsWanted(start.task_no, len(items) - 1)
            body = await self._line.ask(start.run_no, "records", msgspec.msgpack.encode(wanted))
            page = msgspec.msgpack.decode(body, type=RecordsPage)
            items += page.items
            if not page.more:
                break
        return items

    # ── endings ─────────────────────────────────────────────────────────────────────────

    def _let_go_of_run(self, run_no: int) -> None:
        """Cancel the coroutines suspended for a run that has ended: they will never be resumed."""
        for hosted in [h for h in self._parked.values() if h.start.run_no == run_no]:
            self._nursery.cancel(hosted, "cancelled")

    def _forget(self, hosted: HostedTry) -> None:
        if self._hosted.get(hosted.key) is hosted:
            del self._hosted[hosted.key]
        for known in (self._parked, self._sensors):
            if known.get(hosted.start.task_no) is hosted:
                del known[hosted.start.task_no]
        if not hosted.is_reported and not hosted.ending:
            # An internal error. Report it, so that the engine does not wait forever.
            self._report(hosted, not_begun(hosted.start, LostInHost()))
        if not hosted.is_reported:
            self._output.flush(hosted.key)
            self._line.report(TaskStopped(*hosted.key))

    def _abandoned(self, hosted: HostedTry) -> None:
        """Report for a try that swallowed its cancellation; exit if there are too many of them."""
        self._forget(hosted)
        if hosted.ending == _TIMEOUT and hosted.node is not None:
            problem = _too_long(hosted.node)
            steps = ended_badly(hosted.node, hosted.start, hosted.began_at, problem)
            self._report(hosted, at_once(steps))
        self._line.give_up_if(self._nursery.abandoned_count)

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def _report(self, hosted: HostedTry, ended: Ended) -> None:
        # Flush first: the log must be complete before the end is reported.
        self._output.flush(hosted.key)
        hosted.is_reported = True
        self._line.report(ended)


def _too_long(node: Node, cause: BaseException | None = None) -> TaskTimeout:
    limit_us = node.spec.execution_timeout_us if node.spec is not None else None
    problem = TaskTimeout(
        f"{node.task_id!r} took longer than its execution_timeout of {(limit_us or 0) / 1e6:g} s"
    )
    # Show the author the line at which it was cancelled.
    return problem if cause is None else problem.with_traceback(cause.__traceback__)
