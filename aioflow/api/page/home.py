"""The home page: runs in flight, and DAGs that need attention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from aioflow.api.decisions import DecisionView
from aioflow.api.page.history import History, Usual
from aioflow.api.page.schemas import ImportErrorView, PoolView
from aioflow.api.queries import RunReader
from aioflow.api.schemas import ErrorView, RunSummary, iso, run_state_name
from aioflow.api.waits.longest import newest_failures
from aioflow.clock import Clock
from aioflow.model.history import DAY_US
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState
from aioflow.model.timestamps import Timestamp

__all__ = ("NAMED", "AttentionView", "HomeView", "InFlightView", "by_pressure", "home")

_SHOWN = 12
NAMED = 3
"""Maximum number of decisions, and of broken files, in the response."""

_LOOKED_AT = 200
"""Number of the newest unsuccessful runs, per state, that are grouped by DAG."""


class InFlightView(msgspec.Struct, frozen=True, kw_only=True):
    """A run in flight.

    Attributes:
        counts: Number of its tasks by state.
        slow_after_seconds: The duration above which the run is slower than usual, if known.
        usual_seconds: The median duration of the DAG's runs in the last 30 days, if known.
    """

    run: RunSummary
    counts: dict[str, int]
    slow_after_seconds: float | None
    usual_seconds: float | None = None


class AttentionView(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG with runs that failed in the last 24 hours, or were partly successful.

    Attributes:
        count: The number of these runs.
        last: The last of these runs to end.
        error: The error of the task of ``last`` that failed first.
        since: When the first of these runs ended.
        is_recovered: Whether a run of the DAG has succeeded since.
    """

    dag_id: str
    count: int
    state: str
    last: RunSummary
    error: ErrorView | None
    since: str | None
    is_recovered: bool


class HomeView(msgspec.Struct, frozen=True, kw_only=True):
    """Runs in flight, the newest first, and DAGs that need attention, the latest failure first.

    Attributes:
        pools: The pools, those with the longest queue relative to their size first.
        decisions: The newest open decisions, at most ``NAMED``.
        import_errors: The first files that cannot be imported, at most ``NAMED``.
    """

    in_flight: list[InFlightView]
    attention: list[AttentionView]
    pools: list[PoolView]
    decisions: Sequence[DecisionView]
    import_errors: Sequence[ImportErrorView]


async def home(
    reader: RunReader,
    history: History,
    clock: Clock,
    *,
    pools: list[PoolView],
    decisions: Sequence[DecisionView],
    import_errors: Sequence[ImportErrorView],
) -> HomeView:
    """Return the content of the home page."""
    live = await reader.store.list_runs(state=RunState.RUNNING, limit=_SHOWN)
    counts = await reader.counts(live)
    usual = await history.usual_of_dags()
    return HomeView(
        in_flight=[
            _in_flight(run, count, usual.get(run.dag_id))
            for run, count in zip(await reader.summaries(live), counts, strict=True)
        ],
        attention=await _attention(reader, clock.now() - DAY_US),
        pools=by_pressure(pools),
        decisions=decisions,
        import_errors=import_errors,
    )


def by_pressure(pools: Sequence[PoolView]) -> list[PoolView]:
    """Return pools sorted by the ratio of queued to total slots, then by the ratio of used ones."""

    def pressure(pool: PoolView) -> tuple[float, float, str]:
        slots = max(pool.slots, 1)
        return -(pool.queued or 0) / slots, -(pool.used or 0) / slots, pool.name

    return sorted(pools, key=pressure)


def _in_flight(run: RunSummary, counts: dict[str, int], usual: Usual | None) -> InFlightView:
    return InFlightView(
        run=run,
        counts=counts,
        slow_after_seconds=None if usual is None else usual.slow_after,
        usual_seconds=None if usual is None else usual.median,
    )


async def _attention(reader: RunReader, since: Timestamp) -> list[AttentionView]:
    found: defaultdict[str, list[RunRow]] = defaultdict(list)
    for run in await newest_failures(reader.store, per_state=_LOOKED_AT):
        if run.ended_at is not None and run.ended_at >= since:
            found[run.dag_id].append(run)
    groups = []
    for dag_id, runs in found.items():  # by their last failure, the latest first
        newest = await reader.store.newest_ended_run(dag_id)
        groups.append((newest is not None and newest.state is RunState.SUCCESS, runs))
    groups.sort(key=lambda group: group[0])
    del groups[_SHOWN:]
    last = await reader.summaries([runs[0] for _, runs in groups])
    return [
        AttentionView(
            dag_id=runs[0].dag_id,
            count=len(runs),
            state=run_state_name(runs[0]),
            last=summary,
            error=await reader.first_error(runs[0]),
            since=iso(runs[-1].ended_at),
            is_recovered=is_recovered,
        )
        for (is_recovered, runs), summary in zip(groups, last, strict=True)
    ]
