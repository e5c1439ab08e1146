"""The history as JSON: ends, failure rates and durations by hour or day, and timelines.

Each end of a run or task counts once, in the hour in which it happened. A run or task that was
cleared and has ended again counts again. Percentiles have an error of at most 9.1 %; below one
millisecond they are 0.0005.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, tzinfo
from functools import cache, partial
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from aioflow._threads import in_thread
from aioflow.api.queries import RunReader
from aioflow.api.schemas import iso
from aioflow.clock import Clock
from aioflow.errors import RequestError
from aioflow.model.history import (
    DAY_US,
    OF_RUN,
    HistoryRow,
    Measure,
    day_of,
    hour_of,
    percentile_ms,
)
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp, to_timestamp
from aioflow.store import Store

__all__ = (
    "USUAL_DAYS",
    "USUAL_US",
    "DagHistoryView",
    "DagStatsView",
    "DagsStatsView",
    "DurationView",
    "EndsView",
    "History",
    "PeriodView",
    "RunEndsView",
    "RunSpanView",
    "RunSpansView",
    "Span",
    "Step",
    "TaskHistoryView",
    "TaskStatsView",
    "Usual",
    "UsualView",
    "UsualsView",
    "history_faults",
    "period_start",
    "slow_after_ms",
)

Step = Literal["hour", "day"]

USUAL_DAYS = 30
"""Number of days whose durations determine the usual duration."""

_USUAL_RUNS = 10
"""Minimum number of successful runs of a DAG before a run can be slower than usual."""

USUAL_US = 60_000_000
"""How long usual durations are cached. They change only slowly."""

_SLOWER = 1.5
_LONGEST_US = 800 * DAY_US
SPANS_LIMIT = 2_000
FAILURES_LIMIT = 500


class Span(NamedTuple):
    """A period of the history, divided into hours or days.

    Attributes:
        zone: Days begin at midnight in this zone.
    """

    since: Timestamp
    until: Timestamp
    step: Step
    zone: tzinfo


class DurationView(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds. All are ``None`` if there are none.

    Attributes:
        count: Number of durations.
    """

    count: int
    mean: float | None
    p50: float | None
    p95: float | None


