"""Work is assigned to the process whose ``HostUp`` was processed last."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.state.child_roles import ASYNC, QUARANTINE, TRIGGERS
from aioflow.core.triggers.assignment import REASSIGNED
from aioflow.model.dag import Body, DagSpec, TaskSpec
from aioflow.model.states import Failure
from aioflow.model.triggers import DagTriggerSpec
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger, StartTry
from aioflow.protocol.inputs import FileParsed, HostLost, HostUp, LoopBlocked
from aioflow.protocol.reports import Deferred, TriggerEnded
from aioflow.protocol.requests import CancelRun
from tests.core.world import World

DIED = Failure(type="Killed", message="SIGKILL", reason="killed")
FIRST, SECOND = 11, 12
SLOW = "m:Slow"


def with_hosts() -> World:
    world = World()
    world.turn(HostUp(ASYNC, FIRST), HostUp(TRIGGERS, FIRST))
    return world


def lost(role: str, world: World) -> HostLost:
    return HostLost(role=role, culprit=-1, failure=DIED, at=world.now)


def defer(world: World, class_path: str = "m:T") -> list[Any]:
    start = world.started("wait").start
    at = (start.task_no, start.start_no, world.now, world.now)
    return world.turn(Deferred(*at, class_path, b"\x80", "after"))


def processes(effects: list[Any], kind: type[Any] = AssignTrigger) -> list[tuple[str, int]]:
    return [(effect.role, effect.process_no) for effect in effects if isinstance(effect, kind)]


def test_a_trigger_is_assigned_to_the_process_that_is_known_to_be_up() -> None:
    world = with_hosts()
    world.begin(TaskSpec(task_id="wait"))
    assert processes(defer(world)) == [(TRIGGERS, FIRST)]

    world.turn(lost(TRIGGERS, world))

    assert processes(world.turn(HostUp(TRIGGERS, SECOND))) == [(TRIGGERS, SECOND)]


def test_the_trigger_of_a_dag_is_too() -> None:
    world = with_hosts()
    trigger = DagTriggerSpec(class_path="m:Ticks", kwargs=b"\x80", name="Ticks")
    spec = DagSpec(
        dag_id="dag",
        file="dag.py",
        tasks=(TaskSpec(task_id="a"),),
        trigger=trigger,
        parameters=("event",),
    )
    parsed = FileParsed(file="dag.py", version="v1", dags=(spec,), sources={})
    assert processes(world.turn(parsed)) == [(TRIGGERS, FIRST)]

    world.turn(lost(TRIGGERS, world))

    assert processes(world.turn(HostUp(TRIGGERS, SECOND))) == [(TRIGGERS, SECOND)]


def test_a_coroutine_is_too_and_runs_again_in_the_next() -> None:
    world = with_hosts()
    world.begin(TaskSpec(task_id="c", body=Body.COROUTINE))
    assert processes(world.effects, StartTry) == [(ASYNC, FIRST)]

    world.turn(lost(ASYNC, world))

    assert processes(world.turn(HostUp(ASYNC, SECOND)), StartTry) == [(ASYNC, SECOND)]


def test_a_trigger_for_a_quarantine_host_that_is_not_known_to_be_up_is_assigned_again() -> None:
    world = with_hosts()
    world.begin(TaskSpec(task_id="wait"))
    [command] = [one.host for one in defer(world, SLOW) if isinstance(one, AssignTrigger)]
    at = (command.trigger_no, command.assignment_id, world.now)
    world.turn(
        LoopBlocked(
            role=TRIGGERS,
            culprit=command.trigger_no,
            incident="1.1",
            milliseconds=5_000,
            source_location="dag.py:7 in Slow.run",
        )
    )
    moved = world.turn(TriggerEnded(*at, None, REASSIGNED))
    assert processes(moved) == [(QUARANTINE, 0)], "it starts the host"

    assert processes(world.turn(HostUp(QUARANTINE, FIRST))) == [(QUARANTINE, FIRST)]


@pytest.mark.parametrize("is_up_again", [False, True])
def test_a_wait_that_ends_after_the_loss_needs_no_release(is_up_again: bool) -> None:
    """The process that the trigger was assigned to is dead, and no other one started it."""
    world = with_hosts()
    run = world.begin(TaskSpec(task_id="wait"))
    assert processes(defer(world)) == [(TRIGGERS, FIRST)]

    cancel = CancelRun(run_id=world.rows.runs[run].run_id)
    world.turn(lost(TRIGGERS, world))
    world.ask(cancel)
    effects = world.turn(HostUp(TRIGGERS, SECOND)) if is_up_again else []

    assert not world.rows.triggers
    assert not [one for one in effects if isinstance(one, AssignTrigger | ReleaseTrigger)]
