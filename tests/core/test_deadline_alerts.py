"""``run_timeout`` ends a run that takes too long; ``deadline`` only causes an alert."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.model.dag import DagSpec, MapSource, MapSpec, TaskSpec
from aioflow.protocol.effects import DeliverOutbox, ReleaseTrigger, StopTry
from aioflow.protocol.inputs import OutboxDelivered, TimerFired
from aioflow.protocol.outbox import Alert
from aioflow.protocol.reports import Deferred
from aioflow.protocol.requests import CancelRun, ClearTasks
from tests.core.world import SECOND, World


def task(name: str, *parents: int, **fields: Any) -> TaskSpec:
    return TaskSpec(task_id=name, parents=parents, **fields)


def told(world: World) -> list[tuple[str, str]]:
    """Return the reason and the task of each alert."""
    alerts = [msgspec.msgpack.decode(effect.body, type=Alert) for effect in world.alerts()]
    return [(alert.reason, alert.task_id) for alert in alerts]


def deliver_all(world: World) -> None:
    world.turn(*(OutboxDelivered(effect.outbox_no) for effect in world.alerts()))


# ── run_timeout ─────────────────────────────────────────────────────────────────────────


def test_a_run_that_takes_too_long_fails_and_its_active_tasks_are_cancelled():
    world = World()
    run = world.begin(task("a"), task("b", 0), run_timeout_us=5 * SECOND)
    stopped = world.starts[world.rows.runs[run].first_task_no].start

    world.pass_time(4)
    assert world.run_state(run) == "running"
    world.pass_time(1)

    assert (world.run_state(run), world.state(run, "a")) == ("failed", "cancelled")
    assert world.state(run, "b") == "cancelled"
    failure = world.rows.tasks[stopped.task_no].failure
    assert failure is not None
    assert (failure.reason, failure.message) == ("run_timeout", "the run took longer than 5 s")
    assert [e.reason for e in world.effects if isinstance(e, StopTry)] == ["timeout"]
    assert told(world) == [("run_timeout", "")]
    assert not world.memory.runs
    assert not world.memory.active_tasks


def test_its_time_begins_with_its_start_not_while_it_waits_for_other_runs():
    world = World()
    world.load(
        DagSpec(
            dag_id="dag",
            file="dag.py",
            tasks=(task("a"),),
            max_active_runs=1,
            run_timeout_us=5 * SECOND,
        )
    )
    first, second = world.trigger(), world.trigger()
    world.pass_time(3)
    world.succeed("a")

    world.pass_time(3)

    assert (world.run_state(first), world.run_state(second)) == ("success", "running")
    world.pass_time(3)
    assert world.run_state(second) == "failed"


def test_the_next_run_begins_when_one_has_taken_too_long():
    world = World()
    options: dict[str, Any] = {"max_active_runs": 1, "run_timeout_us": 5 * SECOND}
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),), **options))
    first, second = world.trigger(), world.trigger()

    world.pass_time(5)

    assert (world.run_state(first), world.run_state(second)) == ("failed", "running")


def test_a_wait_for_a_trigger_is_released():
    world = World()
    run = world.begin(task("a"), run_timeout_us=5 * SECOND)
    start = world.starts.pop(world.rows.runs[run].first_task_no).start
    world.turn(
        Deferred(start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "next")
    )

    world.pass_time(5)

    assert world.state(run, "a") == "cancelled"
    assert [effect for effect in world.effects if isinstance(effect, ReleaseTrigger)]


def test_the_time_of_a_run_continues_over_a_restart():
    world = World()
    run = world.begin(task("a"), run_timeout_us=5 * SECOND)

    world.pass_time(3)
    world.restart()
    world.pass_time(2)

    assert world.run_state(run) == "failed"
    assert told(world) == [("run_timeout", "")]


@pytest.mark.parametrize("step", [-3_600, 3_600])
def test_clearing_leaves_the_time_of_a_run_while_the_clock_is_set(step):
    world = World()
    run = world.begin(task("a"), task("b"), run_timeout_us=5 * SECOND)
    world.succeed("a")
    world.set_clock(step)

    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("a",)))
    world.pass_time(4)
    assert world.run_state(run) == "running"
    world.pass_time(1)

    assert world.run_state(run) == "failed"


def test_clearing_does_not_prolong_a_run_that_began_before_the_clock_was_set_back():
    world = World(cpu_slots=2)
    run = world.begin(task("a"), task("b"), run_timeout_us=5 * SECOND)
    world.now -= 7_200 * SECOND  # while the daemon was down
    world.restart()
    world.succeed("a")

    for _ in range(4):
        world.pass_time(1)
        world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("a",)))
    world.pass_time(1)

    assert world.run_state(run) == "failed"
    assert told(world) == [("run_timeout", "")]


def test_a_crash_before_all_tasks_are_cancelled_leaves_nothing_that_starts(monkeypatch):
    monkeypatch.setattr("aioflow.core.transaction.BATCH_ROWS", 2)
    world = World(cpu_slots=9)
    run = world.begin(*(task(f"t{i}") for i in range(5)), run_timeout_us=5 * SECOND)
    world.now += 5 * SECOND
    due = next(wake.due for wake in world.armed if wake.due.run_no == run)
    batch, _, _ = world.decide([due])
    world.rows.apply(batch)  # and the daemon is killed

    world.restart()

    assert world.run_state(run) == "failed"
    assert {world.state(run, f"t{i}") for i in range(5)} == {"cancelled"}
    assert world.rows.runs[run].ended_at is not None
    assert not world.starts
    assert len(world.rows.outbox) == 1


def test_an_instant_that_comes_late_or_twice_changes_nothing():
    world = World()
    run = world.begin(task("a"), run_timeout_us=5 * SECOND)
    world.succeed("a")
    world.turn(
        TimerFired(world.now + 5 * SECOND, run_no=run),
        TimerFired(world.now + 5 * SECOND, run_no=run),
    )

    assert world.run_state(run) == "success"
    assert not told(world)


# ── deadlines ───────────────────────────────────────────────────────────────────────────


def test_a_run_that_is_late_continues_and_is_alerted_once():
    world = World()
    run = world.begin(task("a"), deadline_us=5 * SECOND)
    due = [wake.due for wake in world.armed]

    world.pass_time(5)
    world.turn(*due)

    assert told(world) == [("deadline", "")]
    assert world.run_state(run) == "running"
    world.succeed("a")
    deliver_all(world)
    assert world.run_state(run) == "success"
    assert not world.rows.outbox


def test_a_task_that_is_late_is_named_even_where_it_has_not_begun():
    world = World()
    mapped = MapSpec((MapSource("x", -1, 2),))
    world.begin(
        task("done", deadline_us=5 * SECOND),
        task("slow"),
        task("next", 1, deadline_us=5 * SECOND),
        task("wide", mapped=mapped, deadline_us=9 * SECOND),
    )
    world.succeed("done")

    world.pass_time(5)
    assert told(world) == [("deadline", "next")]
    world.finish_all()
    world.pass_time(5)
    assert told(world) == [("deadline", "next")]


def test_a_fan_out_is_late_until_its_last_child_has_ended():
    world = World()
    mapped = MapSpec((MapSource("x", -1, 2),))
    world.begin(task("wide", mapped=mapped, deadline_us=9 * SECOND))
    world.succeed("wide", 0)

    world.pass_time(9)

    assert told(world) == [("deadline", "wide")]


@pytest.mark.parametrize("ends", ["success", "cancelled"])
def test_the_row_of_a_deadline_is_deleted_with_the_end_of_its_run(ends):
    world = World()
    run = world.begin(task("a", deadline_us=3 * SECOND), deadline_us=5 * SECOND)
    assert len(world.rows.outbox) == 2

    if ends == "success":
        world.finish_all()
    else:
        world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert world.run_state(run) == ends
    assert not world.rows.outbox
    assert not world.memory.outbox
    assert not world.memory.deadlines


def test_a_run_that_waits_for_others_is_late_too():
    world = World()
    options: dict[str, Any] = {"max_active_runs": 1, "deadline_us": 5 * SECOND}
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),), **options))
    world.trigger()
    world.trigger()

    world.pass_time(5)

    assert told(world) == [("deadline", ""), ("deadline", "")]


@pytest.mark.parametrize("away", [1, 60])
def test_a_deadline_is_not_lost_by_a_restart_whenever_that_comes(away):
    world = World()
    run = world.begin(task("a"), deadline_us=5 * SECOND)

    world.now += away * SECOND
    world.restart()
    world.pass_time(5)

    assert told(world) == [("deadline", "")]
    world.effects.clear()
    world.restart()  # the alert is still to be delivered
    assert told(world) == [("deadline", "")]
    deliver_all(world)
    world.restart()
    assert not told(world)
    assert world.run_state(run) == "running"


def test_a_deadline_whose_turn_is_rolled_back_is_alerted_nevertheless():
    world = World()
    world.begin(task("a"), deadline_us=5 * SECOND)
    (due,) = [wake.due for wake in world.armed]
    world.now = due.at

    world.refuse(due)

    assert told(world) == [("deadline", "")]


def test_tasks_with_one_deadline_have_one_row():
    world = World()

    world.begin(*(task(f"t{i}", deadline_us=5 * SECOND) for i in range(50)))

    assert len(world.rows.outbox) == 1
    world.pass_time(5)
    assert len([effect for effect in world.effects if isinstance(effect, DeliverOutbox)]) == 50
