"""``max_wait`` fails a task that has not begun in time, and affects no other task."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.runs import deadlines
from aioflow.model.dag import (
    DagSpec,
    MapSource,
    MapSpec,
    RetryPolicy,
    StartTriggerSpec,
    TaskSpec,
)
from aioflow.model.states import CODE_MISSING, Failure, TaskState, TriggerRule
from aioflow.protocol.effects import StopTry
from aioflow.protocol.inputs import TimerFired
from aioflow.protocol.reports import Deferred, Failed
from aioflow.protocol.requests import ClearTasks, Mark, SetPool
from tests.core.test_iterations import inside
from tests.core.world import SECOND, World

LONGEST = 5 * SECOND
MISSING = Failure(type="CodeMissing", message="not there", reason=CODE_MISSING)


def task(name: str, *parents: int, **fields: Any) -> TaskSpec:
    return TaskSpec(task_id=name, parents=parents, **fields)


def bounded(name: str, *parents: int, **fields: Any) -> TaskSpec:
    return task(name, *parents, max_wait_us=LONGEST, **fields)


def over(width: int) -> MapSpec:
    return MapSpec((MapSource("x", -1, width),))


def reason(world: World, name: str, map_index: int = -1) -> str | None:
    (found,) = (
        row
        for row in world.rows.tasks.values()
        if world.memory.dag_versions["v1", "dag"].graph.spec.tasks[row.task_index].task_id == name
        and row.map_index == map_index
    )
    return None if found.failure is None else found.failure.reason


# ── which tasks it fails ────────────────────────────────────────────────────────────────


def of_a_parent(world: World) -> int:
    return world.begin(task("before"), bounded("late", 0), task("after", 1))


def of_a_slot(world: World) -> int:
    return world.begin(task("before"), bounded("late", slots=1), task("after", 1))


def of_a_pool(world: World) -> int:
    world.ask(SetPool(name="narrow", slots=1))
    return world.begin(
        task("before", pool="narrow"), bounded("late", pool="narrow"), task("after", 1)
    )


def of_a_list(world: World) -> int:
    mapped = MapSpec((MapSource("x", 0, -1),))
    return world.begin(
        task("before", feeds_limit=9), bounded("late", 0, mapped=mapped), task("after", 1)
    )


@pytest.mark.parametrize("waits", [of_a_parent, of_a_slot, of_a_pool, of_a_list])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_task_that_waits_for_anything_fails_when_its_time_has_come(waits, is_restarted):
    world = World(cpu_slots=1)
    run = waits(world)
    assert not world.started("late")

    world.pass_time(4)
    if is_restarted:
        world.restart()
    assert world.state(run, "late") in {"pending", "queued"}
    world.pass_time(1)

    assert world.state(run, "late") == "failed"
    assert reason(world, "late") == "max_wait"
    assert world.state(run, "after") == "upstream_failed"
    world.finish_all()
    assert (world.state(run, "before"), world.run_state(run)) == ("success", "failed")
    assert not world.rows.outbox
    assert not world.memory.deadlines


def test_its_row_says_that_it_never_began_and_how_long_it_waited():
    world = World()
    world.begin(task("before"), bounded("late", 0))

    world.pass_time(5)

    (row,) = (row for row in world.rows.tasks.values() if row.failure is not None)
    assert (row.try_number, row.start_no, row.started_at) == (0, 0, None)
    assert row.failure.type == "MaxWaitExceeded"
    assert row.failure.message == "it had not begun 5 s after its run started"
    assert not world.rows.tries


def test_a_task_that_expects_the_failure_runs():
    world = World(cpu_slots=1)
    run = world.begin(
        task("before"), bounded("late", 0), task("after", 1, rule=TriggerRule.ALL_FAILED)
    )

    world.pass_time(5)
    world.finish_all()

    assert world.state(run, "after") == "success"


def test_a_try_that_is_claimed_and_has_not_begun_is_stopped():
    world = World(cpu_slots=1)
    run = world.begin(task("first"), task("before", 0), bounded("late", 0))
    durations = world.memory.runs[run].durations
    durations[1] = durations[2] = 100.0
    world.succeed("first")
    (claimed,) = [one for one in world.memory.active_tasks.objects.values() if one.is_claimed]
    assert claimed.spec.task_id == "late"
    world.pass_time(5)

    assert world.state(run, "late") == "failed"
    (stop,) = [effect for effect in world.effects if isinstance(effect, StopTry)]
    assert (stop.task_no, stop.reason) == (claimed.task_no, "timeout")


@pytest.mark.parametrize("mapped", [None, over(2)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_task_whose_code_is_missing_has_not_begun(mapped, is_restarted):
    world = World()
    run = world.begin(bounded("late", mapped=mapped))
    index = -1 if mapped is None else 1
    start = world.started("late", index).start
    world.pass_time(4)

    world.turn(Failed(start.task_no, start.start_no, None, 1, MISSING))
    if is_restarted:
        world.restart()
    assert world.state(run, "late", index) == "retrying"
    world.pass_time(1)

    assert world.state(run, "late", index) == "failed"
    assert reason(world, "late", index) == "max_wait"
    if mapped is not None:
        world.succeed("late", 0)
    world.pass_time(9)
    assert world.run_state(run) == "failed"


@pytest.mark.parametrize("cause", ["retry", "interruption"])
def test_a_task_whose_code_is_missing_for_a_second_start_has_begun(cause):
    world = World()
    run = world.begin(bounded("late", retry=RetryPolicy(tries=2)))
    start = world.started("late").start
    failure = Failure(type="ValueError", message="no", reason="exception")
    interrupted = cause == "interruption"
    world.turn(Failed(start.task_no, start.start_no, 1, 1, failure, interrupted=interrupted))
    world.pass_time(2)
    start = world.started("late").start

    world.turn(Failed(start.task_no, start.start_no, None, 1, MISSING))
    world.pass_time(2.5)

    world.succeed("late")
    assert world.run_state(run) == "success"


# ── which tasks it does not touch ───────────────────────────────────────────────────────


def runs(world: World) -> None:
    assert world.started("begun")


def has_ended(world: World) -> None:
    world.succeed("begun")


def waits_for_a_retry(world: World) -> None:
    world.fail("begun", retry_after_us=60 * SECOND)


def waits_for_its_second_try(world: World) -> None:
    world.fail("begun", retry_after_us=SECOND)
    world.pass_time(1)  # it is queued again, after the other


def waits_for_a_trigger(world: World) -> None:
    start = world.starts.pop(world.started("begun").start.task_no).start
    world.turn(
        Deferred(start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "next")
    )


def was_interrupted(world: World) -> None:
    world.fail("begun", interrupted=True)


@pytest.mark.parametrize(
    "state",
    [
        runs,
        has_ended,
        waits_for_a_retry,
        waits_for_its_second_try,
        waits_for_a_trigger,
        was_interrupted,
    ],
)
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_task_that_has_begun_is_not_touched(state, is_restarted):
    world = World(cpu_slots=1)
    run = world.begin(bounded("begun"), task("other"))
    state(world)
    was = world.state(run, "begun")

    if is_restarted:
        world.restart()
        was = world.state(run, "begun")
    world.pass_time(4 if state is waits_for_its_second_try else 5)

    assert world.state(run, "begun") == was
    assert was != "failed"
    world.pass_time(60)
    assert world.state(run, "begun") != "failed"


def test_a_task_that_waits_from_its_start_has_begun():
    world = World()
    trigger = StartTriggerSpec(class_path="m:T", next_method="")
    run = world.begin(bounded("deferred", start_trigger=trigger))

    world.pass_time(9)

    assert world.state(run, "deferred") == "deferred"


def test_a_task_without_a_limit_or_with_a_longer_one_waits_on():
    world = World(cpu_slots=1)
    run = world.begin(
        task("before"),
        bounded("late", 0),
        task("free", 0),
        task("longer", 0, max_wait_us=9 * SECOND),
    )

    world.pass_time(5)
    assert [world.state(run, name) for name in ("late", "free", "longer")] == [
        "failed",
        "pending",
        "pending",
    ]
    world.pass_time(4)
    assert [world.state(run, name) for name in ("free", "longer")] == ["pending", "failed"]


# ── from when it counts ─────────────────────────────────────────────────────────────────


def test_its_time_begins_with_the_start_of_its_run():
    world = World()
    tasks = (task("before"), bounded("late", 0))
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=tasks, max_active_runs=1))
    first, second = world.trigger(), world.trigger()

    world.pass_time(5)
    assert world.run_state(first) == "running"  # "before" still runs
    world.succeed("before")
    assert (world.run_state(first), world.run_state(second)) == ("failed", "running")
    world.pass_time(4)
    assert world.state(second, "late") == "pending"
    world.pass_time(1)

    assert world.state(second, "late") == "failed"


@pytest.mark.parametrize("step", [-3_600, 3_600])
def test_a_step_of_the_clock_changes_nothing(step):
    world = World()
    run = world.begin(task("before"), bounded("late", 0))

    world.set_clock(step)
    world.pass_time(4)
    assert world.state(run, "late") == "pending"
    world.pass_time(1)

    assert world.state(run, "late") == "failed"


def test_time_that_passes_while_the_daemon_is_down_counts():
    world = World()
    run = world.begin(task("before"), bounded("late", 0))

    world.now += 60 * SECOND
    world.restart()
    world.pass_time(0)

    assert world.state(run, "late") == "failed"


def clear(world: World, run: int, *names: str) -> None:
    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, tasks=names))


def test_a_clear_restarts_the_time():
    world = World()
    run = world.begin(task("before"), bounded("late", 0), task("other"))
    world.pass_time(5)
    assert world.state(run, "late") == "failed"

    clear(world, run, "before", "late")
    assert world.state(run, "late") == "pending"
    world.pass_time(4)
    assert world.state(run, "late") == "pending"
    world.pass_time(1)

    assert world.state(run, "late") == "failed"


def test_a_clear_before_the_time_has_come_restarts_it_too():
    world = World()
    run = world.begin(task("before"), bounded("late", 0), task("other"))
    world.pass_time(3)

    clear(world, run, "before", "late")
    world.pass_time(4)
    world.restart()
    assert world.state(run, "late") == "pending"
    world.pass_time(1)

    assert world.state(run, "late") == "failed"


def test_a_run_that_is_cleared_after_its_end_starts_over():
    world = World()
    run = world.begin(task("before"), bounded("late", 0))
    world.pass_time(5)
    world.finish_all()
    assert world.run_state(run) == "failed"
    world.pass_time(60)

    clear(world, run, "before", "late")
    world.pass_time(4)
    assert world.state(run, "late") == "pending"
    world.finish_all()

    assert world.run_state(run) == "success"
    assert not world.rows.outbox


# ── children ────────────────────────────────────────────────────────────────────────────


def test_children_that_have_not_begun_fail_one_by_one():
    world = World(cpu_slots=2)
    run = world.begin(bounded("wide", mapped=over(5)), task("after", 0))
    world.succeed("wide", 0)  # the third begins
    assert world.started("wide", 2)

    world.pass_time(5)

    states = [world.state(run, "wide", index) for index in range(5)]
    assert states == ["success", "running", "running", "failed", "failed"]
    assert {reason(world, "wide", index) for index in (3, 4)} == {"max_wait"}
    world.finish_all()
    assert (world.state(run, "after"), world.run_state(run)) == ("upstream_failed", "failed")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_many_children_fail_in_slices_also_over_a_restart(monkeypatch, is_restarted):
    monkeypatch.setattr(deadlines, "EVALUATED_CHILDREN", 2)
    world = World(cpu_slots=2)
    run = world.begin(bounded("wide", mapped=over(9)))

    world.pass_time(5)
    failed = [index for index in range(9) if world.state(run, "wide", index) == "failed"]
    assert failed == [2, 3]
    if is_restarted:
        world.restart()
    for _ in range(9):
        world.pass_time(0)

    states = [world.state(run, "wide", index) for index in range(9)]
    assert states == ["running"] * 2 + ["failed"] * 7
    assert not world.rows.outbox


def test_a_child_that_begins_between_two_slices_is_not_touched(monkeypatch):
    monkeypatch.setattr(deadlines, "EVALUATED_CHILDREN", 2)
    world = World(cpu_slots=2)
    run = world.begin(bounded("wide", mapped=over(9)))
    world.pass_time(5)

    world.succeed("wide", 0)
    for _ in range(9):
        world.pass_time(0)
    world.finish_all()

    states = [world.state(run, "wide", index) for index in range(9)]
    assert states == ["success"] * 2 + ["failed"] * 2 + ["success"] + ["failed"] * 4


def test_children_that_follow_others_fail_where_these_have_not_ended():
    world = World(cpu_slots=3)
    follows = MapSpec((MapSource("x", 0, -1),))
    run = world.begin(
        task("first", mapped=over(3)), bounded("second", 0, argument_parents=(0,), mapped=follows)
    )
    world.succeed("first", 0)
    assert world.started("second", 0)

    world.pass_time(5)
    world.finish_all()

    assert [world.state(run, "second", index) for index in range(3)] == [
        "success",
        "failed",
        "failed",
    ]
    assert world.run_state(run) == "failed"


def test_children_that_were_allowed_to_start_do_not_start_after_their_failure():
    world = World(cpu_slots=1)
    follows = MapSpec((MapSource("x", 0, -1),))
    run = world.begin(
        task("first", mapped=over(2), priority=9),
        bounded("second", 0, argument_parents=(0,), mapped=follows),
    )
    world.succeed("first", 0)  # its other child is first

    world.pass_time(5)
    world.finish_all()

    assert [world.state(run, "second", index) for index in range(2)] == ["failed", "failed"]
    assert world.run_state(run) == "failed"


def test_a_loop_that_has_begun_is_not_touched():
    world = World(cpu_slots=1)
    rounds = range(2)
    run = world.begin(
        inside("work", 0, rounds, max_wait_us=LONGEST),
        inside("until", 1, rounds, 0, max_wait_us=LONGEST),
        task("other"),
    )
    world.succeed("work", 0)
    world.succeed("other")
    world.succeed("until", 0, again=True)
    assert world.state(run, "until", 1) == "pending"

    world.pass_time(9)
    world.succeed("work", 1)
    world.succeed("until", 1)

    assert world.run_state(run) == "success"


def test_a_loop_that_has_not_begun_fails_as_one():
    world = World()
    rounds = range(1, 3)
    run = world.begin(
        task("before"),
        inside("work", 1, rounds, 0, max_wait_us=LONGEST),
        inside("until", 2, rounds, 1),
        task("after", 2),
    )

    world.pass_time(5)
    world.finish_all()

    assert reason(world, "work") == "max_wait"
    assert world.state(run, "after") == "upstream_failed"
    assert world.run_state(run) == "failed"


# ── at most once, at little cost ────────────────────────────────────────────────────────


def test_a_timer_that_comes_late_or_twice_changes_nothing():
    world = World()
    run = world.begin(task("before"), bounded("late", 0))
    due = [wake.due for wake in world.armed]
    assert len(due) == 1

    world.pass_time(5)
    rows = len(world.batches)
    world.turn(*due, *due, TimerFired(world.now, run_no=run))

    assert len(world.batches) == rows


def test_a_run_has_one_row_and_one_timer_per_length_however_many_children_wait():
    world = World()
    world.begin(
        bounded("wide", mapped=over(100_000), map_limit=100_000),
        bounded("other", 0),
        task("longer", 0, max_wait_us=9 * SECOND),
    )

    assert len(world.rows.outbox) == 2
    assert len(world.armed) == 2


def test_a_turn_that_is_refused_and_repeated_fails_them_once():
    world = World()
    run = world.begin(task("before"), bounded("late", 0))
    due = [wake.due for wake in world.armed]
    world.now += 5 * SECOND

    world.refuse(*due)

    assert world.state(run, "late") == "failed"
    assert not world.rows.outbox


def test_a_loop_that_waits_for_its_rule_again_keeps_waiting():
    rounds = range(2)
    world = World()
    run_no = world.begin(
        inside("work", 0, rounds, max_wait_us=LONGEST),
        inside("until", 1, rounds, 0, max_wait_us=LONGEST),
        task("other"),
    )
    world.succeed("work", 0)
    world.succeed("until", 0, again=True)
    run = world.memory.runs[run_no]
    assert run.groups[0].width == 2
    run.states[0] = TaskState.PENDING  # as after a clear or a mark of a task before it

    world.pass_time(5)

    assert run.states[0] == TaskState.PENDING


def test_a_mark_does_not_restart_the_time():
    world = World(cpu_slots=1)
    run_no = world.begin(task("slow"), task("other"), bounded("late", 0))
    world.turn()
    world.pass_time(4)
    run_id = world.rows.runs[run_no].run_id
    world.ask(Mark(run_id=run_id, state=TaskState.SUCCESS, tasks=("other",)))

    world.pass_time(1)

    assert world.state(run_no, "late") == "failed"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_time_starts_again_for_tasks_that_a_mark_makes_wait_after_it(is_restarted):
    world = World()
    run_no = world.begin(
        task("before", retry=RetryPolicy(tries=1)), bounded("late", 0, 2), task("slow")
    )
    world.fail("before")
    assert world.state(run_no, "late") == "upstream_failed"
    world.pass_time(60)
    assert not world.memory.deadlines.get(run_no)
    run_id = world.rows.runs[run_no].run_id

    world.ask(Mark(run_id=run_id, state=TaskState.SUCCESS, tasks=("before",)))
    if is_restarted:
        world.restart()
    world.pass_time(4)
    assert world.state(run_no, "late") == "pending"
    world.pass_time(1)

    assert world.state(run_no, "late") == "failed"
    assert reason(world, "late") == "max_wait"
    world.finish_all()
    assert world.run_state(run_no) == "failed"
    assert not world.rows.outbox
