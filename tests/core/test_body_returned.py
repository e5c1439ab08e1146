"""A task whose body has returned holds no slot while its result is being stored."""

from __future__ import annotations

import pytest

from aioflow.core.why import explain_task
from aioflow.model.dag import DEFAULT_POOL, Body, TaskSpec
from aioflow.model.states import WaitKind
from aioflow.protocol.inputs import BodyReturned, Drain
from aioflow.protocol.reports import TaskStarted
from aioflow.protocol.requests import CancelRun
from tests.core.world import World


def store(world: World, name: str, *, is_backlogged: bool = False) -> None:
    """Report that the body of a running task has returned a large result."""
    start = world.started(name).start
    world.turn(BodyReturned(start.task_no, start.start_no, world.now, is_backlogged))


def world_that_stores(body: Body = Body.FUNCTION, **options) -> tuple[World, int]:
    world = World(cpu_slots=1, async_slots=1)
    run = world.begin(
        TaskSpec(task_id="large", body=body),
        TaskSpec(task_id="next", body=body),
        TaskSpec(task_id="after", parents=(0,), body=body),
    )
    assert world.started("next") is None
    store(world, "large", **options)
    return world, run


@pytest.mark.parametrize("body", [Body.FUNCTION, Body.COROUTINE])
def test_its_slot_is_free_and_why_says_what_it_waits_for(body):
    world, run = world_that_stores(body)

    assert world.started("next") is not None
    assert world.state(run, "large") == "running"
    assert world.state(run, "after") == "pending"
    wait = explain_task(world.memory.runs[run], 0, -1, world.memory, world.slots)
    assert (wait.kind, wait.detail) == (WaitKind.EXECUTOR, "its result is being stored")


@pytest.mark.parametrize("body", [Body.FUNCTION, Body.COROUTINE])
def test_its_report_ends_it_as_usual(body):
    world, run = world_that_stores(body)

    world.succeed("large")
    world.finish_all()

    assert world.run_state(run) == "success"
    assert world.slots.running_coroutines == 0
    assert all(worker.is_idle for worker in world.slots.workers)
    assert world.slots.used(DEFAULT_POOL) == 0


def test_a_result_that_is_not_stored_fails_the_try():
    world, run = world_that_stores()

    world.fail("large", reason="result.not_stored")

    assert world.state(run, "large") in {"failed", "retrying"}


def test_said_twice_or_late_it_changes_nothing():
    world, run = world_that_stores()
    start = world.started("large").start
    used = world.slots.used(DEFAULT_POOL)

    world.turn(BodyReturned(start.task_no, start.start_no, world.now))
    assert world.slots.used(DEFAULT_POOL) == used

    world.succeed("large")
    world.turn(BodyReturned(start.task_no, start.start_no, world.now, is_backlogged=True))
    assert world.state(run, "large") == "success"
    assert world.slots.count_unstored(world.memory) == 0


def test_a_claimed_try_begins_while_the_one_before_it_is_stored():
    world = World(cpu_slots=1)
    for _ in range(2):  # it learns that the tasks are short
        world.begin(TaskSpec(task_id="a"), TaskSpec(task_id="b"))
        world.finish_all()
    world.begin(TaskSpec(task_id="a"), TaskSpec(task_id="b"))
    first, second = world.started("a").start, world.started("b")
    assert second is not None, "it is claimed"
    worker = world.slots.workers[0]

    world.turn(
        BodyReturned(first.task_no, first.start_no, world.now),
        TaskStarted(second.start.task_no, second.start.start_no, world.now),
    )
    world.succeed("a")

    assert worker.current is not None
    assert worker.current.task_no == second.start.task_no
    assert world.slots.used(DEFAULT_POOL) == 1
    world.finish_all()
    assert world.slots.used(DEFAULT_POOL) == 0


@pytest.mark.parametrize("end", ["stored", "cancelled"])
def test_nothing_starts_while_too_many_results_wait(end):
    world, run = world_that_stores(is_backlogged=True)
    other = world.trigger()
    assert world.started("next") is None
    wait = explain_task(world.memory.runs[other], 0, -1, world.memory, world.slots)
    assert wait.detail.startswith("1 results wait to be stored")

    if end == "stored":
        world.succeed("large")
        assert world.started("next") is not None
    else:
        world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
        assert world.state(other, "large") == "running"


def test_a_restart_runs_it_again():
    world, run = world_that_stores()

    world.restart()

    world.finish_all()
    assert world.run_state(run) == "success"


def test_the_end_of_the_grace_period_interrupts_it():
    world, run = world_that_stores()
    late = world.started("large").start

    world.turn(Drain())
    world.turn(Drain(is_over=True))

    assert world.state(run, "large") == "queued"
    world.turn(BodyReturned(late.task_no, late.start_no, world.now))
    assert world.state(run, "large") == "queued"
