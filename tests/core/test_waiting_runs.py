"""A run only waits if some of its tasks wait, and none of them runs or is queued for a slot."""

from __future__ import annotations

import pytest

from aioflow.core.runs.task_counts import counted, only_waits, waiting_runs
from aioflow.model.dag import MapSource, MapSpec, RetryPolicy, SensorSpec, TaskSpec
from aioflow.model.states import TaskState
from aioflow.protocol.reports import Deferred, SensorNotReady
from aioflow.protocol.requests import CancelRun, SetPool
from tests.core.specs import task
from tests.core.world import SECOND, World

LATER = RetryPolicy(tries=2, delay_us=60 * SECOND)
SENSOR = SensorSpec(interval_us=60 * SECOND, timeout_us=600 * SECOND)


def defer(world: World, name: str, map_index: int = -1) -> None:
    effect = world.started(name, map_index)
    assert effect is not None
    start = world.starts.pop(effect.start.task_no).start
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, "m:T", b"\x80", "after"))


def finds_nothing(world: World, name: str) -> None:
    effect = world.started(name)
    assert effect is not None
    start = world.starts.pop(effect.start.task_no).start
    world.turn(SensorNotReady(start.task_no, start.start_no, world.now, world.now))


def waits(world: World, run: int) -> bool:
    """Return whether a run only waits. Check that the task counts agree."""
    found = run in waiting_runs(world.memory, [run])
    live = world.memory.runs.peek(run)
    states = {state for _, state, _ in counted(live)}
    busy = states & {TaskState.RUNNING, TaskState.QUEUED}
    some = states & {TaskState.SENSING, TaskState.DEFERRED, TaskState.RETRYING}
    assert found == only_waits(live) == (bool(some) and not busy)
    return found


def test_a_run_whose_tasks_run_does_not_wait():
    world = World(cpu_slots=2)
    run = world.begin(task("a"), task("b"))
    defer(world, "a")

    assert not waits(world, run)
    defer(world, "b")
    assert waits(world, run)


def test_a_task_that_is_queued_for_a_slot_is_work_to_come():
    world = World(cpu_slots=2)
    world.ask(SetPool(name="desk", slots=1, include_deferred=True))
    run = world.begin(task("a", pool="desk"), task("b", pool="desk"))
    defer(world, "a")

    assert not waits(world, run), "b could run, and has no slot"


@pytest.mark.parametrize("slots", [3, 2], ids=["all-wait", "one-is-queued"])
def test_children_that_are_queued_are_work_to_come(slots):
    world = World(cpu_slots=9)
    world.ask(SetPool(name="desk", slots=slots, include_deferred=True))
    each = MapSpec((MapSource("x", -1, 3),))
    run = world.begin(TaskSpec(task_id="each", mapped=each, pool="desk"), task("after", 0))
    for index in range(slots):
        defer(world, "each", index)

    assert waits(world, run) is (slots == 3)


def test_retries_and_sensors_wait():
    world = World(cpu_slots=2)
    run = world.begin(task("again", retry=LATER), task("look", sensor=SENSOR))
    world.fail("again")
    assert not waits(world, run)
    finds_nothing(world, "look")

    assert waits(world, run)


def test_a_packed_run_waits_and_stays_packed():
    world = World()
    run = world.begin(task("a"), task("b", 0))
    defer(world, "a")

    assert run in world.memory.runs.packed_numbers()
    assert waits(world, run)
    assert run in world.memory.runs.packed_numbers()


def test_runs_that_are_queued_or_have_ended_do_not_wait():
    world = World()
    run = world.begin(task("a"), max_active_runs=1)
    queued = world.trigger()
    defer(world, "a")

    assert waiting_runs(world.memory, [run, queued, 10**9]) == {run}
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
    assert run not in waiting_runs(world.memory, [run])
