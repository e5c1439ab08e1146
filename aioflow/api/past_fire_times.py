"""Past fire times: the runs that they started, which of these were late, and missed fire times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

import msgspec

from aioflow._threads import in_thread
from aioflow.api.page.history import Span, period_start
from aioflow.api.page.queries import merged_fire_times, next_fire_time
from aioflow.api.queries import RunReader
from aioflow.api.schemas import iso, run_state_name
from aioflow.model.dag import DagSpec
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "LATE_SECONDS",
    "FireDayView",
    "FireDaysView",
    "FireTimesView",
    "PastFireTimeView",
    "days_of",
    "fire_days",
    "past_fire_times",
)

LATE_SECONDS = 60
"""The number of seconds after its fire time from which a run counts as late."""

_RUNS = 2_000
_RUNS_OF_DAG = 5_000
_FAILED = frozenset({RunState.FAILED, RunState.PARTIAL})


class PastFireTimeView(msgspec.Struct, frozen=True, kw_only=True):
    """A fire time in the past.

    Attributes:
        run_id, state, started_at: The run that the fire time started; ``None`` if it was missed.
        late_seconds: How late the run started; ``None`` if it was on time, or has not started.
        is_missed: Whether the fire time started no run. Fire times before the first run in the
            period do not count as missed, because the schedule may not have existed.
    """

    dag_id: str
    at: str
    run_id: str | None
    state: str | None
    started_at: str | None
    late_seconds: float | None
    is_missed: bool


class FireTimesView(msgspec.Struct, frozen=True, kw_only=True):
    """Past fire times in chronological order.

    Attributes:
        more: Whether further fire times were left out.
    """

    items: list[PastFireTimeView]
    more: bool
    next: str | None = None


class FireDayView(msgspec.Struct, frozen=True, kw_only=True):
    """The fire times of a day.

    Attributes:
        start: Midnight in the requested time zone.
        fired: Number of fire times that started a run.
        failed: Number of these runs that failed, completely or in part.
        late: Number of these runs that started more than a minute late.
        missed: Number of fire times that started no run.
    """

    start: str
    fired: int
    failed: int
    late: int
    missed: int


class FireDaysView(msgspec.Struct, frozen=True, kw_only=True):
    """The fire times of a DAG by day. Days without fire times are omitted.

    Attributes:
        more: Whether earlier days were left out, because there are too many runs.
    """

    dag_id: str
    items: list[FireDayView]
    more: bool
    next: str | None = None


async def past_fire_times(reader: RunReader, since: Timestamp, until: Timestamp) -> FireTimesView:
    """Return the fire times of a period with the runs that they started."""
    found = await reader.store.list_scheduled_runs(since, until, limit=_RUNS + 1)
    items = [_started(run) for run in found[:_RUNS]]
    known = await reader.catalogue.known()
    first: dict[str, Timestamp] = {}
    fired: set[tuple[str, Timestamp]] = set()
    for run in found:
        at = cast("Timestamp", run.logical_date)
        first[run.dag_id] = min(at, first.get(run.dag_id, at))
        fired.add((run.dag_id, at))
    rows = [row for dag_id in first if (row := known.dags.get(dag_id)) is not None]
    specs = {row.dag_id: await reader.known_spec(row.version, row.dag_id) for row in rows}
    begins = {dag_id: at for dag_id, at in first.items() if dag_id in specs}
    expected = await in_thread(merged_fire_times, begins, specs, since, until)
    items.extend(_missed(dag_id, at) for at, dag_id in expected if (dag_id, at) not in fired)
    items.sort(key=lambda item: item.at)
    return FireTimesView(items=items, more=len(found) > _RUNS)


async def fire_days(reader: RunReader, dag_id: str, span: Span) -> FireDaysView:
    """Return the fire times of a DAG in a period by day.

    Raises:
        UnknownDag: If there is no such DAG.
    """
    row = await reader.dag_row(dag_id)
    spec = await reader.known_spec(row.version, dag_id)
    limit = _RUNS_OF_DAG + 1
    runs = await reader.store.list_scheduled_runs(
        span.since, span.until, limit=limit, dag_id=dag_id
    )
    items = await in_thread(days_of, runs[:_RUNS_OF_DAG], spec, span)
    return FireDaysView(dag_id=dag_id, items=items, more=len(runs) == limit)


def days_of(runs: Sequence[RunRow], spec: DagSpec, span: Span) -> list[FireDayView]:
    """Return the days with fire times. Fire times before the first run do not count as missed."""
    dates = {cast("Timestamp", run.logical_date): run for run in runs}
    fired, failed, late, missed = (Counter[Timestamp]() for _ in range(4))
    for at, run in dates.items():
        day = period_start(at, span)
        fired[day] += 1
        failed[day] += run.state in _FAILED
        late[day] += _late_seconds(run) is not None
    due = min(dates, default=None)
    for _ in range(_RUNS_OF_DAG):
        if due is None or due >= span.until:
            break
        if due not in dates:
            missed[period_start(due, span)] += 1
        due = next_fire_time(spec, due)
    return [
        FireDayView(
            start=iso(day) or "",
            fired=fired[day],
            failed=failed[day],
            late=late[day],
            missed=missed[day],
        )
        for day in sorted({*fired, *missed})
    ]


def _started(run: RunRow) -> PastFireTimeView:
    return PastFireTimeView(
        dag_id=run.dag_id,
        at=iso(run.logical_date) or "",
        run_id=run.run_id,
        state=run_state_name(run),
        started_at=iso(run.started_at),
        late_seconds=_late_seconds(run),
        is_missed=False,
    )


def _late_seconds(run: RunRow) -> float | None:
    """Return how late a run started, in seconds; ``None`` if it was not late."""
    if run.started_at is None or run.logical_date is None:
        return None
    seconds = (run.started_at - run.logical_date) / 1e6
    return round(seconds, 3) if seconds > LATE_SECONDS else None


def _missed(dag_id: str, at: Timestamp) -> PastFireTimeView:
    return PastFireTimeView(
        dag_id=dag_id,
        at=iso(at) or "",
        run_id=None,
        state=None,
        started_at=None,
        late_seconds=None,
        is_missed=True,
    )
