"""Outbox rows of transitions, and their delivery: only a few of each kind at a time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.core.state import outbox_quota
from aioflow.model.dag import CallbackSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import TaskState, TriggerRule
from aioflow.protocol.effects import DeliverOutbox
from aioflow.protocol.inputs import OutboxDelivered, OutboxLoaded
from aioflow.protocol.outbox import Callback, is_callback
from aioflow.protocol.requests import CancelRun, ClearTasks, Mark
from tests.core.world import World

EVERY = CallbackSpec(events=("success", "failure", "retry", "skip", "deadline"))


def task(name: str, *parents: int, **fields: Any) -> TaskSpec:
    return TaskSpec(task_id=name, parents=parents, callbacks=EVERY, **fields)


def called(world: World) -> list[tuple[int, str]]:
    """Return the task index and the event of each callback in the outbox."""
    rows = [world.rows.outbox[number] for number in sorted(world.rows.outbox)]
    bodies = [msgspec.msgpack.decode(r.body, type=Callback) for r in rows if is_callback(r.kind)]
    return [(body.task_index, body.event) for body in bodies]


def in_flight(world: World) -> list[int]:
    return [effect.outbox_no for effect in world.effects if isinstance(effect, DeliverOutbox)]


def fan_out(world: World, width: int) -> None:
    mapped = MapSpec((MapSource("n", -1, width),))
    world.begin(task("a", mapped=mapped, retry=RetryPolicy(tries=1)))
    while world.starts:
        world.fail("a", map_index=next(iter(world.starts.values())).start.map_index)


def test_each_transition_has_its_own_callback():
    world = World()
    world.begin(task("a", retry=RetryPolicy(tries=2, delay_us=0)), task("b", 0), callbacks=EVERY)

    world.fail("a")
    assert called(world) == [(0, "retry")]
    world.pass_time(1)
    world.fail("a")

    assert called(world) == [(0, "retry"), (0, "failure"), (-1, "failure")]


def test_a_cancelled_run_has_no_callbacks():
    world = World()
    run = world.begin(task("a"), task("b", 0), callbacks=EVERY)
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert world.run_state(run) == "cancelled"
    assert not called(world)


def mark(world: World, run: int, *tasks: str, state: TaskState = TaskState.SUCCESS) -> None:
    world.ask(Mark(run_id=world.rows.runs[run].run_id, tasks=tasks, state=state))


@pytest.mark.parametrize("state", [TaskState.SUCCESS, TaskState.FAILED])
def test_marks_have_no_callbacks_but_their_consequences_do(state):
    world = World()
    run = world.begin(task("a"), task("b", 0, rule=TriggerRule.ALL_DONE), callbacks=EVERY)

    mark(world, run, "a", state=state)
    assert not called(world)
    world.succeed("b")

    assert called(world) == [
        (1, "success"),
        (-1, "success" if state is TaskState.SUCCESS else "failure"),
    ]


@pytest.mark.parametrize("state", [TaskState.SUCCESS, TaskState.FAILED])
def test_a_run_that_is_marked_with_all_its_tasks_has_no_callbacks(state):
    world = World()
    run = world.begin(task("a"), task("b"), task("c", 0), callbacks=EVERY)
    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("a",)))

    mark(world, run, state=state)
    assert world.run_state(run) == state.label
    mark(world, run, state=TaskState.SUCCESS)
    mark(world, run, state=TaskState.FAILED)

    assert world.run_state(run) == "failed"
    assert not called(world)


def test_a_run_that_ends_well_since_a_failure_of_it_was_marked_says_so():
    world = World()
    run = world.begin(task("a", retry=RetryPolicy(tries=1)), callbacks=EVERY)
    world.fail("a")
    before = called(world)

    mark(world, run, "a")

    assert before == [(0, "failure"), (-1, "failure")]
    assert called(world) == [*before, (-1, "success")]


def test_a_marked_task_that_is_cleared_and_runs_has_callbacks_again():
    world = World()
    run = world.begin(task("a", retry=RetryPolicy(tries=1)), task("b", 0))
    mark(world, run, "a", state=TaskState.FAILED)
    world.ask(ClearTasks(run_id=world.rows.runs[run].run_id))

    world.fail("a")

    assert called(world) == [(0, "failure")]


def test_outbox_rows_beyond_the_window_are_delivered_in_order(monkeypatch):
    monkeypatch.setattr(outbox_quota, "WINDOW", 4)
    world = World()
    fan_out(world, 9)
    rows = sorted(world.rows.outbox)
    assert in_flight(world) == rows[:4]
    assert len(world.memory.outbox) == 4

    for number in rows:
        assert number in in_flight(world)
        world.turn(OutboxDelivered(number))

    assert in_flight(world) == rows
    assert not world.rows.outbox
    assert not world.memory.outbox_quotas


def test_a_restart_hands_out_what_was_not_done_and_no_more_at_once(monkeypatch):
    monkeypatch.setattr(outbox_quota, "WINDOW", 4)
    world = World()
    fan_out(world, 9)
    rows = sorted(world.rows.outbox)
    world.turn(OutboxDelivered(rows[1]))

    world.restart()

    assert in_flight(world) == [rows[0], *rows[2:5]]
    (quota,) = world.memory.outbox_quotas.values()
    assert (quota.in_flight, quota.waiting) == (4, 4)


@pytest.mark.parametrize("entry", [OutboxDelivered(4711), OutboxLoaded("callback:dag")])
def test_a_report_about_no_outbox_row_changes_nothing(entry):
    world = World()
    world.begin(task("a"))
    world.turn(entry)

    assert not world.rows.outbox
    assert not world.memory.outbox_quotas


def test_a_rolled_back_turn_leaves_the_outbox_unchanged(monkeypatch):
    monkeypatch.setattr(outbox_quota, "WINDOW", 4)
    world = World()
    fan_out(world, 9)
    before = dict(world.memory.outbox), dict(world.memory.outbox_quotas)
    first = min(world.rows.outbox)

    _, _, tx = world.decide([OutboxDelivered(first)])
    world.take_back(tx)

    assert (world.memory.outbox, world.memory.outbox_quotas) == before
