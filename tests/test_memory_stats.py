"""Statistics of the memory are correct, and never block the loop for long."""

from __future__ import annotations

import anyio

from aioflow.api import metrics
from aioflow.api.metrics import MemoryStatsCollector
from aioflow.clock import SystemClock
from aioflow.core.state.task_instance import TaskInstance
from aioflow.model.dag import Body, DagSpec, MapSource, MapSpec, SensorSpec, TaskSpec
from aioflow.model.states import TaskState
from tests.web.node import CHAIN, ONCE, node

POOLED = DagSpec(
    dag_id="pooled",
    file="pooled.py",
    tasks=(
        TaskSpec(task_id="list", feeds_limit=50_000),
        TaskSpec(
            task_id="each",
            parents=(0,),
            retry=ONCE,
            pool="tight",
            mapped=MapSpec((MapSource("item", 0, -1),)),
        ),
    ),
)


SENSOR = SensorSpec(interval_us=60_000_000)
LOOKS = DagSpec(
    dag_id="looks",
    file="looks.py",
    tasks=(TaskSpec(task_id="there", body=Body.COROUTINE, sensor=SENSOR),),
)


class Slow(SystemClock):
    """A clock that advances by ``step_us`` at each reading."""

    def __init__(self, step_us: int) -> None:
        self.step_us = step_us
        self.at_us = 0

    def monotonic_us(self) -> int:
        self.at_us += self.step_us
        return self.at_us


async def test_waiting_tasks_are_counted_by_pool_with_undrawn_children(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN, POOLED)
        await n.api.set_pool("tight", 2)
        await n.api.trigger("pooled")
        await n.succeed(width=2_500)
        while len(n.effects.starts) < 2:
            await n.engine.next_turn()
        await n.api.trigger("chain")
        await n.api.trigger("chain")
        found = await MemoryStatsCollector(SystemClock(), n.engine).collect()

    assert found.queued == {"tight": 2_498, "default": 2}
    assert found.states == {"running": 2, "queued": 2_500}
    assert len(found.oldest) == 2


async def test_a_cancelled_run_waits_for_nothing(tmp_path):
    async with node(tmp_path) as n:
        n.define(POOLED)
        await n.api.set_pool("tight", 2)
        run = await n.api.trigger("pooled")
        await n.succeed(width=100)
        await n.api.cancel(run.run_id)
        found = await MemoryStatsCollector(SystemClock(), n.engine).collect()

    assert found.queued.total() == 0
    assert found.oldest == []


async def test_deferred_tasks_are_counted_by_kind_packed_or_not(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        for path in ("aioflow_triggers.files:FileTrigger", "mine:Own", "mine:Own"):
            await n.api.trigger("chain")
            await n.defer(path, {})
        await n.api.list_pools()
        found = await MemoryStatsCollector(SystemClock(), n.engine).collect()

    assert found.deferred == {"file": 1, "Own": 2}
    assert found.states == {TaskState.DEFERRED.label: 3}


async def test_a_sensor_that_looks_waits_like_what_is_deferred_and_is_among_the_oldest(tmp_path):
    async with node(tmp_path) as n:
        n.define(LOOKS)
        run = await n.api.trigger("looks")
        await n.effects.next_start()
        shown = await n.api.reads.overview("ready")
        gathered = await n.api.metrics()

    assert shown.states == {"sensing": 1}
    (waits,) = shown.waiting_longest
    assert (waits.run_id, waits.task_id, waits.state) == (run.run_id, "there", "sensing")
    assert gathered.tasks_sensing == 1


async def test_others_have_the_loop_between_slices(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "_SLICE", 10)
    async with node(tmp_path) as n, anyio.create_task_group() as group:
        n.define(CHAIN)
        await n.api.trigger("chain")
        live = next(iter(n.engine.memory.active_tasks.objects.values()))
        n.engine.memory.active_tasks.objects.update((-no, live) for no in range(1, 95))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        group.start_soon(others)
        await anyio.lowlevel.checkpoint()
        found = await MemoryStatsCollector(SystemClock(), n.engine).collect()
        group.cancel_scope.cancel()

    assert found.states == {live.state.label: 95}
    assert turns >= 10


async def test_slow_statistics_are_reused_for_a_while_and_fast_ones_are_collected_again(
    tmp_path,
):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.trigger("chain")
        clock = Slow(10)
        eyes = MemoryStatsCollector(clock, n.engine)
        assert await eyes.collect() is not await eyes.collect()

        clock.step_us = 5_000
        first = await eyes.collect()
        assert await eyes.collect() is first
        clock.at_us += 50 * 5 * 5_000
        assert await eyes.collect() is not first
        assert all(isinstance(live, TaskInstance) for _, _, live in first.oldest)
