"""Traces: a span for each run, for each try below it, and below that for each of its stays.

They are made of committed batches, so that they never tell of what was not. All ids are worked
out of rows: a trace goes on where another daemon ended. Where spans go is not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.core.state.task_instance import TaskInstance
from aioflow.core.transaction import Transaction
from aioflow.model.batch import Batch
from aioflow.model.ids import RUNNING, StartNo, TaskNo, run_span, span_id, trace_id
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp

__all__ = ("Span", "Traces")

WAITING_LIMIT = 50_000
"""Spans that may wait to be made; more are dropped, and counted."""

_AT_ONCE = 500
_STAYS = {
    TaskState.QUEUED: "queued",
    TaskState.RUNNING: RUNNING,
    TaskState.SENSING: "sensing",
    TaskState.DEFERRED: "waiting",
    TaskState.RETRYING: "retrying",
}
_WITH_CODE = frozenset({TaskState.RUNNING, TaskState.SENSING})
_FINE = frozenset({RunState.SUCCESS, RunState.CANCELLED})


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span, to be made.

    Attributes:
        parent: 0 for the span of a run.
        links: Ids of spans of the same trace that it goes on from.
        error: Why it ended badly; ``None`` if it did not.
    """

    name: str
    trace: int
    span: int
    parent: int
    began: Timestamp
    ended: Timestamp
    attributes: Mapping[str, str | int]
    links: tuple[int, ...] = ()
    error: str | None = None


class _Stay(msgspec.Struct):
    """Where a task stands, and since when.

    Attributes:
        since: ``None`` where only a daemon before this one knew.
        start_no: The start it is, or the one before it.
        began: When the first start of its try did, which names the try; ``None`` before that.
        queued: When its try was queued first; ``None`` where that is not known.
        after: The start it goes on from, after a wait; else 0.
    """

    state: TaskState
    since: Timestamp | None
    start_no: StartNo
    began: Timestamp | None = None
    queued: Timestamp | None = None
    after: StartNo = 0


