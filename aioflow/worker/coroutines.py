"""The role ``async``: runs ``async def`` bodies and sensors concurrently on one event loop.

A try fetches its result pages, awaits its body, and enforces its timeout.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from itertools import islice
from pathlib import Path
from types import CoroutineType
from typing import Any, TypeAlias

import msgspec

from aioflow.author.client import NamedValues, declared_values, query_sender
from aioflow.author.codec import Steps, run_steps
from aioflow.author.deferral import NotReady, poke_result
from aioflow.author.durable_calls import calls
from aioflow.author.node import Node
from aioflow.errors import LinkClosed, TaskError, TaskTimeout, UnknownValue
from aioflow.model.dag import SensorSpec, ValueKind
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import TriggerDescription
from aioflow.protocol.commands import (
    CallRecorded,
    Command,
    Describe,
    ForgetRun,
    Hello,
    ItemsStored,
    ResumeCoroutine,
    RunInfo,
    StartTask,
    StopTask,
)
from aioflow.protocol.reports import (
    Awaiting,
    Described,
    Ended,
    Labelled,
    NextEventRequested,
    NotSuspended,
    Report,
    RunCalled,
    TaskStopped,
)
from aioflow.worker.code.loader import CodeCache
from aioflow.worker.crash_recorder import CrashRecorder
from aioflow.worker.failures import print_traceback
from aioflow.worker.process import MEMORY_POLL_SECONDS, MemoryPressure, own_memory
from aioflow.worker.query import values
from aioflow.worker.query.client import (
    FetchPage,
    HostedFiles,
    QueryChannels,
    QueryClient,
    fetch_page,
    fetch_pages_ahead,
    no_page,
)
from aioflow.worker.query.messages import RecordItem, RecordsPage, RecordsWanted
from aioflow.worker.shared_host import OutputForwarder, ReportBuffer
from aioflow.worker.task.arguments import KnownRun, Runs, spec_of
from aioflow.worker.task.body import Body, PagesOfRun, attach_span, body_of_try
from aioflow.worker.task.durable_calls import DurableCalls
from aioflow.worker.task.items import ItemStream
from aioflow.worker.task.outcome import (
    LostInHost,
    ended_badly,
    gives_items,
    handled,
    is_ignored,
    not_begun,
    now,
    pack,
    pack_at_once,
    succeeded,
    write_failure_reporter,
    write_result_in_thread,
)
from aioflow.worker.task_supervisor import Slices, TaskSupervisor, UserCoroutine, current_coroutine

__all__ = (
    "CANCEL_SECONDS",
    "CoroutineHost",
    "TaskTry",
    "interval_after",
)


_NOTE_LENGTH = 200
"""How much is shown of an error that a sensor ignored."""


class TaskTry:
    """Computes the return value of one try.

    Args:
        expire: Called when a body, or one poke of a sensor, exceeds the execution timeout.
        tell: Called with the task's label, before its body runs.
        item_stream: Sends the items that a generator yields. If it is ``None``, they become a list.

    Attributes:
        operator: The instance whose method is running, or ran last; ``None`` for a function.
    """

    def __init__(
        self,
        run: KnownRun,
        node: Node,
        start: StartTask,
        fetch: FetchPage,
        results: HostedFiles,
        expire: Callable[[], None],
        tell: Callable[[Labelled], None],
        item_stream: ItemStream | None = None,
    ) -> None:
        self._run = run
        self._node = node
        self._start = start
        self._fetch = fetch
        self._results = results
        self._expire = expire
        self._tell = tell
        self._item_stream = item_stream
        self._pages: PagesOfRun = no_page
        self._label: str | None = None
        self.operator: Any = None
        self.last_poke_at: Timestamp | None = None
        self.next_poke_at: Timestamp | None = None
        self.poke_note = ""

    async def value(self) -> Any:
        """Return the result of the body, or of the sensor's last poke."""
        start, results = self._start, self._results
        if start.is_closing or results.copies is not None or self._run.asks_for_results(self._node):
            self._pages = await fetch_pages_ahead(
                self._run, self._node, start, self._fetch, results
            )
        sensor = self._node.settings.sensor
        if sensor is None or start.method:
            return await self._once()
        return await self._sense(sensor)

    async def _once(self) -> Any:
        body = self._begin()
        limit_us = spec_of(self._node).execution_timeout_us
        if limit_us is None:
            return await self._called(body)
        if self._node.sensor is None:
            limit_us = self._start.timeout_us or limit_us  # the remaining time
        timer = asyncio.get_running_loop().call_later(limit_us / 1_000_000, self._expire)
        try:
            return await self._called(body)
        finally:
            timer.cancel()

    async def _called(self, body: Body) -> Any:
        value = body.call()
        if type(value) is CoroutineType:  # of `async def`
            return await value
        if inspect.isasyncgen(value):
            return await self._yielded(value)
        return await value if inspect.isawaitable(value) else value

    async def _yielded(self, items: Any) -> Any:
        if self._item_stream is None:
            async with aclosing(items):
                return [item async for item in items]
        await self._item_stream.send_all(items, repr(self._node.task_id))
        return None

    def _begin(self) -> Body:
        body = body_of_try(self._run, self._node, self._start, self._pages, self._results)
        self.operator = body.operator
        if body.label is not None and body.label != self._label:
            self._label = body.label
            self._tell(Labelled(self._start.task_no, self._start.start_no, body.label))
        return body

    async def _sense(self, sensor: SensorSpec) -> Any:
        """Poke until the condition is met. Each poke gets a new body, as in a slot worker."""
        pokes = 0
        while True:
            recheck_in_us = None
            self.last_poke_at, self.next_poke_at, self.poke_note = now(), None, ""
            try:
                done, value = poke_result(await self._once())
                if done:
                    return value
            except NotReady as exc:
                recheck_in_us = exc.recheck_in_us
            except Exception as exc:
                if not is_ignored(self._node, exc):
                    raise
                print_traceback(exc)
                self.poke_note = _note_of(exc)
            pokes += 1
            wait_us = interval_after(sensor, pokes) if recheck_in_us is None else recheck_in_us
            self.next_poke_at = now() + wait_us
            await asyncio.sleep(wait_us / 1_000_000)


