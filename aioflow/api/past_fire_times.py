"""Fire times in the past: which runs they started, which were late, and which were missed."""

from __future__ import annotations

from typing import cast

import msgspec

from aioflow._threads import in_thread
from aioflow.api.page.queries import merged_fire_times
from aioflow.api.queries import RunReader
from aioflow.api.schemas import iso, run_state_name
from aioflow.model.rows import RunRow
from aioflow.model.timestamps import Timestamp

__all__ = ("LATE_SECONDS", "FireTimesView", "PastFireTimeView", "past_fire_times")

LATE_SECONDS = 60
"""How long after its fire time a run must start to be late."""

_RUNS = 2_000


class PastFireTimeView(msgspec.Struct, frozen=True, kw_only=True):
    """A fire time in the past.

    Attributes:
        run_id, state, started_at: The run that it started; ``None`` if it was missed.
        late_seconds: How late the run started; ``None`` if it was on time, or has not started.
        is_missed: Whether it started no run. Fire times before the first run in the period do not
            count, because the schedule may not have existed.
    """

    dag_id: str
    at: str
    run_id: str | None
    state: str | None
    started_at: str | None
    late_seconds: float | None
    is_missed: bool


class FireTimesView(msgspec.Struct, frozen=True, kw_only=True):
    """Past fire times by time.

    Attributes:
        more: Whether further fire times were left out.
    """

    items: list[PastFireTimeView]
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


def _started(run: RunRow) -> PastFireTimeView:
    late = None
    if run.started_at is not None and run.logical_date is not None:
        seconds = (run.started_at - run.logical_date) / 1e6
        late = round(seconds, 3) if seconds > LATE_SECONDS else None
    return PastFireTimeView(
        dag_id=run.dag_id,
        at=iso(run.logical_date) or "",
        run_id=run.run_id,
        state=run_state_name(run),
        started_at=iso(run.started_at),
        late_seconds=late,
        is_missed=False,
    )


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