class Traces:
    """Makes spans of what is committed, in a thread, as fast as that is.

    Args:
        make: Makes some, in a thread, never two at a time.

    Attributes:
        made, dropped: How many spans were.
    """

    def __init__(self, make: Callable[[Sequence[Span]], None]) -> None:
        self.made = self.dropped = 0
        self._make = make
        self._stays: dict[TaskNo, _Stay] = {}
        self._waiting: deque[Span] = deque()
        self._arrived = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Make spans until cancelled; what waits then is made, too."""
        task_status.started()
        try:
            while True:
                await self._arrived.wait()
                self._arrived = anyio.Event()
                await self._make_waiting()
        finally:
            with anyio.CancelScope(shield=True):
                await self._make_waiting()

    async def _make_waiting(self) -> None:
        while self._waiting:
            count = min(len(self._waiting), _AT_ONCE)
            spans = [self._waiting.popleft() for _ in range(count)]
            with anyio.CancelScope(shield=True):
                await in_thread(self._make, spans)
            self.made += count

    # ── what is committed ───────────────────────────────────────────────────────────────

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """A batch is durable. ``draft`` is not settled: what rows said before is in it."""
        steps: dict[TaskNo, list[TaskState]] = {}
        for task_no, state in batch.steps:
            steps.setdefault(task_no, []).append(state)
        if steps:
            since = {row.task_no: row.since + tx.at.shift for row in tx.waits_before}
            for task in tx.touched:
                states = steps.pop(task.task_no, None)
                if states is not None:
                    self._put(self._of_task(task, states, batch.at, since))
        for change in batch.run_changes:
            run = tx.runs.get(change.run_no)
            if run is not None and change.was.is_live and not change.state.is_live:
                self._put([_of_run(run.row)])
        for row in batch.new_runs:
            if not row.state.is_live:
                self._put([_of_run(row)])

    def _put(self, spans: Iterable[Span]) -> None:
        for span in spans:
            if len(self._waiting) >= WAITING_LIMIT:
                self.dropped += 1
            else:
                self._waiting.append(span)
        self._arrived.set()

    def _of_task(
        self,
        task: TaskInstance,
        states: Sequence[TaskState],
        at: Timestamp,
        since: Mapping[TaskNo, Timestamp],
    ) -> Iterator[Span]:
        stay = self._stays.pop(task.task_no, None) or _recalled(task, states[0], since)
        trace = _trace_of(task.run.row)
        starts = sum(state in _WITH_CODE for state in states)
        for state in states:
            if stay.began is None:
                stay.began = task.started_at
            ended = at if state.is_live or task.ended_at is None else task.ended_at
            yield from _of_stay(stay, trace, task.task_no, ended)
            if _ends_try(stay.state, state):
                yield from _of_try(stay, trace, task, state, ended)
                stay.began = stay.queued = None
            starts -= state in _WITH_CODE
            stay = _next_stay(stay, state, at, task.start_no - starts, task.started_at)
        if stay.state.is_live:
            self._stays[task.task_no] = stay


def _recalled(task: TaskInstance, first: TaskState, since: Mapping[TaskNo, Timestamp]) -> _Stay:
    """Return where a task stood whose stay began with another daemon, as far as its row says.

    What ran when that daemon died has no span: nobody knows until when it did.
    """
    state, start_no, began = task.stored_state, task.stored_start, task.started_at
    match state:
        case TaskState.DEFERRED:
            return _Stay(state, since.get(task.task_no), start_no, began, began, start_no)
        case TaskState.RUNNING | TaskState.SENSING if first is not TaskState.QUEUED:
            return _Stay(state, began, start_no, began, began)
        case TaskState.QUEUED:
            return _Stay(state, None, start_no, began, began)
        case _:
            return _Stay(state, None, start_no)


def _next_stay(
    stay: _Stay, state: TaskState, at: Timestamp, start_no: StartNo, started_at: Timestamp | None
) -> _Stay:
    """Return the stay that follows.

    Args:
        start_no: Of the start that is the last one by then.
        started_at: When the first one of the try was, as its row says now.
    """
    if state in _WITH_CODE:
        is_first = stay.began is None and started_at is not None
        began = started_at if is_first else stay.began
        since = min(began, at) if is_first and began is not None else at
        return _Stay(state, since, start_no, began, stay.queued or since, stay.after)
    if state is TaskState.DEFERRED:
        return _Stay(state, at, stay.start_no, stay.began, stay.queued, stay.start_no)
    after = stay.after if stay.state is TaskState.DEFERRED else 0
    queued = at if stay.queued is None and state is TaskState.QUEUED else stay.queued
    return _Stay(state, at, stay.start_no, stay.began, queued, after)


def _ends_try(was: TaskState, state: TaskState) -> bool:
    """Whether a step is the end of a try: it failed or ended, or its start was cut short."""
    if state is TaskState.QUEUED:
        return was is TaskState.RUNNING
    return state is TaskState.RETRYING or not state.is_live


def _of_stay(stay: _Stay, trace: int, task_no: TaskNo, ended: Timestamp) -> Iterator[Span]:
    """Yield the span of a stay that is over; of one of no length only if code ran in it."""
    name = _STAYS.get(stay.state)
    if name is None or stay.since is None:
        return
    if stay.since >= ended and stay.state not in _WITH_CODE:
        return
    links: tuple[int, ...] = ()
    if stay.after and stay.state in _WITH_CODE:
        links = tuple(
            span_id(trace, kind, task_no, stay.after)
            for kind in (_STAYS[TaskState.DEFERRED], RUNNING)
        )
    of_run = run_span(trace)  # between two tries it is in none of them
    parent = of_run if stay.began is None else span_id(trace, "try", task_no, stay.began)
    yield Span(
        name=name,
        trace=trace,
        span=span_id(trace, name, task_no, stay.start_no),
        parent=parent,
        began=stay.since,
        ended=ended,
        attributes={"aioflow.start": stay.start_no},
        links=links,
    )


def _of_try(
    stay: _Stay, trace: int, task: TaskInstance, state: TaskState, ended: Timestamp
) -> Iterator[Span]:
    """Yield the span of a try that is over, if it had begun."""
    if stay.began is None or not stay.start_no:
        return
    row = task.run.row
    attributes: dict[str, str | int] = {
        "aioflow.dag_id": row.dag_id,
        "aioflow.run_id": row.run_id,
        "aioflow.task_id": task.spec.task_id,
        "aioflow.try": task.try_number,
        "aioflow.state": "interrupted" if state is TaskState.QUEUED else state.label,
    }
    if task.map_index >= 0:
        attributes["aioflow.map_index"] = task.map_index
    error = None
    if task.failure is not None and state is not TaskState.SUCCESS:
        error = f"{task.failure.type}: {task.failure.message}"
    yield Span(
        name=task.spec.task_id,
        trace=trace,
        span=span_id(trace, "try", task.task_no, stay.began),
        parent=run_span(trace),
        began=min(stay.queued or stay.began, stay.began),
        ended=ended,
        attributes=attributes,
        error=error,
    )


def _of_run(row: RunRow) -> Span:
    trace = _trace_of(row)
    return Span(
        name=f"run {row.dag_id}",
        trace=trace,
        span=run_span(trace),
        parent=0,
        began=row.created_at,
        ended=row.created_at if row.ended_at is None else row.ended_at,
        attributes={
            "aioflow.dag_id": row.dag_id,
            "aioflow.run_id": row.run_id,
            "aioflow.version": row.version,
            "aioflow.state": row.state.label,
        },
        error=None if row.state in _FINE else f"the run is {row.state.label}",
    )


def _trace_of(row: RunRow) -> int:
    return trace_id(row.run_no, row.run_id, row.created_at)
