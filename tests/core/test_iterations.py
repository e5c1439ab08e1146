"""Loops: a group of tasks is repeated until one of its tasks decides to stop."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core import transaction
from aioflow.model.dag import Chooses, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import TaskState, TriggerRule
from aioflow.protocol.reports import Skipped, Succeeded
from aioflow.protocol.requests import CancelRun, ClearTasks
from tests.core.world import World

ONCE = RetryPolicy(tries=1)
R = TriggerRule


def task(name: str, *parents: int, **fields: Any) -> TaskSpec:
    fields.setdefault("retry", ONCE)
    return TaskSpec(task_id=name, parents=parents, **fields)


def inside(name: str, own: int, loop: range, *parents: int, **fields: Any) -> TaskSpec:
    """Return a task of a loop. The last task of the loop decides whether it is repeated."""
    along = tuple(task_index for task_index in loop if task_index != own)
    spec = MapSpec((MapSource("", -1, 1),), along, loop[-1])
    fields.setdefault("map_limit", 5)
    chooses = Chooses.ROUNDS if own == loop[-1] else Chooses.NOTHING
    return task(name, *parents, mapped=spec, chooses=chooses, **fields)


def loop(*rest: TaskSpec, **fields: Any) -> tuple[TaskSpec, ...]:
    """Return a loop of three tasks, with one task before it and one after it."""
    own = range(1, 4)
    return (
        task("first"),
        inside("try", 1, own, 0, **fields),
        inside("check", 2, own, 1, **fields),
        inside("until", 3, own, 2, **fields),
        *(rest or (task("after", 2, 3),)),
    )


def behind_two(*rest: TaskSpec) -> tuple[World, int]:
    """Return a loop whose first task waits for a fast task, and the second for a slow one."""
    own = range(2, 5)
    world = World(cpu_slots=9)
    run = world.begin(
        task("fast"),
        task("slow"),
        inside("a", 2, own, 0),
        inside("b", 3, own, 1, 2),
        inside("until", 4, own, 3),
        *rest,
    )
    world.succeed("fast")
    return world, run


def begin(*tasks: TaskSpec, **options: Any) -> tuple[World, int]:
    world = World(cpu_slots=9)
    run = world.begin(*(tasks or loop()), **options)
    if tasks in {(), loop()} or tasks[0].task_id == "first":
        world.succeed("first")
    return world, run


def go_round(world: World, *, again: bool) -> None:
    """Let all started tasks succeed, up to and including the deciding one."""
    while not any(world._spec(effect).task_id == "until" for effect in world.starts.values()):
        effect = next(iter(world.starts.values()))
        world.succeed(world._spec(effect).task_id, effect.start.map_index)
    decides = next(e for e in world.starts.values() if world._spec(e).task_id == "until")
    world.succeed("until", decides.start.map_index, again=again)


def states(world: World, run: int, name: str, count: int) -> list[str]:
    return [world.state(run, name, index) for index in range(count)]


def test_a_loop_goes_round_until_it_is_good():
    world, run = begin()

    go_round(world, again=True)
    go_round(world, again=True)
    assert world.started("try", 2)
    assert not world.started("after")
    go_round(world, again=False)

    assert world.started("after")
    world.finish_all()
    assert states(world, run, "check", 3) == ["success"] * 3
    assert world.run_state(run) == "success"


def test_a_round_begins_with_its_first_task_alone():
    world, _ = begin()

    go_round(world, again=True)

    assert world.started("try", 1)
    assert not world.started("check", 1)
    assert not world.started("until", 1)


def test_at_the_cap_what_decides_fails_and_is_not_tried_again():
    world, run = begin(*loop(map_limit=2, retry=RetryPolicy(tries=3)))

    go_round(world, again=True)
    go_round(world, again=True)

    assert states(world, run, "until", 2) == ["success", "failed"]
    assert world.state(run, "after") == "upstream_failed"
    assert world.run_state(run) == "failed"
    row = next(r for r in world.rows.tasks.values() if r.failure is not None)
    assert row.failure.reason == "max_rounds"


def test_a_round_that_fails_ends_the_loop():
    world, run = begin()
    go_round(world, again=True)

    world.fail("try", 1)

    assert states(world, run, "until", 2) == ["success", "upstream_failed"]
    assert world.state(run, "after") == "upstream_failed"
    assert world.run_state(run) == "failed"


def test_a_round_that_is_skipped_ends_the_loop_and_skips_what_follows():
    world, run = begin(*loop(task("after", 3), task("other", 3, rule=R.ALL_DONE)))
    go_round(world, again=True)

    skip(world, "try", 1)

    assert world.state(run, "after") == "skipped"
    world.finish_all()
    assert world.run_state(run) == "success"


def skip(world: World, name: str, index: int) -> None:
    effect = world.started(name, index)
    assert effect is not None
    start = world.starts.pop(effect.start.task_no).start
    world.turn(Skipped(start.task_no, start.start_no, world.now, world.now + 50, ""))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(R.ALL_FAILED, "success", id="all-failed"),
        pytest.param(R.ONE_SUCCESS, "upstream_failed", id="one-success"),
        pytest.param(R.ALL_DONE_MIN_ONE_SUCCESS, "upstream_failed", id="min-one-success"),
        pytest.param(R.ALL_DONE, "success", id="all-done"),
    ],
)
def test_rules_see_a_loop_as_one_task_that_ended_as_its_last_round_did(rule, expected):
    world, run = begin(*loop(task("after", 3, rule=rule)))
    go_round(world, again=True)
    go_round(world, again=True)

    world.fail("try", 2)
    world.finish_all()

    assert world.state(run, "after") == expected


def test_nothing_that_follows_is_judged_between_two_rounds():
    world, _ = begin(*loop(task("after", 1, 2, 3, rule=R.ONE_DONE)))
    for _ in range(3):
        go_round(world, again=True)
        assert not world.started("after")

    go_round(world, again=False)

    assert world.started("after")


def test_a_task_of_the_loop_may_wait_for_others_outside():
    world, run = behind_two()
    world.succeed("a", 0)
    assert not world.started("b", 0)

    world.succeed("slow")
    go_round(world, again=True)
    world.succeed("a", 1)

    assert world.started("b", 1)
    go_round(world, again=False)
    assert world.run_state(run) == "success"


def test_a_loop_whose_first_iteration_cannot_start_ends_with_what_blocked_it():
    world, run = behind_two(task("after", 2, 4))

    world.fail("slow")
    assert world.state(run, "until") == "upstream_failed"
    world.succeed("a", 0)

    assert world.state(run, "after") == "upstream_failed"
    assert world.run_state(run) == "failed"


def test_a_teardown_that_comes_late_has_as_many_rounds_as_there_were():
    own = range(2, 6)
    world = World(cpu_slots=9)
    run = world.begin(
        task("first"),
        task("slow"),
        inside("make", 2, own, 0, is_setup=True),
        inside("use", 3, own, 2),
        inside("remove", 4, own, 1, 2, 3, rule=R.ALL_DONE_SETUP_SUCCESS, is_teardown=True),
        TaskSpec(
            task_id="until",
            parents=(3,),
            mapped=MapSpec((MapSource("", -1, 1),), (2, 3, 4), 5),
            map_limit=5,
            chooses=Chooses.ROUNDS,
        ),
    )
    world.succeed("first")
    for index in range(2):
        world.succeed("make", index)
        world.succeed("use", index)
        world.succeed("until", index, again=index == 0)
    assert world.run_state(run) == "running"

    world.succeed("slow")
    world.finish_all()

    assert states(world, run, "remove", 2) == ["success"] * 2
    assert world.run_state(run) == "success"


def test_a_task_mapped_over_iterations_starts_after_the_last_one():
    after = task("each", 2, 3, mapped=MapSpec((MapSource("x", 2, -1),)))
    world, run = begin(*loop(after))
    go_round(world, again=True)
    assert not world.started("each", 0)

    go_round(world, again=False)

    assert [bool(world.started("each", i)) for i in range(3)] == [True, True, False]
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_task_mapped_over_iterations_continues_after_a_crash():
    after = task("each", 2, 3, mapped=MapSpec((MapSource("x", 2, -1),)))
    world = World(cpu_slots=1)
    run = world.begin(*loop(after))
    world.succeed("first")
    go_round(world, again=True)
    go_round(world, again=False)
    assert [bool(world.started("each", i)) for i in range(2)] == [True, False]

    world.restart()
    world.finish_all()

    assert world.run_state(run) == "success"


@pytest.mark.parametrize("crash_after", range(10))
def test_a_crash_anywhere_on_the_way_changes_no_round(crash_after):
    world = World(cpu_slots=2)
    run = world.begin(*loop())
    steps = 0
    while world.rows.runs[run].ended_at is None:
        if steps == crash_after:
            world.restart()
        steps += 1
        effect = next(iter(world.starts.values()))
        name, index = world._spec(effect).task_id, effect.start.map_index
        world.succeed(name, index, again=name == "until" and index < 2)

    assert steps == 11
    assert states(world, run, "until", 3) == ["success"] * 3
    assert world.state(run, "after") == "success"


def test_a_turn_that_is_taken_back_begins_the_round_once():
    world, run = begin()
    world.succeed("try", 0)
    world.succeed("check", 0)
    effect = world.started("until", 0)
    assert effect is not None
    start = world.starts.pop(effect.start.task_no).start

    world.refuse(Succeeded(start.task_no, start.start_no, world.now, world.now + 50, again=True))

    assert world.started("try", 1)
    go_round(world, again=False)
    world.finish_all()
    assert world.run_state(run) == "success"
    assert {row.width for row in world.rows.expansions.values()} == {2}


def test_a_late_report_of_what_decides_begins_no_round():
    world, _ = begin()
    world.succeed("try", 0)
    world.succeed("check", 0)
    effect = world.started("until", 0)
    assert effect is not None
    start = effect.start
    go_round(world, again=True)

    world.turn(Succeeded(start.task_no, start.start_no, world.now, world.now + 50, again=True))

    assert {row.width for row in world.rows.expansions.values()} == {2}


def test_a_round_with_no_room_in_its_batch_is_judged_in_the_next(monkeypatch):
    monkeypatch.setattr(transaction, "BATCH_ROWS", 1)
    world, run = begin()

    for again in (True, True, False):
        go_round(world, again=again)
    world.finish_all()

    assert world.run_state(run) == "success"


def test_clearing_an_iteration_restarts_the_loop():
    world, run = begin()
    go_round(world, again=True)
    go_round(world, again=False)
    world.succeed("after")
    assert world.run_state(run) == "success"

    run_id = world.rows.runs[run].run_id
    world.ask(ClearTasks(run_id=run_id, tasks=("check",), map_index=1))

    assert world.started("try", 0)
    assert not world.started("try", 1)
    for again in (True, True, False):
        go_round(world, again=again)
    assert world.run_state(run) == "success"
    assert {row.width for row in world.rows.expansions.values()} == {3}


def test_clearing_what_follows_leaves_the_loop_as_it_ended():
    world, run = begin()
    go_round(world, again=True)
    go_round(world, again=False)
    world.succeed("after")

    run_id = world.rows.runs[run].run_id
    world.ask(ClearTasks(run_id=run_id, tasks=("after",)))

    assert world.started("after")
    assert not world.started("try", 0)
    world.succeed("after")
    assert world.run_state(run) == "success"


def test_clearing_within_an_active_loop_restarts_it():
    world, run = begin()
    go_round(world, again=True)
    world.succeed("try", 1)

    run_id = world.rows.runs[run].run_id
    world.ask(ClearTasks(run_id=run_id, tasks=("try",)))

    assert world.started("try", 0)
    for again in (True, False):
        go_round(world, again=again)
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_run_that_is_cancelled_between_rounds_has_ended():
    world, run = begin()
    go_round(world, again=True)

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert world.run_state(run) == "cancelled"
    assert states(world, run, "try", 2) == ["success", "cancelled"]
    assert not world.memory.runs


def test_a_loop_that_a_cancel_left_open_is_closed_when_another_task_is_cleared():
    world, run = begin()
    go_round(world, again=True)
    for name in ("try", "check"):
        world.succeed(name, 1)
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
    assert {row.is_open for row in world.rows.expansions.values()} == {True}
    assert world.state(run, "until", 1) == "cancelled"

    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("first",)))
    world.succeed("first")

    assert {row.is_open for row in world.rows.expansions.values()} == {False}
    assert world.rows.runs[run].ended_at is not None


def test_a_round_that_had_ended_when_its_run_was_cancelled_waits_for_the_next_one_alone():
    """The task before it runs again. The iteration counts as ended, even after a crash."""
    own = range(2, 6)
    world = World(cpu_slots=9)
    run = world.begin(
        task("fast"),
        task("slow"),
        inside("a", 2, own, 0),
        inside("b", 3, own, 1),
        inside("c", 4, own),
        inside("until", 5, own, 2, 3, 4, rule=R.ALL_DONE),
    )
    for name in ("fast", "slow"):
        world.succeed(name)
    for name in ("a", "b"):
        world.succeed(name, 0)
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("slow",)))

    assert world.memory.runs[run].states[3] == TaskState.RUNNING
    world.restart()
    assert world.memory.runs[run].states[3] == TaskState.RUNNING
    world.finish_all()
    assert not world.rows.unfinished()
