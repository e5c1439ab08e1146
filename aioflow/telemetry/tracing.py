"""Traces: one span per run, in it one per try, and in the try one per period in a state.

Spans are created from committed batches, so they never show uncommitted work. All ids are derived
from rows, so a trace continues across restarts of the daemon. This module does not know where the
spans are sent.
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
"""Maximum number of spans that wait to be created. Further spans are dropped and counted."""

_AT_ONCE = 500
_PERIODS = {
    TaskState.QUEUED: "queued",
    TaskState.RUNNING: RUNNING,
    TaskState.SENSING: "sensing",
    TaskState.DEFERRED: "waiting",
    TaskState.RETRYING: "retrying",
}
_WITH_CODE = frozenset({TaskState.RUNNING, TaskState.SENSING})
_FINE = frozenset({RunState.SUCCESS, RunState.CANCELLED})


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span to be created.

    Attributes:
        parent: Id of the parent span; 0 for the span of a run.
        links: Ids of spans of the same trace that it continues.
        error: Reason of a failure; ``None`` if nothing failed.
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


class _Period(msgspec.Struct):
    """A period in which a task is in one state.

    Attributes:
        since: Start of the period; ``None`` if only an earlier daemon knew it.
        start_no: The execution in this period, or the last execution before the period.
        began: Start of the try's first execution, which identifies the try; ``None`` before that.
        queued: Time at which the try was first queued; ``None`` if unknown.
        after: The execution that this period continues after a deferral; else 0.
    """

    state: TaskState
    since: Timestamp | None
    start_no: StartNo
    began: Timestamp | None = None
    queued: Timestamp | None = None
    after: StartNo = 0


class Traces:
    """Creates spans from committed batches in a thread, with a bounded queue.

    Args:
        make: Creates spans; called in a thread, never concurrently.

    Attributes:
        made, dropped: Numbers of spans that were created and dropped.
    """

    def __init__(self, make: Callable[[Sequence[Span]], None]) -> None:
        self.made = self.dropped = 0
        self._make = make
        self._periods: dict[TaskNo, _Period] = {}
        self._waiting: deque[Span] = deque()
        self._arrived = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Create spans until cancelled. Then create the spans that are still waiting."""
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

    # ── committed batches ───────────────────────────────────────────────────────────────

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """Queue the spans of all periods, tries and runs that have ended with a durable batch.

        ``tx`` is not settled yet, so it still has the previous states of rows.
        """
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
        period = self._periods.pop(task.task_no, None) or _recalled(task, states[0], since)
        trace = _trace_of(task.run.row)
        starts = sum(state in _WITH_CODE for state in states)
        for state in states:
            if period.began is None:
                period.began = task.started_at
            ended = at if state.is_live or task.ended_at is None else task.ended_at
            yield from _spans_of(period, trace, task.task_no, ended)
            if _ends_try(period.state, state):
                yield from _of_try(period, trace, task, state, ended)
                period.began = period.queued = None
            starts -= state in _WITH_CODE
            period = _next_period(period, state, at, task.start_no - starts, task.started_at)
        if period.state.is_live:
            self._periods[task.task_no] = period


def _recalled(task: TaskInstance, first: TaskState, since: Mapping[TaskNo, Timestamp]) -> _Period:
    """Return the current period of a task that started under an earlier daemon.

    It is derived from the rows. Code that was running when the daemon crashed gets no span, because
    its end is unknown.
    """
    state, start_no, began = task.stored_state, task.stored_start, task.started_at
    match state:
        case TaskState.DEFERRED:
            return _Period(state, since.get(task.task_no), start_no, began, began, start_no)
        case TaskState.RUNNING | TaskState.SENSING if first is not TaskState.QUEUED:
            return _Period(state, began, start_no, began, began)
        case TaskState.QUEUED:
            return _Period(state, None, start_no, began, began)
        case _:
            return _Period(state, None, start_no)


def _next_period(
    period: _Period,
    state: TaskState,
    at: Timestamp,
    start_no: StartNo,
    started_at: Timestamp | None,
) -> _Period:
    """Return the period that follows ``period``.

    Args:
        start_no: Number of the latest execution when the new period begins.
        started_at: Start of the try's first execution, from the row of the task.
    """
    if state in _WITH_CODE:
        is_first = period.began is None and started_at is not None
        began = started_at if is_first else period.began
        since = min(began, at) if is_first and began is not None else at
        return _Period(state, since, start_no, began, period.queued or since, period.after)
    if state is TaskState.DEFERRED:
        return _Period(state, at, period.start_no, period.began, period.queued, period.start_no)
    after = period.after if period.state is TaskState.DEFERRED else 0
    queued = at if period.queued is None and state is TaskState.QUEUED else period.queued
    return _Period(state, at, period.start_no, period.began, queued, after)


def _ends_try(was: TaskState, state: TaskState) -> bool:
    """Return whether a change of state ends a try: it failed, ended, or was interrupted."""
    if state is TaskState.QUEUED:
        return was is TaskState.RUNNING
    return state is TaskState.RETRYING or not state.is_live


def _spans_of(period: _Period, trace: int, task_no: TaskNo, ended: Timestamp) -> Iterator[Span]:
    """Yield the span of a finished period, if it has one.

    Only the states in ``_PERIODS`` have spans. A period whose start is unknown has none, and
    neither has a period that took no time, unless it ran user code.
    """
    name = _PERIODS.get(period.state)
    if name is None or period.since is None:
        return
    if period.since >= ended and period.state not in _WITH_CODE:
        return
    links: tuple[int, ...] = ()
    if period.after and period.state in _WITH_CODE:
        links = tuple(
            span_id(trace, kind, task_no, period.after)
            for kind in (_PERIODS[TaskState.DEFERRED], RUNNING)
        )
    of_run = run_span(trace)  # a period between two tries belongs to neither of them
    parent = of_run if period.began is None else span_id(trace, "try", task_no, period.began)
    yield Span(
        name=name,
        trace=trace,
        span=span_id(trace, name, task_no, period.start_no),
        parent=parent,
        began=period.since,
        ended=ended,
        attributes={"aioflow.start": period.start_no},
        links=links,
    )


def _of_try(
    period: _Period, trace: int, task: TaskInstance, state: TaskState, ended: Timestamp
) -> Iterator[Span]:
    """Yield the span of a finished try, if it had started."""
    if period.began is None or not period.start_no:
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
        span=span_id(trace, "try", task.task_no, period.began),
        parent=run_span(trace),
        began=min(period.queued or period.began, period.began),
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