def _note_of(exc: Exception) -> str:
    """Return the type and the text of an error that a check of a sensor ignored, in one line."""
    try:
        text = " ".join(str(exc).split())
    except Exception:  # noqa: BLE001 - user code may raise anything, and it is only shown
        text = ""
    return f"{type(exc).__name__}: {text}"[:_NOTE_LENGTH] if text else type(exc).__name__


def interval_after(sensor: SensorSpec, pokes: int) -> int:
    """Return the microseconds from poke number ``pokes`` to the next.

    The first poke is number 1.
    """
    # Use floats, because an integer power grows without bound, while a float stops at infinity.
    longest = float(sensor.timeout_us if sensor.max_interval_us is None else sensor.max_interval_us)
    try:
        grown = sensor.interval_us * sensor.backoff ** (pokes - 1)
    except OverflowError:
        grown = longest
    return round(min(grown, max(longest, float(sensor.interval_us))))


CANCEL_SECONDS = 10.0
"""How long the cleanup of a cancelled try may take before the try is abandoned."""

STEP_THREADS = 32
"""Maximum number of ``def`` steps that run concurrently. Further steps are queued."""

Key: TypeAlias = tuple[int, int]

_TIMEOUT, _EVICTED = "timeout", "evicted"


class HostedTry(UserCoroutine):
    """A supervised try.

    Attributes:
        start: The current execution. A coroutine that was resumed has had several.
        calls: The try's durable calls; set when its body begins.
        item_stream: Sends the items that the body yields, if other tasks consume them as a stream.
        node: The node of the task; set when the body begins, as is ``began_at``.
        task_try: The object that computes the return value; set when the body begins.
        is_reported: Whether the outcome has been reported to the daemon.
    """

    __slots__ = (
        *("_host", "task_try", "began_at", "calls"),
        *("item_stream", "is_reported", "key", "node", "start"),
    )

    def __init__(self, host: CoroutineHost, start: StartTask) -> None:
        super().__init__()
        self._host = host
        self.start = start
        self.key: Key = (start.task_no, start.start_no)
        self.calls: DurableCalls | None = None
        self.item_stream: ItemStream | None = None
        self.node: Node | None = None
        self.task_try: TaskTry | None = None
        self.began_at = 0
        self.is_reported = False

    @property
    def number(self) -> int:
        """See ``UserCoroutine``."""
        return self.start.task_no

    @property
    def is_suspended(self) -> bool:
        """Whether the coroutine is suspended in a call and will be resumed by an answer."""
        return self.calls is not None and self.calls.is_suspended and not self.ending

    @property
    def on_code_change(self) -> str:
        """See ``durable_calls.Conversation``."""
        return "fail" if self.node is None else self.node.settings.on_code_change

    @property
    def is_over(self) -> bool:
        """See ``durable_calls.Conversation``."""
        return bool(self.ending) or self.is_reported

    def cancel(self, reason: str) -> None:
        """See ``durable_calls.Conversation``."""
        self._host.cancel(self, reason)

    def report(self, report: Report) -> None:
        """See ``durable_calls.Conversation``."""
        self._host.report_for(self, report)

    async def packed(self, steps: Steps[bytes]) -> bytes:
        """See ``task.items.ItemReporter``."""
        return await self._host.packed(steps)

    def find_class(self, path: str) -> Any:
        """See ``durable_calls.Conversation``."""
        return self._host.find_class(self.start, path)


