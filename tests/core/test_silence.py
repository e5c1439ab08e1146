"""A slot worker that neither responds nor uses CPU: ``why`` reports that for its tasks."""

from __future__ import annotations

from aioflow.core.why import explain_task
from aioflow.model.dag import TaskSpec
from aioflow.model.states import Failure, Wait, WaitKind
from aioflow.protocol.inputs import WorkerUnresponsive
from aioflow.protocol.reports import Failed, Succeeded
from tests.core.world import World

SINCE, UNTIL = 1_000_000, 90_000_000
FROZEN = Failure(type="Frozen", message="silent", reason="killed")


def why(world: World, run_no: int, task_index: int = 0) -> Wait | None:
    run = world.memory.runs[run_no]
    return explain_task(run, task_index, -1, world.memory, world.slots)


def silent_world() -> tuple[World, int]:
    """Run two tasks in two slots. The worker of the first task is silent."""
    world = World(cpu_slots=2)
    run = world.begin(TaskSpec(task_id="a"), TaskSpec(task_id="b"))
    world.turn(WorkerUnresponsive(world.started("a").worker, SINCE, UNTIL))
    return world, run


def test_a_task_that_runs_there_waits_for_its_executor_since_then():
    world, run = silent_world()

    wait = why(world, run)
    assert wait is not None
    assert (wait.kind, wait.since, wait.until) == (WaitKind.EXECUTOR, SINCE, UNTIL)
    assert why(world, run, 1) is None


def test_it_waits_for_nothing_once_the_worker_answers():
    world, run = silent_world()
    world.turn(WorkerUnresponsive(world.started("a").worker))

    assert why(world, run) is None


def test_the_next_task_of_the_slot_is_not_reported_as_waiting():
    world, run = silent_world()
    start = world.started("a").start
    world.turn(
        Failed(
            task_no=start.task_no,
            start_no=start.start_no,
            began_at=world.now,
            at=world.now,
            failure=FROZEN,
            interrupted=True,
        )
    )

    assert world.started("a").start.start_no > start.start_no
    assert why(world, run) is None


def test_a_report_that_comes_after_the_end_is_dropped():
    world = World(cpu_slots=1)
    run = world.begin(TaskSpec(task_id="a"), TaskSpec(task_id="b", parents=(0,)))
    start = world.started("a").start
    world.turn(
        Succeeded(start.task_no, start.start_no, world.now, world.now),
        WorkerUnresponsive(0, SINCE, UNTIL),
    )

    assert why(world, run, 1) is None