class EndsView(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of runs or tasks in a period.

    Attributes:
        ends: Number of ends by final state.
        failure_rate: Share of failed and partial ends among these and the successful ones; ``None``
            if there are none.
    """

    start: str
    ends: dict[str, int]
    failure_rate: float | None


class RunEndsView(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs ended in each state, by hour or day. Periods without ends are omitted."""

    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    step: str
    items: list[EndsView]
    next: str | None = None


class PeriodView(msgspec.Struct, frozen=True, kw_only=True):
    """An hour or day in the history of a DAG or task. See ``EndsView`` for the other fields.

    Attributes:
        duration: The time from start to end, of successes only.
        queue: The time until the start.
        wait: The time for which a task was deferred until its event. Empty for a DAG.
    """

    start: str
    ends: dict[str, int]
    failure_rate: float | None
    duration: DurationView
    queue: DurationView
    wait: DurationView


class DagHistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The history of the runs of a DAG.

    Attributes:
        total: The whole period.
        slow_after_seconds: A run that takes longer is slower than usual. ``None`` if there were
            fewer than 10 successful runs in the last 30 days.
    """

    dag_id: str
    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    step: str
    total: PeriodView
    slow_after_seconds: float | None
    items: list[PeriodView]
    next: str | None = None


class TaskStatsView(msgspec.Struct, frozen=True, kw_only=True):
    """A task of a DAG over a period; see ``PeriodView``."""

    task_id: str
    ends: dict[str, int]
    failure_rate: float | None
    duration: DurationView
    queue: DurationView
    wait: DurationView


class TaskHistoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a DAG over a period, sorted by mean duration, the longest first."""

    dag_id: str
    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    items: list[TaskStatsView]
    next: str | None = None


class DagStatsView(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of the runs of a DAG over a period."""

    dag_id: str
    ends: dict[str, int]
    failure_rate: float | None
    p50_seconds: float | None
    p95_seconds: float | None
    slow_after_seconds: float | None


class DagsStatsView(msgspec.Struct, frozen=True, kw_only=True):
    """The DAGs whose runs ended in a period, by id."""

    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    items: list[DagStatsView]
    next: str | None = None


class UsualView(msgspec.Struct, frozen=True, kw_only=True):
    """The usual duration of the runs of a DAG.

    Attributes:
        slow_after_seconds: A run that takes longer is slower than usual.
        median_seconds: The median of the successful runs.
    """

    dag_id: str
    slow_after_seconds: float
    median_seconds: float


class UsualsView(msgspec.Struct, frozen=True, kw_only=True):
    """The usual durations of all DAGs with at least 10 successful runs in the last 30 days."""

    items: list[UsualView]
    next: str | None = None


class RunSpanView(msgspec.Struct, frozen=True, kw_only=True):
    """A run on the timeline."""

    run_id: str
    dag_id: str
    state: str
    started_at: str | None
    ended_at: str | None


class RunSpansView(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a period, the latest first, up to a limit.

    Attributes:
        more: Whether older runs are omitted.
    """

    since: str = msgspec.field(name="from")
    until: str = msgspec.field(name="to")
    items: list[RunSpanView]
    more: bool
    next: str | None = None


def slow_after_ms(durations: Counter[int]) -> float | None:
    """Return the duration above which a run is slower than usual; ``None`` if too little is known.

    This is the 95th percentile of the successful runs, but at least one and a half times the
    median.
    """
    median, late = percentile_ms(durations, 0.5), percentile_ms(durations, 0.95)
    if median is None or late is None or durations.total() < _USUAL_RUNS:
        return None
    return max(late, _SLOWER * median)


class Usual(NamedTuple):
    """Durations of a DAG's successful runs in the last 30 days, in seconds.

    Attributes:
        slow_after: A run that takes longer is slower than usual.
    """

    median: float
    slow_after: float


class _Sums:
    """The sum of the history rows of one DAG or task."""

    def __init__(self) -> None:
        self.buckets: dict[int, Counter[int]] = {measure: Counter() for measure in Measure}
        self.totals: Counter[int] = Counter()

    def add(self, row: HistoryRow) -> None:
        if row.measure in self.buckets:
            self.buckets[row.measure][row.bucket] += row.occurrences
            self.totals[row.measure] += row.total_ms

    def spent(self, measure: Measure) -> DurationView:
        counts = self.buckets[measure]
        count = counts.total()
        return DurationView(
            count=count,
            mean=_seconds(self.totals[measure] / count) if count else None,
            p50=_seconds(percentile_ms(counts, 0.5)),
            p95=_seconds(percentile_ms(counts, 0.95)),
        )

    def ends(self, *, of_tasks: bool) -> dict[str, int]:
        name = _task_state if of_tasks else _run_state
        states = sorted(self.buckets[Measure.STATE].items())
        return {name(state): count for state, count in states if count}

    def period(self, start: Timestamp) -> PeriodView:
        ends = self.ends(of_tasks=False)
        return PeriodView(
            start=iso(start) or "",
            ends=ends,
            failure_rate=_failure_rate(ends),
            duration=self.spent(Measure.DURATION),
            queue=self.spent(Measure.QUEUE),
            wait=self.spent(Measure.WAIT),
        )


class History:
    """Queries of the history.

    Args:
        clock: Source of the current time.
    """

    def __init__(self, reader: RunReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._usual: tuple[Timestamp, dict[str, Usual]] | None = None

    def span(
        self, since: Timestamp | None, until: Timestamp | None, step: Step, zone: str | None
    ) -> Span:
        """Return a checked period; by default the last 24 hours, or 30 days if divided into days.

        Raises:
            RequestError: If it is empty, is longer than 800 days, or the zone is unknown.
        """
        end = self._clock.now() if until is None else until
        start = end - (30 * DAY_US if step == "day" else DAY_US) if since is None else since
        if not start < end:
            raise RequestError("the period is empty: `from` must be before `to`")
        if end - start > _LONGEST_US:
            raise RequestError("the period is longer than 800 days")
        return Span(hour_of(start), end, step, _zone(zone))

    async def runs(self, span: Span) -> RunEndsView:
        """Return the number of ended runs of all DAGs, by hour or day."""
        found = await self._store.count_run_ends(span.since, span.until)
        first, last = _edges(span)
        items = await in_thread(_ends_by_period, found, span)
        return RunEndsView(since=first, until=last, step=span.step, items=items)

    async def dags(self, span: Span) -> DagsStatsView:
        """Return all DAGs whose runs ended in a period."""
        ends: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for dag_id, state, count in await self._store.count_ends_by_dag(span.since, span.until):
            ends[dag_id][_run_state(state)] = count
        durations = await self._durations(span.since, span.until)
        usual = await self.usual_of_dags()
        items = [
            DagStatsView(
                dag_id=dag_id,
                ends=ends[dag_id],
                failure_rate=_failure_rate(ends[dag_id]),
                p50_seconds=_seconds(percentile_ms(durations[dag_id], 0.5)),
                p95_seconds=_seconds(percentile_ms(durations[dag_id], 0.95)),
                slow_after_seconds=_slow_after(usual.get(dag_id)),
            )
            for dag_id in sorted(ends)
        ]
        first, last = _edges(span)
        return DagsStatsView(since=first, until=last, items=items)

    async def usual_of_dags(self) -> dict[str, Usual]:
        """Return the usual durations of all DAGs for which they are known."""
        now = self._clock.now()
        if self._usual is not None and 0 <= now - self._usual[0] < USUAL_US:
            return self._usual[1]
        found = await self._durations(now - USUAL_DAYS * DAY_US, now)
        usual = {}
        for dag_id, durations in found.items():
            median, limit = percentile_ms(durations, 0.5), slow_after_ms(durations)
            if median is not None and limit is not None:
                usual[dag_id] = Usual(median / 1000, limit / 1000)
        self._usual = (now, usual)
        return usual

    async def usual(self) -> UsualsView:
        """Return the usual durations as a list; see ``usual_of_dags``."""
        return UsualsView(
            items=[
                UsualView(
                    dag_id=dag_id,
                    slow_after_seconds=usual.slow_after,
                    median_seconds=usual.median,
                )
                for dag_id, usual in sorted((await self.usual_of_dags()).items())
            ]
        )

    async def dag(self, dag_id: str, span: Span) -> DagHistoryView:
        """Return the history of the runs of a DAG.

        Raises:
            UnknownDag: If there is no such DAG.
        """
        await self._reader.dag_row(dag_id)
        rows = await self._store.list_history(dag_id, since=span.since, until=span.until)
        total, items = await in_thread(_periods, rows, span)
        usual = await self.usual_of_dags()
        first, last = _edges(span)
        return DagHistoryView(
            dag_id=dag_id,
            since=first,
            until=last,
            step=span.step,
            total=total,
            slow_after_seconds=_slow_after(usual.get(dag_id)),
            items=items,
        )

    async def failures(self, dag_id: str, span: Span) -> RunSpansView:
        """Return the runs of a DAG that ended failed or partial, with how long each took.

        These are the runs that are stored. The counts of a period remain after its runs.

        Raises:
            UnknownDag: If there is no such DAG.
        """
        await self._reader.dag_row(dag_id)
        found = await self._store.list_failed_runs(
            dag_id, span.since, span.until, limit=FAILURES_LIMIT + 1
        )
        return _spans(found, span, FAILURES_LIMIT)

    async def tasks(self, dag_id: str, span: Span) -> TaskHistoryView:
        """Return the tasks of a DAG over a period.

        Raises:
            UnknownDag: If there is no such DAG.
        """
        await self._reader.dag_row(dag_id)
        rows = await self._store.sum_history_by_task(dag_id, since=span.since, until=span.until)
        items = await in_thread(_tasks_stats, rows)
        first, last = _edges(span)
        return TaskHistoryView(dag_id=dag_id, since=first, until=last, items=items)

    async def timeline(self, span: Span) -> RunSpansView:
        """Return the runs that were active in a period."""
        found = await self._store.list_runs_between(span.since, span.until, limit=SPANS_LIMIT + 1)
        return _spans(found, span, SPANS_LIMIT)

    @property
    def _store(self) -> Store:
        return self._reader.store

    async def _durations(
        self, since: Timestamp, until: Timestamp
    ) -> defaultdict[str, Counter[int]]:
        durations: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for dag_id, bucket, count in await self._store.count_durations_by_dag(since, until):
            durations[dag_id][bucket] = count
        return durations


def _spans(found: Sequence[RunRow], span: Span, limit: int) -> RunSpansView:
    first, last = _edges(span)
    return RunSpansView(
        since=first,
        until=last,
        more=len(found) > limit,
        items=[
            RunSpanView(
                run_id=row.run_id,
                dag_id=row.dag_id,
                state=row.state.label,
                started_at=iso(row.started_at),
                ended_at=iso(row.ended_at),
            )
            for row in found[:limit]
        ],
    )


def _slow_after(usual: Usual | None) -> float | None:
    return None if usual is None else usual.slow_after


def _zone(name: str | None) -> tzinfo:
    if name is None or name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as exc:
        raise RequestError(f"the time zone {name[:60]!r} is unknown") from exc


def _ends_by_period(found: Iterable[tuple[Timestamp, int, int]], span: Span) -> list[EndsView]:
    period_of = cache(partial(period_start, span=span))
    states: defaultdict[Timestamp, Counter[int]] = defaultdict(Counter)
    for start, state, count in found:
        states[period_of(start)][state] += count
    items = []
    for start in sorted(states):
        ends = {_run_state(state): n for state, n in sorted(states[start].items())}
        items.append(EndsView(start=iso(start) or "", ends=ends, failure_rate=_failure_rate(ends)))
    return items


def period_start(start: Timestamp, span: Span) -> Timestamp:
    """Return the start of the hour or day that contains the hour ``start``."""
    if span.step == "hour":
        return start
    if span.zone is UTC:
        return day_of(start)
    local = datetime.fromtimestamp(start / 1e6, UTC).astimezone(span.zone)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0)
    return to_timestamp(midnight.astimezone(UTC))


def _periods(rows: Iterable[HistoryRow], span: Span) -> tuple[PeriodView, list[PeriodView]]:
    """Return the sums of a whole period, and those of each hour or day in it."""
    total = _Sums()
    parts: defaultdict[Timestamp, _Sums] = defaultdict(_Sums)
    period_of = cache(partial(period_start, span=span))
    for row in rows:
        total.add(row)
        parts[period_of(row.start)].add(row)
    return total.period(span.since), [parts[start].period(start) for start in sorted(parts)]


def _tasks_stats(rows: Iterable[HistoryRow]) -> list[TaskStatsView]:
    """Return the tasks of a DAG, sorted by mean duration, the longest first."""
    sums: defaultdict[str, _Sums] = defaultdict(_Sums)
    for row in rows:
        if row.task_id != OF_RUN:
            sums[row.task_id].add(row)
    items = [_task_stats(task_id, sums[task_id]) for task_id in sorted(sums)]
    return sorted(items, key=lambda one: -(one.duration.mean or 0))


def _task_stats(task_id: str, sums: _Sums) -> TaskStatsView:
    ends = sums.ends(of_tasks=True)
    return TaskStatsView(
        task_id=task_id,
        ends=ends,
        failure_rate=_failure_rate(ends),
        duration=sums.spent(Measure.DURATION),
        queue=sums.spent(Measure.QUEUE),
        wait=sums.spent(Measure.WAIT),
    )


def _run_state(state: int) -> str:
    try:
        return RunState(state).label
    except ValueError:
        return str(state)


def _task_state(state: int) -> str:
    try:
        return TaskState(state).label
    except ValueError:
        return str(state)


def _failure_rate(ends: dict[str, int]) -> float | None:
    failed = ends.get("failed", 0) + ends.get("partial", 0)
    total = failed + ends.get("success", 0)
    return round(failed / total, 4) if total else None


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1000, 4)


def _edges(span: Span) -> tuple[str, str]:
    return iso(span.since) or "", iso(span.until) or ""


async def history_faults(store: Store) -> Sequence[str]:
    """Return a message wherever the history counts fewer runs than have ended."""
    return [
        f"history of {dag_id}: {ended} runs ended {RunState(state).label} on {iso(day)}, "
        f"but {counted} are counted"
        for dag_id, day, state, ended, counted in await store.find_uncounted_ends()
        if state in set(RunState)
    ]
