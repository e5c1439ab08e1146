"""Triggers as shown to users: triggers of deferred tasks, and DAG triggers, which start runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from anyio.lowlevel import checkpoint

from aioflow.api.decisions import decision_text
from aioflow.api.queries import PAGE, RunReader
from aioflow.api.schemas import PolledWait, TargetView, TriggerView, iso
from aioflow.api.trigger_details import DETAIL_LENGTH, fires_at
from aioflow.core.state.memory import Memory
from aioflow.core.state.packed import TaskShape
from aioflow.core.triggers.assignment import is_stopped
from aioflow.core.why import explain_dag_trigger, is_unwatched
from aioflow.errors import RequestError
from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.rows import DagRow, RunRow, TriggerRow
from aioflow.model.states import TriggerState, Wait, WaitKind
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import (
    DagTriggerRow,
    DagTriggerSpec,
    DescribeTriggers,
    TriggerDescription,
)

__all__ = (
    "KINDS",
    "TriggerReader",
    "count_dag_triggers",
    "kind_of",
    "list_dag_triggers",
    "page_of_dag_triggers",
    "stored_state",
)

KINDS = {
    "aioflow_triggers.temporal": "time",
    "aioflow_triggers.files": "file",
    "aioflow_triggers.external": "run",
    "aioflow_triggers.events": "event",
    "aioflow_triggers.http": "http",
    "aioflow_triggers.pages": "http",
    "aioflow_triggers.objects": "object",
    "aioflow.author.person": "person",
}

K = TypeVar("K")

_AT_ONCE = 200

_CONCURRENT_LOOKUPS = 1_000

_STOPPED = "stopped"
"""State of a trigger that is not hosted, because its DAG is paused and has ``if_paused="stop"``."""

_BLOCKED = frozenset(
    {_STOPPED} | {kind.value for kind in WaitKind}  # the kinds are states of DAG triggers
)
"""States that are derived from memory and not stored in rows."""


class _Hosted(NamedTuple):
    """The location and state of a trigger that are known from memory.

    Attributes:
        node: The node that hosts it, if any.
        state: Why it is not running; empty if it is.
    """

    node: int | None = None
    state: str = ""


def kind_of(class_path: str) -> str:
    """Return ``time``, ``file`` ... for the standard catalogue, or else the name of the class."""
    module, _, name = class_path.partition(":")
    return KINDS.get(module, name or class_path)


class TriggerReader:
    """Reads trigger rows and finds their tasks.

    Args:
        memory: The memory of a running engine, which knows where triggers are hosted.
        watched: Fetches descriptions of triggers from their hosts.
    """

    def __init__(
        self, reader: RunReader, memory: Callable[[], Memory | None], watched: DescribeTriggers
    ) -> None:
        self._reader = reader
        self._memory = memory
        self._watched = watched

    async def views(
        self, rows: Sequence[TriggerRow], *, state: str | None = None
    ) -> list[TriggerView]:
        """Return triggers in the form that users see, except triggers whose run has been deleted.

        Args:
            state: Only triggers in this state.
        """
        memory = self._memory()
        shift = 0 if memory is None else memory.shift
        layouts = await self._reader.layouts(row.run_no for row in rows)
        numbers = [row.trigger_no for row in rows]
        watched = await self._watched(numbers) if rows else {}
        labels = await self._reader.store.find_call_labels(numbers)
        map_labels = await self._reader.store.find_labels([row.task_no for row in rows])
        found = []
        for at, row in enumerate(rows, start=1):
            if at % _AT_ONCE == 0:
                await checkpoint()
            where = _Hosted() if memory is None else _whereabouts(row.trigger_no, memory)
            run, layout = layouts.get(row.run_no, (None, None))
            location = None if layout is None else layout.find(row.task_no)
            if run is None or layout is None or location is None:
                continue
            if state not in {None, _trigger_state(row, where)}:
                continue  # its state has changed meanwhile
            task_id = layout.spec.tasks[location.task_index].task_id
            watch = watched.get(row.trigger_no)
            detail = self._reader.public_fields.detail(row.class_path, row.kwargs, watch)
            shown = layout.shown(location)
            view = _trigger_view(row, run, task_id, shown, where, watch, detail, shift)
            label, map_label = labels.get(row.trigger_no), map_labels.get(row.task_no)
            text = self._reader.public_fields.sentence(row.class_path, row.kwargs, watch)
            found.append(msgspec.structs.replace(view, label=label, map_label=map_label, text=text))
        return found

    async def worded(self, run_no: RunNo, waits: Mapping[K, Wait | None]) -> dict[K, Wait | None]:
        """Return the waits of a run, with check times and with readable details for triggers.

        Check times are added for triggers and sensors. If a trigger has been deleted, its detail is
        the text from the engine.
        """
        sensors, triggers = _polling(waits)
        rows: dict[int, TriggerRow] = {}
        watched: Mapping[int, TriggerDescription] = {}
        labels: Mapping[int, str] = {}
        if triggers:
            found = await self._reader.store.find_triggers(triggers)
            rows = {row.trigger_no: row for row in found}
            watched = await self._watched(triggers)
            labels = await self._reader.store.find_call_labels(triggers)
        looks = await self._reader.watched_sensors(run_no, sensors) if sensors else {}
        decisions = await self._decision_texts(waits.values())
        worded: dict[K, Wait | None] = {}
        for at, (location, wait) in enumerate(waits.items(), start=1):
            if at % _AT_ONCE == 0:
                await checkpoint()
            if wait is None or wait.checked_by is None:
                worded[location] = wait
            elif wait.kind is WaitKind.DECISION:
                detail = decisions.get(wait.checked_by, wait.detail)
                asked = TargetView(type="decision", name=str(wait.checked_by))
                said = self._polled(wait, detail, None)
                worded[location] = msgspec.structs.replace(said, target=asked)
            elif wait.kind is WaitKind.INTERVAL:
                worded[location] = self._polled(wait, wait.detail, looks.get(wait.checked_by))
            else:
                row, watch = rows.get(wait.checked_by), watched.get(wait.checked_by)
                said = self._polled(wait, self._in_words(wait, row, watch), watch)
                fields = self._reader.public_fields
                target = None if row is None else fields.target(row.class_path, row.kwargs)
                fires = None if row is None else _fires_at(row, wait.since, wait.until)
                worded[location] = msgspec.structs.replace(
                    said, label=labels.get(wait.checked_by), target=target, fires_at=fires
                )
        return worded

    def _polled(self, wait: Wait, detail: str, watch: TriggerDescription | None) -> PolledWait:
        """Return a wait with the facts that its host has reported of the checks."""
        return PolledWait(
            kind=wait.kind,
            detail=detail,
            since=wait.since,
            until=wait.until,
            behind=wait.behind,
            checked_by=wait.checked_by,
            pool=wait.pool,
            interval_us=wait.interval_us,
            last_check_at=None if watch is None else watch.last_check_at,
            next_check_at=None if watch is None else watch.next_check_at,
            last_answer=self._reader.public_fields.last_answer(watch),
        )

    async def _decision_texts(self, waits: Iterable[Wait | None]) -> dict[int, str]:
        numbers = [
            wait.checked_by
            for wait in waits
            if wait is not None and wait.kind is WaitKind.DECISION and wait.checked_by is not None
        ]
        if not numbers:
            return {}
        found = await self._reader.store.find_decisions(numbers)
        masked = self._reader.public_fields.masked_text
        return {row.decision_no: masked(decision_text(row)) for row in found}

    def _in_words(
        self, wait: Wait, row: TriggerRow | None, watch: TriggerDescription | None
    ) -> str:
        engine = "" if row is None else f"{row.class_path} #{row.trigger_no}"
        if row is None or not wait.detail.startswith(engine):
            return wait.detail
        sentence = self._reader.public_fields.sentence(row.class_path, row.kwargs, watch)
        return sentence + wait.detail.removeprefix(engine)

    async def numbers_in_state(
        self, numbers: Sequence[TriggerNo], stored: TriggerState, state: str
    ) -> list[TriggerNo]:
        """Return the triggers in this state, in the given order. Does not read their rows.

        Args:
            stored: The state in their rows.
        """
        memory = self._memory()
        unhosted = stored.name.lower()
        if memory is None:
            return list(numbers) if state == unhosted else []
        shapes = _blocked_shapes(memory)
        found: list[TriggerNo] = []
        for first in range(0, len(numbers), _CONCURRENT_LOOKUPS):
            some = numbers[first : first + _CONCURRENT_LOOKUPS]
            found += (n for n in some if (_blocked_state(n, shapes, memory) or unhosted) == state)
            await checkpoint()
        return found


def _polling(waits: Mapping[K, Wait | None]) -> tuple[list[TaskNo], list[TriggerNo]]:
    """Return the row numbers of the sensors and triggers to which ``waits`` refer."""
    sensors: set[TaskNo] = set()
    triggers: set[TriggerNo] = set()
    for wait in waits.values():
        is_polled = wait is not None and wait.kind is not WaitKind.DECISION
        if wait is not None and is_polled and wait.checked_by is not None:
            (sensors if wait.kind is WaitKind.INTERVAL else triggers).add(wait.checked_by)
    return sorted(sensors), sorted(triggers)


def _fires_at(
    row: TriggerRow, since: Timestamp | None, deadline: Timestamp | None
) -> Timestamp | None:
    """Return when the trigger of a wait for a time fires; ``None`` for others, or if unknown."""
    if since is None:
        return None
    return fires_at(row.class_path, row.kwargs, since=since, deadline=deadline)


def stored_state(state: str) -> TriggerState:
    """Return the state that is stored for triggers shown in ``state``.

    Raises:
        RequestError: If there is no such state.
    """
    for stored in TriggerState:
        if stored.name.lower() == state:
            return stored
    if state in _BLOCKED:
        return TriggerState.WAITING
    known = ", ".join([stored.name.lower() for stored in TriggerState] + sorted(_BLOCKED))
    raise RequestError(f"there is no trigger state {state[:80]!r}; there are {known}")


def _trigger_state(row: TriggerRow, where: _Hosted) -> str:
    return where.state or row.state.name.lower()


def _whereabouts(number: TriggerNo, memory: Memory) -> _Hosted:
    wait = memory.packing.peek(number)
    if wait is None:
        return _Hosted()
    if wait.assignment_id:
        return (
            _Hosted(memory.node_no)
            if wait.has_capacity
            else _Hosted(None, WaitKind.TRIGGER_CAPACITY.value)
        )
    return _Hosted(None, _STOPPED if is_unwatched(wait, memory) else "")


def _blocked_shapes(memory: Memory) -> set[TaskShape]:
    """Return the shapes (``TaskShape``) of packed triggers that may be unable to run."""
    return {
        shape
        for shape in memory.packing.shapes()
        if not shape.has_capacity or is_stopped(shape.dag_version.graph.spec.dag_id, memory)
    }


def _blocked_state(number: TriggerNo, shapes: set[TaskShape], memory: Memory) -> str:
    """Return the same state as ``_whereabouts``, but skip the lookup for most packed triggers.

    Args:
        shapes: See ``_blocked_shapes``.
    """
    is_packed = number not in memory.waits.objects
    if is_packed and not (shapes and memory.packing.shape_of(number) in shapes):
        return ""
    return _whereabouts(number, memory).state


def _trigger_view(
    row: TriggerRow,
    run: RunRow,
    task_id: str,
    shown: tuple[int, int],
    hosted: _Hosted,
    watch: TriggerDescription | None,
    detail: str,
    shift: int,
) -> TriggerView:
    """Return a trigger row in the form that users see.

    Args:
        shift: Offset of the wall clock from the steady clock, whose times are in the row.
    """
    deadline = None if row.deadline_at is None else row.deadline_at + shift
    return TriggerView(
        trigger_id=row.trigger_no,
        kind=kind_of(row.class_path),
        dag_id=run.dag_id,
        run_id=run.run_id,
        task_id=task_id,
        map_index=shown[0],
        round=shown[1],
        since=iso(row.since + shift) or "",
        deadline=iso(deadline),
        node=hosted.node,
        shared_with=None if watch is None else watch.shared_with,
        next_check_at=None if watch is None else iso(watch.next_check_at),
        last_check_at=None if watch is None else iso(watch.last_check_at),
        fires_at=iso(_fires_at(row, row.since + shift, deadline)),
        state=_trigger_state(row, hosted),
        events=None,
        detail=detail,
    )


async def page_of_dag_triggers(
    reader: RunReader,
    memory: Memory | None,
    *,
    after: TriggerNo,
    upto: TriggerNo = sys.maxsize,
    limit: int,
    is_wanted: Callable[[TriggerView], bool] = lambda _: True,
) -> list[TriggerView]:
    """Return at most ``limit`` wanted DAG triggers with numbers above ``after``, up to ``upto``."""
    found: list[TriggerView] = []
    size = limit
    while len(found) < limit:
        rows = await reader.store.list_dag_triggers(after=after, upto=upto, limit=size)
        found += filter(is_wanted, await list_dag_triggers(reader, memory, rows))
        if len(rows) < size:
            break
        after, size = rows[-1].trigger_no, min(4 * size, PAGE)  # few rows match: read larger pages
    return found[:limit]


async def count_dag_triggers(reader: RunReader, memory: Memory) -> Counter[str]:
    """Return the number of active DAG triggers by kind, without reading their rows."""
    counts: Counter[str] = Counter()
    dags, _ = await reader.catalogue.known()
    for at, one in enumerate(list(memory.dag_triggers), start=1):
        if at % _AT_ONCE == 0:
            await checkpoint()
        spec = await _wanted_dag_triggers(reader, dags, one.row.dag_id)
        if spec is not None:
            counts[_dag_trigger_kind(spec, one.row.class_path)] += 1
    return counts


async def list_dag_triggers(
    reader: RunReader, memory: Memory | None, rows: Sequence[DagTriggerRow]
) -> list[TriggerView]:
    """Return views of those triggers whose DAGs still declare a trigger, in the given order.

    Args:
        reader: Reads the database.
        memory: The memory of a running engine, which knows whether a trigger has a host; ``None``
            if no engine runs.
        rows: Stored DAG triggers. A long list is processed without blocking the event loop.
    """
    if not rows:
        return []
    dags, _ = await reader.catalogue.known()
    watched = await reader.watched([row.trigger_no for row in rows])
    views = []
    for at, row in enumerate(rows, start=1):
        if at % _AT_ONCE == 0:
            await checkpoint()
        spec = await _wanted_dag_triggers(reader, dags, row.dag_id)
        if spec is None:
            continue
        one = None if memory is None else memory.dag_triggers.get(row.trigger_no)
        wait = None if memory is None or one is None else explain_dag_trigger(one, memory)
        is_hosted = one is not None and one.assignment_id != 0 and one.has_capacity
        watch = watched.get(row.trigger_no)
        fields = reader.public_fields.detail(row.class_path, row.kwargs, watch)
        detail = spec.name if spec.is_timetable else fields
        node = memory.node_no if memory is not None and is_hosted else None
        views.append(_dag_trigger_view(row, spec, wait, node, detail, watch))
    return views


async def _wanted_dag_triggers(
    reader: RunReader, dags: Mapping[str, DagRow], dag_id: str
) -> DagTriggerSpec | None:
    dag = dags.get(dag_id)
    if dag is None or dag.gone:
        return None
    return (await reader.known_spec(dag.version, dag.dag_id)).trigger


def _dag_trigger_kind(spec: DagTriggerSpec, class_path: str) -> str:
    return "timetable" if spec.is_timetable else kind_of(class_path)


def _dag_trigger_view(
    row: DagTriggerRow,
    spec: DagTriggerSpec,
    wait: Wait | None,
    node: int | None,
    detail: str,
    watch: TriggerDescription | None,
) -> TriggerView:
    held = None if wait is None or wait.kind is WaitKind.TRIGGER else wait
    if held is not None and held.detail:
        detail = f"{detail}: {held.detail}"
    return TriggerView(
        trigger_id=row.trigger_no,
        kind=_dag_trigger_kind(spec, row.class_path),
        dag_id=row.dag_id,
        run_id=None,
        task_id=None,
        map_index=-1,
        round=0,
        since=iso(row.since) or "",
        deadline=None if wait is None else iso(wait.until),
        node=node,
        shared_with=None,
        next_check_at=None if watch is None else iso(watch.next_check_at),
        last_check_at=None if watch is None else iso(watch.last_check_at),
        state="waiting" if held is None else held.kind.value,
        events=row.sequence,
        detail=detail[:DETAIL_LENGTH],
    )
