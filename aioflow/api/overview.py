"""The overview page: health of a node, longest waits, and failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version

from aioflow.api.dags import import_errors
from aioflow.api.memory_stats import WAITING, MemoryStats, MemoryStatsCollector
from aioflow.api.page_schemas import OverviewView, SlotView, WaitingView
from aioflow.api.queries import RunReader
from aioflow.api.schemas import summary
from aioflow.api.trigger_stats import Fires
from aioflow.api.wait_views import wait_view
from aioflow.clock import Clock
from aioflow.engine.loop import Engine
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp

__all__ = ("Overview",)

_DAY_US = 86_400_000_000
_SHOWN = 10


class Overview:
    """Summarizes the state of a node.

    Args:
        engine: The engine of this node.
        looking: Collects statistics of its memory.
        lag_seconds: Returns the recent delay of its event loop.
    """

    def __init__(
        self,
        reader: RunReader,
        clock: Clock,
        fires: Fires,
        engine: Engine,
        *,
        began_us: int,
        looking: MemoryStatsCollector,
        lag_seconds: Callable[[], float],
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._fires = fires
        self._engine = engine
        self._began_us = began_us
        self._memory_stats = looking
        self._lag_seconds = lag_seconds

    async def show(self, status: str) -> OverviewView:
        """Return the overview."""
        engine, slots, store = self._engine, self._engine.slots, self._reader.store
        stats = await self._memory_stats.collect()
        failed = await store.list_runs(state=RunState.FAILED, limit=_SHOWN)
        known = await self._reader.catalogue.known()
        used = sum(not worker.is_idle for worker in slots.workers)
        return OverviewView(
            status=status,
            version=version("aioflow-engine"),
            uptime_seconds=(self._clock.monotonic_us() - self._began_us) / 1e6,
            is_store_away=engine.store_away_since is not None,
            live_runs=len(engine.memory.runs),
            states=dict(sorted(stats.states.items())),
            slots={
                "def": SlotView(all=len(slots.workers), used=used),
                "async": SlotView(all=slots.coroutines, used=slots.running_coroutines),
            },
            parked=dict(sorted(stats.parked.items())),
            failed_24h=await store.count_failed_since(self._clock.now() - _DAY_US),
            import_errors=len(import_errors(known)),
            loop_lag_seconds=self._lag_seconds(),
            fires_per_second=round(sum(self._fires.per_second().values()), 3),
            waiting_longest=await self._longest(stats, engine.memory.shift),
            damaged=(await self._reader.damaged())[:_SHOWN],
            failed_runs=[summary(row, store.damages.of_run(row.run_no)) for row in failed],
        )

    async def _longest(self, stats: MemoryStats, shift: int) -> list[WaitingView]:
        """Return the longest waits: deferred and queued tasks, and polling sensors.

        Args:
            shift: Offset of the wall clock to steady time, which trigger rows use.
        """
        store = self._reader.store
        rows = await store.list_triggers(limit=_SHOWN)
        others = [one for one in stats.oldest if one[2].state in WAITING]
        numbers = [row.run_no for row in rows] + [live.run.run_no for _, _, live in others]
        runs = await store.find_runs_by_no(numbers)
        places: list[tuple[Timestamp, RunRow, int, int, str]] = []
        for row in rows:
            run = runs.get(row.run_no)
            place = None if run is None else (await self._reader.layout(run)).find(row.task_no)
            if run is not None and place is not None:
                state = TaskState.DEFERRED.label
                since = row.since + shift
                places.append((since, run, place.position, place.map_index, state))
        for since, _, live in others:
            run = runs.get(live.run.run_no)
            if run is not None:
                places.append((since, run, live.position, live.map_index, live.state.label))
        places.sort(key=lambda one: one[0])
        return await self._views(places[:_SHOWN])

    async def _views(
        self, places: list[tuple[Timestamp, RunRow, int, int, str]]
    ) -> list[WaitingView]:
        of_run: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        runs = {run.run_no: run for _, run, _, _, _ in places}
        for _, run, position, map_index, _ in places:
            of_run[run.run_no].append((position, map_index))
        waits = {
            (run_no, *place): wait
            for run_no, wanted in of_run.items()
            for place, wait in (await self._reader.waits(runs[run_no], wanted)).items()
        }
        found = []
        for _, run, position, map_index, state in places:
            spec = await self._reader.known_spec(run.version, run.dag_id)
            if position >= len(spec.tasks):
                continue
            mapped = spec.tasks[position].mapped
            is_loop = mapped is not None and mapped.until >= 0
            found.append(
                WaitingView(
                    run_id=run.run_id,
                    dag_id=run.dag_id,
                    task_id=spec.tasks[position].task_id,
                    map_index=-1 if is_loop else map_index,
                    round=max(map_index, 0) if is_loop else 0,
                    state=state,
                    waiting_on=wait_view(waits.get((run.run_no, position, map_index))),
                )
            )
        return found
