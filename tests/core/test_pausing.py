"""Deferred triggers while their DAG is paused."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.triggers import migration
from aioflow.model.dag import DagSpec, MapSource, MapSpec, TaskSpec
from aioflow.model.states import Failure, WaitKind
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger
from aioflow.protocol.inputs import FileParsed, HostLost, HostUp, PauseTriggers
from aioflow.protocol.reports import Deferred, TriggerEnded, TriggerFired
from aioflow.protocol.requests import CancelRun, Explain, SetPaused
from tests.core.world import SECOND, World

A = TaskSpec(task_id="a")
EACH = (
    TaskSpec(task_id="list", feeds_limit=9_999),
    TaskSpec(task_id="a", parents=(0,), mapped=MapSpec(sources=(MapSource("x", 0, -1),))),
)


def spec(*tasks: TaskSpec, dag_id: str = "dag", if_paused: Any = "stop") -> DagSpec:
    return DagSpec(dag_id=dag_id, file=f"{dag_id}.py", tasks=tasks, if_paused=if_paused)


def defer(world: World, name: str = "a", map_index: int = -1, **fields: Any) -> None:
    effect = world.started(name, map_index)
    assert effect is not None
    start = world.starts.pop(effect.start.task_no).start
    place = (start.task_no, start.start_no, world.now, world.now + 50)
    class_path = fields.pop("class_path", "m:T")
    world.turn(Deferred(*place, class_path=class_path, kwargs=b"\x80", next_method="go", **fields))


def deferred(if_paused: str = "stop", **fields: Any) -> World:
    """Return a world with one run whose task waits for an assigned trigger."""
    world = World()
    world.load(spec(A, if_paused=if_paused))
    world.trigger()
    defer(world, **fields)
    return world


def hosted(world: World) -> AssignTrigger:
    return next(e for e in reversed(world.effects) if isinstance(e, AssignTrigger))


def said(world: World, kind: type) -> list[Any]:
    """Return the effects of a kind since the last call for that kind."""
    found = [effect for effect in world.effects if isinstance(effect, kind)]
    world.effects = [effect for effect in world.effects if not isinstance(effect, kind)]
    return found


def pause(world: World, *, paused: bool = True, dag_id: str = "dag") -> None:
    world.ask(SetPaused(dag_id=dag_id, paused=paused))


def confirm(world: World, reason: str = migration.PAUSED) -> None:
    """Have the host confirm all triggers that it was asked to release."""
    ends = [(e.end.trigger_no, e.end.assignment_id) for e in said(world, ReleaseTrigger)]
    world.turn(*(TriggerEnded(*end, world.now, reason=reason) for end in ends))


def waits_for(world: World, map_index: int = -1, task_index: int = 0) -> Any:
    (run,) = [run for run in world.rows.runs.values() if run.ended_at is None]
    answer = world.ask(Explain(run_id=run.run_id, tasks=((task_index, map_index),)))
    return answer[task_index, map_index]


def test_by_default_they_stay_and_their_events_are_stored():
    world = deferred("stay")

    pause(world)

    assert said(world, ReleaseTrigger) == []
    assert waits_for(world).kind is WaitKind.TRIGGER
    host = hosted(world).host
    world.turn(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\xc0"))
    assert world.started("a") is not None  # pausing holds back scheduled runs, and nothing else


def test_they_leave_their_hosts_and_are_hosted_again_as_they_were():
    world = deferred(timeout_us=60 * SECOND)
    before = hosted(world).host
    said(world, AssignTrigger)

    pause(world)
    (end,) = [e.end for e in world.effects if isinstance(e, ReleaseTrigger)]
    confirm(world)

    assert (end.trigger_no, end.reason) == (before.trigger_no, "paused")
    assert said(world, AssignTrigger) == []
    assert waits_for(world).kind is WaitKind.PAUSED
    assert "DAG dag is paused" in waits_for(world).detail
    assert waits_for(world).until == before.since + 60 * SECOND

    world.now += 30 * SECOND
    pause(world, paused=False)
    (again,) = [e.host for e in said(world, AssignTrigger)]
    assert (again.trigger_no, again.since, again.kwargs) == (
        before.trigger_no,
        before.since,
        before.kwargs,
    )
    assert again.assignment_id > before.assignment_id
    assert waits_for(world).kind is WaitKind.TRIGGER


def test_events_yielded_before_the_release_count():
    world = deferred()
    host = hosted(world).host
    pause(world)

    world.turn(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\xc0"))
    confirm(world)

    assert world.started("a") is not None
    world.finish_all()
    assert world.rows.unfinished() == []


def test_resumed_before_they_have_left_they_are_hosted_when_they_have():
    world = deferred()
    said(world, AssignTrigger)
    pause(world)
    pause(world, paused=False)

    assert said(world, AssignTrigger) == []  # never twice at once
    confirm(world)
    assert len(said(world, AssignTrigger)) == 1


def test_a_deadline_holds_meanwhile():
    world = deferred(timeout_us=60 * SECOND)
    pause(world)
    confirm(world)

    world.pass_time(61)

    (run_no,) = world.rows.runs
    assert world.state(run_no, "a") == "retrying"
    assert world.rows.triggers == {}


def test_a_run_can_be_cancelled_meanwhile():
    world = deferred()
    pause(world)
    confirm(world)
    (run,) = world.rows.runs.values()

    world.ask(CancelRun(run_id=run.run_id))

    assert world.rows.triggers == {}
    assert world.run_state(run.run_no) == "cancelled"


def test_triggers_deferred_while_their_dag_is_paused_have_no_host():
    world = World()
    world.load(spec(A))
    pause(world)
    world.trigger()
    defer(world)

    assert said(world, AssignTrigger) == []
    assert waits_for(world).kind is WaitKind.PAUSED


def test_a_durable_sleep_ends_on_time():
    world = deferred(class_path="sleep", timeout_us=60 * SECOND)
    pause(world)

    assert waits_for(world).kind is WaitKind.TRIGGER


def test_triggers_of_other_dags_stay():
    world = deferred()
    world.load(spec(A, dag_id="other"), version="v2", file="other.py")
    world.trigger("other")
    defer(world)

    pause(world, dag_id="other")

    (end,) = said(world, ReleaseTrigger)
    assert world.rows.triggers[end.end.trigger_no].run_no == max(world.rows.runs)


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_restart_leaves_them_without_a_host(confirmed):
    world = deferred()
    pause(world)
    if confirmed:
        confirm(world)

    world.restart()

    assert said(world, AssignTrigger) == []
    assert waits_for(world).kind is WaitKind.PAUSED
    pause(world, paused=False)
    assert len(said(world, AssignTrigger)) == 1


def test_a_host_that_comes_up_again_is_not_handed_them():
    world = deferred()
    said(world, AssignTrigger)
    pause(world)
    died = Failure(type="HostDied", message="gone", reason="host")

    world.turn(HostLost(role="triggers", culprit=-1, failure=died, at=world.now))
    world.turn(HostUp("triggers"))

    assert said(world, AssignTrigger) == []


@pytest.mark.parametrize(("was", "now"), [("stay", "stop"), ("stop", "stay")])
def test_a_saved_file_says_it_otherwise(was, now):
    world = deferred(was)
    said(world, AssignTrigger)
    pause(world)
    confirm(world)

    parsed = spec(A, if_paused=now)
    world.turn(FileParsed(file="dag.py", version="v2", dags=(parsed,), sources={}))
    confirm(world)

    assert waits_for(world).kind is (WaitKind.PAUSED if now == "stop" else WaitKind.TRIGGER)
    assert len(said(world, AssignTrigger)) == (now == "stay")


def test_however_many_they_are_each_turn_takes_some(monkeypatch):
    monkeypatch.setattr(migration, "STOPPED_AT_ONCE", 3)
    world = World(cpu_slots=10)
    world.load(spec(*EACH))
    world.trigger()
    world.succeed("list", size=10, width=10)
    for index in range(10):
        defer(world, map_index=index)
    numbers = {e.host.trigger_no for e in said(world, AssignTrigger)}
    assert len(numbers) == 10

    pause(world)
    left = {e.end.trigger_no for e in world.effects if isinstance(e, ReleaseTrigger)}
    confirm(world)

    assert left == numbers
    assert waits_for(world, 9, 1).kind is WaitKind.PAUSED
    pause(world, paused=False)
    assert {e.host.trigger_no for e in said(world, AssignTrigger)} == numbers


def test_a_pause_that_ends_before_its_turns_do_stops_none():
    world = deferred()
    pause(world)
    pause(world, paused=False)
    confirm(world)
    said(world, AssignTrigger)

    world.turn(PauseTriggers("dag", is_stopped=True))  # late

    assert said(world, ReleaseTrigger) == []
    assert waits_for(world).kind is WaitKind.TRIGGER
