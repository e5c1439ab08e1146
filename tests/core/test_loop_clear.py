"""A loop is cleared as a whole, in slices. It continues whatever happens between two slices."""

from __future__ import annotations

import random

import pytest

from aioflow.core.repair import execution
from aioflow.core.runs.restore import restore_run
from aioflow.core.state.memory import Memory
from aioflow.model.dag import MapSource, MapSpec
from aioflow.model.states import TaskState, TriggerRule
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.reports import Succeeded
from aioflow.protocol.requests import CancelRun, ClearTasks
from tests.core.test_clear_slices import Sliced
from tests.core.test_iterations import begin, go_round, inside, loop, task
from tests.core.world import World
from tests.sampling import seeds

R = TriggerRule
NAMES = ("try", "check", "until")


def clear(world: World, run: int, *tasks: str, downstream: bool = False) -> int:
    """Clear tasks of the loop. Return how many tasks were reset."""
    run_id = world.rows.runs[run].run_id
    cleared, _ = world.ask(ClearTasks(run_id=run_id, tasks=tasks, downstream=downstream))
    return cleared


def ended(*tasks, rounds: int = 3) -> tuple[World, int]:
    """Return a run whose loop ended after ``rounds`` iterations."""
    world, run = begin(*(tasks or loop(map_limit=9)))
    for number in range(rounds):
        go_round(world, again=number + 1 < rounds)
    world.finish_all()
    assert world.run_state(run) == "success"
    return world, run


def open_widths(world: World) -> set[int]:
    return {row.width for row in world.rows.expansions.values()}


@pytest.mark.parametrize("name", NAMES)
def test_whichever_of_its_tasks_is_cleared_the_whole_loop_is(name):
    world, run = ended()

    assert clear(world, run, name) == 9

    assert [world.started("try", index) is not None for index in range(3)] == [True, False, False]
    for again in (True, False):
        go_round(world, again=again)
    world.finish_all()
    assert open_widths(world) == {2}
    assert world.run_state(run) == "success"


def test_an_active_loop_is_stopped_and_starts_over():
    world, run = begin(*loop(map_limit=9))
    for _ in range(3):
        go_round(world, again=True)
    late = world.started("try", 3)
    assert late is not None

    clear(world, run, "check")
    world.turn(
        Succeeded(late.start.task_no, late.start.start_no, world.now, world.now + 50, again=True)
    )

    assert world.started("try", 0)
    assert not world.started("check", 0)
    go_round(world, again=False)
    world.finish_all()
    assert world.run_state(run) == "success"
    assert open_widths(world) == {1}


def test_downstream_tasks_are_cleared_on_request():
    world, run = ended()

    clear(world, run, "check")
    go_round(world, again=False)
    assert not world.started("after")
    assert world.run_state(run) == "success"

    clear(world, run, "check", downstream=True)
    go_round(world, again=False)
    assert world.started("after")


def test_a_task_mapped_over_iterations_is_expanded_again():
    after = task("each", 2, 3, mapped=MapSpec((MapSource("x", 2, -1),)))
    world, run = ended(*loop(after, map_limit=9))

    clear(world, run, "check", downstream=True)
    for again in (True, False):
        go_round(world, again=again)
    world.finish_all()

    each = [row for row in world.rows.tasks.values() if row.task_index == 4]
    assert sorted(row.state for row in each) == [TaskState.SUCCESS] * 2 + [TaskState.REMOVED] * 3
    assert world.run_state(run) == "success"


def test_a_loop_that_ran_out_of_rounds_has_all_of_them_again():
    world, run = begin(*loop(map_limit=3))
    for _ in range(3):
        go_round(world, again=True)
    assert world.run_state(run) == "failed"

    clear(world, run, "check", downstream=True)
    for again in (True, True, False):
        go_round(world, again=again)
    world.finish_all()

    assert world.run_state(run) == "success"


def test_a_teardown_left_behind_in_an_earlier_round_is_cleared_with_its_loop():
    own = range(1, 5)
    world = World(cpu_slots=9)
    run = world.begin(
        task("first"),
        inside("make", 1, own, 0, is_setup=True),
        inside("use", 2, own, 1),
        inside("remove", 3, own, 1, 2, rule=R.ALL_DONE_SETUP_SUCCESS, is_teardown=True),
        inside("until", 4, own, 2),
    )
    world.succeed("first")
    for index in range(2):
        world.succeed("make", index)
        world.succeed("use", index)
        world.succeed("until", index, again=True)
    assert [bool(world.started("remove", index)) for index in range(2)] == [True, True]

    clear(world, run, "use")

    assert [bool(world.started("remove", index)) for index in range(2)] == [False, False]
    for name in ("make", "use"):
        world.succeed(name, 0)
    world.succeed("until", 0, again=False)
    world.finish_all()
    removals = [row.state for row in world.rows.tasks.values() if row.task_index == 3]
    assert sorted(removals) == [TaskState.SUCCESS, TaskState.REMOVED, TaskState.REMOVED]
    assert world.run_state(run) == "success"


