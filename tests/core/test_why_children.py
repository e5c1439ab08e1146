"""Explanations group the children of a mapped task by the reason why they wait."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core import why
from aioflow.core.why import NAMED_CHILDREN, SAMPLED_CHILDREN, explain_task
from aioflow.model.dag import MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import TaskState
from aioflow.protocol.requests import CountTasks, ExplainChildren, SetPool
from tests.core.world import World

ONCE = RetryPolicy(tries=1)


def fan_out(width: int, **fields: Any) -> TaskSpec:
    mapped = MapSpec((MapSource("x", -1, width),))
    return TaskSpec(task_id="each", mapped=mapped, retry=ONCE, **fields)


def told(
    world: World, run: int, task_index: int = 0
) -> list[tuple[str, int, tuple[int, ...], str]]:
    """Return state, count, indices and kind of each cause. ``runs show`` must count the same."""
    run_id = world.rows.runs[run].run_id
    causes = world.ask(ExplainChildren(run_id=run_id, task_index=task_index))
    counted = world.ask(CountTasks(run_ids=(run_id,)))[run_id]
    for at, state, count in counted:
        if at == task_index and state.is_live:
            found = [cause for cause in causes if cause.state is state]
            assert sum(cause.count for cause in found) == count, state
    return [
        (
            cause.state.label,
            cause.count,
            cause.indices,
            "" if cause.wait is None else cause.wait.kind,
        )
        for cause in causes
    ]


def test_those_that_wait_for_their_pool_are_one_cause_and_queued():
    world = World(cpu_slots=9)
    world.ask(SetPool(name="small", slots=2))
    run = world.begin(fan_out(2_000, pool="small"))
    world.succeed("each", 0)

    assert told(world, run) == [
        ("queued", 1_997, (3, 4, 5), "slot"),
        ("running", 2, (1, 2), ""),
    ]


def test_those_that_their_window_holds_back_are_pending():
    world = World(cpu_slots=9)
    run = world.begin(fan_out(6, window=2))

    assert told(world, run) == [("pending", 4, (2, 3, 4), "window"), ("running", 2, (0, 1), "")]


def test_those_that_follow_others_are_pending_until_these_have_ended():
    world = World(cpu_slots=4)
    follows = MapSpec((MapSource("x", 0, -1),))
    run = world.begin(fan_out(7), TaskSpec(task_id="next", parents=(0,), mapped=follows))
    world.succeed("each", 1)
    world.succeed("each", 2)

    assert told(world, run, 1) == [
        ("pending", 5, (0, 3, 4), "upstream"),
        ("running", 1, (1,), ""),
        ("queued", 1, (2,), "slot"),
    ]


def test_failed_tries_with_other_messages_are_one_cause():
    world = World(cpu_slots=9)
    retry = RetryPolicy(tries=2, delay_us=60_000_000)
    mapped = MapSpec((MapSource("x", -1, 4),))
    run = world.begin(TaskSpec(task_id="each", mapped=mapped, retry=retry))
    for index in range(3):
        world.fail("each", index)

    assert told(world, run) == [
        ("retrying", 3, (0, 1, 2), "retry_at"),
        ("running", 1, (3,), ""),
    ]


def test_however_many_there_are_few_are_explained(monkeypatch: pytest.MonkeyPatch):
    explained = []

    def explain(run: Any, task_index: int, index: int, *rest: Any) -> Any:
        explained.append(index)
        return known(run, task_index, index, *rest)

    known = explain_task
    monkeypatch.setattr(why, "explain_task", explain)
    world = World(cpu_slots=3 * SAMPLED_CHILDREN)
    run = world.begin(fan_out(4_000))
    run_id = world.rows.runs[run].run_id
    causes = world.ask(ExplainChildren(run_id=run_id, task_index=0))

    assert len(explained) == SAMPLED_CHILDREN + NAMED_CHILDREN
    assert [(cause.state, cause.count) for cause in causes] == [
        (TaskState.QUEUED, 4_000 - 3 * SAMPLED_CHILDREN),
        (TaskState.RUNNING, SAMPLED_CHILDREN),
    ]


def test_a_task_without_children_and_a_run_that_has_ended_have_no_causes():
    world = World()
    run = world.begin(TaskSpec(task_id="one"))
    run_id = world.rows.runs[run].run_id

    assert world.ask(ExplainChildren(run_id=run_id, task_index=0)) is None
    world.succeed("one")
    assert world.ask(ExplainChildren(run_id=run_id, task_index=0)) is None
