"""The next fire times of all schedules."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from aioflow._threads import in_thread
from aioflow.api.page_schemas import StartView
from aioflow.api.queries import RunReader
from aioflow.api.schedule_texts import schedule_text
from aioflow.api.schemas import iso
from aioflow.core.scheduling import timetable
from aioflow.model.dag import DagSpec
from aioflow.model.timestamps import Timestamp

__all__ = ("STARTS", "upcoming")

STARTS = 500
"""Maximum number in a response."""

_PER_DAG = 100
"""Limit for one DAG, so that a DAG that fires every second does not crowd out others."""


async def upcoming(reader: RunReader, *, after: Timestamp, until: Timestamp) -> list[StartView]:
    """Return the next fire times of DAGs that are not paused, the earliest first.

    For a custom timetable that is the fire time it waits for; no others are requested.
    """
    known = await reader.catalogue.known()
    own = {} if reader.timetables is None else reader.timetables.expected()
    begins = {
        row.dag_id: at
        for row in known.dags.values()
        if not row.paused
        and not row.gone
        and (at := own.get(row.dag_id, row.next_run_at)) is not None
    }
    first = [(max(at, after), dag_id) for dag_id, at in begins.items()]
    soon = heapq.nsmallest(STARTS, (one for one in first if one[0] <= until))
    chosen = [known.dags[dag_id] for _, dag_id in soon]
    specs = {row.dag_id: await reader.known_spec(row.version, row.dag_id) for row in chosen}
    return await in_thread(_starts, begins, specs, after, until)


def _starts(
    begins: Mapping[str, Timestamp],
    specs: Mapping[str, DagSpec],
    after: Timestamp,
    until: Timestamp,
) -> list[StartView]:
    queue: list[tuple[Timestamp, str]] = []
    for dag_id, spec in specs.items():
        at: Timestamp | None = begins[dag_id]
        if at is not None and at < after:
            at = _next(spec, after - 1)
        if at is not None and at <= until:
            queue.append((at, dag_id))
    heapq.heapify(queue)
    found: list[StartView] = []
    counts: dict[str, int] = {}
    while queue and len(found) < STARTS:
        at, dag_id = heapq.heappop(queue)
        spec = specs[dag_id]
        text, zone = schedule_text(spec), spec.timezone
        found.append(StartView(dag_id=dag_id, at=iso(at) or "", schedule=text, timezone=zone))
        counts[dag_id] = counts.get(dag_id, 0) + 1
        later = _next(spec, at) if counts[dag_id] < _PER_DAG else None
        if later is not None and later <= until:
            heapq.heappush(queue, (later, dag_id))
    return found


def _next(spec: DagSpec, after: Timestamp) -> Timestamp | None:
    """Return the next fire time after a timestamp; ``None`` if it is unknown or there is none."""
    schedule = spec.schedule
    if schedule is None or schedule.once or schedule.gap_us is not None:
        return None
    at = timetable.next_slot(schedule, spec.timezone, after=after)
    return None if at is None or (spec.end_date is not None and at > spec.end_date) else at