class CoroutineHost:
    """Runs tries, each as one supervised coroutine.

    A stopped try reports only ``TaskStopped``. A try that exceeds its execution timeout reports
    ``timeout`` when it has ended, or when the time for its cleanup has run out.

    Attributes:
        evicted: See ``shared_host.Role``.
    """

    def __init__(
        self,
        reports: ReportBuffer,
        recorder: CrashRecorder,
        hello: Hello,
        code_cache: CodeCache | None = None,
    ) -> None:
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._supervisor: TaskSupervisor[HostedTry] = TaskSupervisor(
            recorder, CANCEL_SECONDS, self._forget, self._abandoned
        )
        self._code_cache = code_cache or CodeCache(Path(hello.code), exclusive=False)
        self._code = hello.code
        self._results = HostedFiles(hello, reports)
        self._fetch_page = partial(fetch_page, reports)
        self._traces = hello.traces
        self._runs = Runs(self._code_cache)
        self._hosted: dict[Key, HostedTry] = {}
        self._suspended: dict[int, HostedTry] = {}
        self._sensors: dict[int, HostedTry] = {}
        # Not the loop's default thread pool, because user code may occupy all of its threads.
        self._pressure = MemoryPressure(hello.memory_limit_bytes, own_memory)
        self._writers = ThreadPoolExecutor(2, thread_name_prefix="aioflow-results")
        self._steps = ThreadPoolExecutor(STEP_THREADS, thread_name_prefix="aioflow-step")
        self._slices = Slices()
        self._output = OutputForwarder(reports, self._supervisor.serve, current_coroutine.get)
        self._channels = QueryChannels(reports)
        self.evicted = 0

    def watches(self) -> None:
        """Return ``None``, because this role has no watches; see ``shared_host.Role``."""

    def handle(self, command: Command) -> None:
        """See ``shared_host.Role``."""
        match command:
            case StartTask():
                self._begin(command)
            case ResumeCoroutine():
                self._resume(command)
            case CallRecorded():
                self._confirm(command)
            case ItemsStored():
                giving = self._hosted.get((command.task_no, command.start_no))
                if giving is not None and giving.item_stream is not None:
                    giving.item_stream.take(command.upto)
            case StopTask():
                stopped = self._hosted.get((command.task_no, command.start_no))
                if stopped is not None:
                    self._supervisor.cancel(stopped, command.reason)
            case RunInfo():
                self._runs.add(command)
            case Describe():
                self._describe(command)
            case ForgetRun():
                self._runs.forget(command.run_no)
                self._cancel_suspended_of(command.run_no)
                self._code_cache.unload_unused(self._runs.versions)
            case _:
                raise LinkClosed(f"an async host was ordered {type(command).__name__}")

    def _describe(self, command: Describe) -> None:
        """Report the last and the next poke of sensors, by task number."""
        described = []
        for number in command.numbers:
            task_try = self._sensors[number].task_try if number in self._sensors else None
            if task_try is not None:
                told = TriggerDescription(
                    0, task_try.next_poke_at, task_try.last_poke_at, note=task_try.poke_note
                )
                described.append((number, told))
        self._reports.report(Described(command.question, tuple(described)))

    # ── one try ─────────────────────────────────────────────────────────────────────────

    def _begin(self, start: StartTask) -> None:
        if self._suspended:
            left = self._suspended.pop(start.task_no, None)
            if left is not None:  # the daemon no longer knows of this suspended execution
                self._supervisor.cancel(left, "reassigned")
        hosted = HostedTry(self, start)
        self._hosted[hosted.key] = hosted
        self._supervisor.start(hosted, self._host(hosted))

    def _resume(self, command: ResumeCoroutine) -> None:
        hosted = self._suspended.pop(command.task_no, None)
        known = hosted is not None and hosted.key[1] == command.was_start_no
        if hosted is None or hosted.calls is None or not known or not hosted.is_suspended:
            self._reports.report(NotSuspended(command.task_no, command.start_no))
            return
        del self._hosted[hosted.key]
        hosted.start = msgspec.structs.replace(hosted.start, start_no=command.start_no)
        hosted.key = (command.task_no, command.start_no)
        self._hosted[hosted.key] = hosted
        hosted.began_at = now()
        hosted.calls.handle_reply(command.answer, command.failure)

    def _confirm(self, command: CallRecorded) -> None:
        confirmed = self._hosted.get((command.task_no, command.start_no))
        if confirmed is None or confirmed.ending == _EVICTED:
            # Either the try was evicted although its answer was already there, or the command is
            # late.
            self._reports.report(NotSuspended(command.task_no, command.start_no))
            return
        if confirmed.calls is None:
            return
        if self._suspended.get(command.task_no) is confirmed:  # the answer was already there
            del self._suspended[command.task_no]
        confirmed.calls.handle_reply(command.answer, command.failure, ordinal=command.ordinal)

    def report_for(self, hosted: HostedTry, report: Report) -> None:
        """Report a durable call to the engine, after flushing output printed before the call."""
        self._output.flush(hosted.key)
        self._reports.report(report)
        if isinstance(report, Awaiting | NextEventRequested | RunCalled):
            self._suspended[hosted.start.task_no] = hosted
            self._evict_suspended()

    async def packed(self, steps: Steps[bytes]) -> bytes:
        """Encode a value in slices, so that a large one does not block the loop."""
        return await self._slices.run(steps)

    def cancel(self, hosted: HostedTry, reason: str) -> None:
        """Cancel a try. From then on it reports only ``TaskStopped``."""
        self._supervisor.cancel(hosted, reason)

    def _evict_suspended(self) -> None:
        """Evict the coroutines that have been suspended longest, if memory is short.

        The daemon need not be notified, because an evicted try is replayed from the top when it is
        resumed.
        """
        if not self._suspended or not self._pressure.is_due(self._loop.time()):
            return
        excess = self._pressure.excess(len(self._suspended))
        for hosted in list(islice(self._suspended.values(), excess)):
            del self._suspended[hosted.start.task_no]
            self._supervisor.cancel(hosted, _EVICTED)
            self.evicted += 1
        if excess:
            self._loop.call_later(MEMORY_POLL_SECONDS, self._evict_suspended)

    def find_class(self, start: StartTask, path: str) -> Any:
        """Resolve ``path`` in the try's code version or in an installed package."""
        version = self._runs.of(start).info.version
        return self._code_cache.version(version).find_class(path)

    async def _host(self, hosted: HostedTry) -> None:
        start = hosted.start
        task_key = (start.task_index, start.map_index)
        loaded = self._runs.loaded(start.run_no)
        info = self._runs.info(start.run_no) if loaded is None else loaded.info
        dag_id = "" if info is None else info.dag_id
        query_sender.set(QueryClient(self._channels, start.run_no, task_key, dag_id=dag_id))
        declared_values.set({})
        try:
            run = self._runs.of(start) if loaded is None else loaded
            node = hosted.node = run.dag.nodes[start.task_index]
            if self._traces:
                attach_span(run.info, start)
        except BaseException as exc:  # noqa: BLE001 - importing the DAG file is user code
            self._report(hosted, not_begun(start, exc))
            return
        hosted.began_at = now()
        if node.settings.sensor is None:
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
        expire = partial(self._supervisor.cancel, hosted, _TIMEOUT)
        spec = spec_of(node)
        hosted.item_stream = ItemStream(hosted) if spec.streams else None
        task_try = hosted.task_try = TaskTry(
            *(run, node, hosted.start, self._fetch_page, self._results),
            *(expire, self._reports.report, hosted.item_stream),
        )
        problem: BaseException
        try:
            if names := spec.values:
                declared_values.set(await self._values(hosted.start, names))
            value = await task_try.value()
            if hosted.calls is not None:
                hosted.calls.end()
            if gives_items(node, hosted.start) and hosted.ending != _TIMEOUT:
                items = handled(node, hosted.start, hosted.began_at, value)
                return await self._slices.run(items)
            packed = pack_at_once(node, value)
            if packed is None:
                packed = await self._slices.run(pack(node, hosted.start, value, self._results))
            if packed.write is not None:
                await write_result_in_thread(
                    packed.write,
                    self._writers,
                    write_failure_reporter(hosted.start, self._reports.report),
                )
            if hosted.ending != _TIMEOUT:
                return succeeded(hosted.start, hosted.began_at, packed)
            problem = _too_long(node)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            problem = exc if hosted.calls is None else hosted.calls.explained(exc)
            problem = problem if hosted.ending != _TIMEOUT else _too_long(node, exc)
        steps = ended_badly(node, hosted.start, hosted.began_at, problem, task_try.operator)
        return await self._slices.run(steps)

    async def _values(
        self, start: StartTask, names: tuple[tuple[ValueKind, str], ...]
    ) -> NamedValues:
        question = values.encoded_query(start.task_index, names)
        try:
            return values.decoded(
                names, await self._reports.query(start.run_no, "values", question)
            )
        except TaskError as exc:
            raise UnknownValue(str(exc)) from None

    async def _records(self, start: StartTask) -> list[RecordItem]:
        items: list[RecordItem] = []
        while len(items) < start.recorded:
            wanted = RecordsWanted(start.task_no, len(items) - 1)
            body = await self._reports.query(
                start.run_no, "records", msgspec.msgpack.encode(wanted)
            )
            page = msgspec.msgpack.decode(body, type=RecordsPage)
            items += page.items
            if not page.more:
                break
        return items

    # ── endings ─────────────────────────────────────────────────────────────────────────

    def _cancel_suspended_of(self, run_no: int) -> None:
        """Cancel the suspended coroutines of a run that has ended. They will never be resumed."""
        for hosted in [h for h in self._suspended.values() if h.start.run_no == run_no]:
            self._supervisor.cancel(hosted, "cancelled")

    def _forget(self, hosted: HostedTry) -> None:
        if self._hosted.get(hosted.key) is hosted:
            del self._hosted[hosted.key]
        for known in (self._suspended, self._sensors):
            if known and known.get(hosted.start.task_no) is hosted:
                del known[hosted.start.task_no]
        if not hosted.is_reported and not hosted.ending:
            # This is an internal error. Report it, so that the engine does not wait forever.
            self._report(hosted, not_begun(hosted.start, LostInHost()))
        if not hosted.is_reported:
            self._output.flush(hosted.key)
            self._reports.report(TaskStopped(*hosted.key))

    def _abandoned(self, hosted: HostedTry) -> None:
        """Stop waiting for a try that swallowed its cancellation. Exit if there are too many.

        If the try was cancelled because of its timeout, report the timeout.
        """
        self._forget(hosted)
        if hosted.ending == _TIMEOUT and hosted.node is not None:
            problem = _too_long(hosted.node)
            steps = ended_badly(hosted.node, hosted.start, hosted.began_at, problem)
            self._report(hosted, run_steps(steps))
        self._reports.exit_if_abandoned(self._supervisor.abandoned_count)

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def _report(self, hosted: HostedTry, ended: Ended) -> None:
        # Flush first, because the log must be complete before the end is reported.
        self._output.flush(hosted.key)
        hosted.is_reported = True
        self._reports.report(ended)


def _too_long(node: Node, cause: BaseException | None = None) -> TaskTimeout:
    limit_us = node.spec.execution_timeout_us if node.spec is not None else None
    problem = TaskTimeout(
        f"{node.task_id!r} took longer than its execution_timeout of {(limit_us or 0) / 1e6:g} s"
    )
    # Show the author the line at which the try was cancelled.
    return problem if cause is None else problem.with_traceback(cause.__traceback__)