# ── slices, crashes, and inputs in between ──────────────────────────────────────────────


def rows_tell_it_all(world: World) -> None:
    """Check that a restart would restore exactly what is in memory."""
    fresh = Memory(epoch=99)
    fresh.dag_versions, fresh.clearings = world.memory.dag_versions, world.memory.clearings
    for run_no in world.rows.unfinished():
        read, known = restore_run(world.rows.live_run(run_no), fresh), world.memory.runs[run_no]
        assert read.removed == known.removed
        assert dict(read.cleared.items()) == dict(known.cleared.items())
        for task_index, group in read.groups.items():
            other = known.groups[task_index]
            assert (group.states, group.counts) == (other.states, other.counts)
            assert (group.is_open, group.unfinished) == (other.is_open, other.unfinished)


@pytest.fixture
def _small_slices(monkeypatch):
    monkeypatch.setattr(execution, "SLICE_TASKS", 2)


@pytest.mark.usefixtures("_small_slices")
@pytest.mark.parametrize("crash_after", range(7))
def test_a_crash_between_two_slices_continues_where_they_stood(crash_after):
    world, run = ended(rounds=5)
    sliced = Sliced(world, run)
    sliced.ask(tasks=("check",), downstream=True)
    for _ in range(crash_after):
        sliced.go_on()
        rows_tell_it_all(world)

    sliced.restart()
    while sliced.is_clearing:
        assert not world.starts
        assert sliced.go_on()
        rows_tell_it_all(world)
    sliced.go_on_to_the_end()

    for again in (True, True, False):
        go_round(world, again=again)
    world.finish_all()
    assert open_widths(world) == {3}
    assert world.run_state(run) == "success"


@pytest.mark.usefixtures("_small_slices")
@pytest.mark.parametrize("slices", range(6))
def test_a_run_that_is_cancelled_between_two_slices_has_a_loop_that_can_be_cleared(slices):
    world, run = ended(rounds=5)
    sliced = Sliced(world, run)
    sliced.ask(tasks=("check",), downstream=True)
    for _ in range(slices):
        sliced.go_on()
    sliced.turn(RequestReceived(9, CancelRun(run_id=world.rows.runs[run].run_id)))
    sliced.go_on_to_the_end()
    assert world.rows.runs[run].ended_at is not None

    clear(world, run, "check", downstream=True)
    sliced.go_on_to_the_end()

    assert world.started("try", 0)
    go_round(world, again=False)
    world.finish_all()
    assert world.run_state(run) == "success"


def test_clearing_it_in_a_turn_that_is_taken_back_is_done_once():
    world, run = ended()
    run_id = world.rows.runs[run].run_id

    world.refuse(RequestReceived(0, ClearTasks(run_id=run_id, tasks=("try",))))

    rows_tell_it_all(world)
    go_round(world, again=True)
    go_round(world, again=False)
    world.finish_all()
    assert open_widths(world) == {2}
    assert world.run_state(run) == "success"


@pytest.mark.parametrize("seed", seeds(20, nightly=60))
def test_a_run_ends_however_often_its_loop_is_cleared(seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(execution, "SLICE_TASKS", rng.choice((1, 4, 1_500)))
    after = task("each", 2, 3, mapped=MapSpec((MapSource("x", 2, -1),)))
    world, run = begin(*loop(after, map_limit=6), max_active_runs=1)
    run_id = world.rows.runs[run].run_id

    for _ in range(60):
        rows_tell_it_all(world)
        match rng.choice(("end", "end", "end", "end", "clear", "cancel", "restart")):
            case "clear" if rng.random() < 0.4:
                clear(world, run, rng.choice(NAMES), downstream=rng.random() < 0.5)
            case "cancel" if rng.random() < 0.2 and world.rows.runs[run].ended_at is None:
                world.ask(CancelRun(run_id=run_id))
            case "restart" if rng.random() < 0.5:
                world.restart()
            case _:
                _end_one(world, rng)
    for _ in range(200):
        _end_one(world, rng, well=True)

    assert world.rows.runs[run].ended_at is not None
    assert not world.memory.runs
    assert all(not row.state.is_live or not row.state for row in world.rows.tasks.values())


def _end_one(world: World, rng: random.Random, *, well: bool = False) -> None:
    if not world.starts:
        return
    effect = world.starts[rng.choice(sorted(world.starts))]
    name, index = world._spec(effect).task_id, effect.start.map_index
    if not well and rng.random() < 0.1:
        world.fail(name, index)
    else:
        world.succeed(name, index, again=name == "until" and not well and rng.random() < 0.7)
