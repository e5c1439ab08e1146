"""No task starts while a result does not fit on the disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aioflow.core.why import explain_task
from aioflow.model.dag import Body, TaskSpec
from aioflow.model.states import WaitKind
from aioflow.protocol.reports import ResultWriteFailed
from aioflow.protocol.requests import CancelRun
from tests.core.world import World


def keep(world: World, name: str, *, disk_is_full: bool = True) -> None:
    """Report that the process of a running task could not write its result."""
    start = world.started(name).start
    world.turn(ResultWriteFailed(start.task_no, start.start_no, disk_is_full))


def world_with_a_kept_result(body: Body = Body.FUNCTION) -> tuple[World, int]:
    """Return a run with a task that waits to write its result, and one that became ready later."""
    world = World(cpu_slots=3)
    run = world.begin(
        TaskSpec(task_id="large", body=body),
        TaskSpec(task_id="first"),
        TaskSpec(task_id="next", parents=(1,)),
    )
    keep(world, "large")
    world.succeed("first")
    return world, run


@pytest.mark.parametrize("body", [Body.FUNCTION, Body.COROUTINE])
def test_nothing_starts_and_why_says_that_the_disk_is_full(body):
    world, run = world_with_a_kept_result(body)

    assert world.started("next") is None
    wait = explain_task(world.memory.runs[run], 2, -1, world.memory, world.slots)
    assert wait.kind is WaitKind.SLOT
    assert wait.detail.startswith("the disk is full: 1 result")
    assert world.slots.count_unwritten(world.memory) == 1


ENDS: dict[str, Callable[[World, int], object]] = {
    "it is written": lambda world, _: world.succeed("large"),
    "its process dies": lambda world, _: world.fail("large", reason="killed", interrupted=True),
    "its disk fails otherwise": lambda world, _: keep(world, "large", disk_is_full=False),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("body", [Body.FUNCTION, Body.COROUTINE])
def test_work_continues_once(end, body):
    world, run = world_with_a_kept_result(body)

    end(world, run)

    assert world.started("next") is not None
    assert world.slots.count_unwritten(world.memory) == 0


def test_work_of_others_continues_once_its_run_is_cancelled():
    world, run = world_with_a_kept_result()
    other = world.trigger()
    assert world.state(other, "first") == "queued"

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert world.state(other, "first") == "running"


def test_a_restart_begins_the_task_again_and_waits_for_no_disk():
    world, run = world_with_a_kept_result()

    world.restart()

    assert world.started("large") is not None
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_late_report_of_a_process_delays_no_other():
    world = World()
    world.begin(TaskSpec(task_id="a"), TaskSpec(task_id="b", parents=(0,)))
    late = world.started("a").start
    world.succeed("a")

    world.turn(ResultWriteFailed(late.task_no, late.start_no, disk_is_full=True))

    assert world.slots.count_unwritten(world.memory) == 0
    assert world.started("b") is not None
