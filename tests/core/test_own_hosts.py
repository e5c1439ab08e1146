"""Hosts of isolated DAGs: when they start, what runs in them, and which task is charged."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.state.child_roles import ASKED_FOR, async_role, is_own, kind_of, own_role
from aioflow.core.state.graph import DagVersion
from aioflow.core.triggers.assignment import role_of
from aioflow.model.dag import Body, DagSpec, RetryPolicy, SensorSpec, TaskSpec
from aioflow.model.states import Failure
from aioflow.model.triggers import DagTriggerSpec
from aioflow.protocol.effects import AssignTrigger, StartHost, StartTry, StopTry, Warn
from aioflow.protocol.inputs import (
    FileParsed,
    HostLost,
    HostUp,
    IsolateTriggerClass,
    LoopBlocked,
    Restarted,
)
from aioflow.protocol.reports import Awaiting, Deferred, TriggerEnded
from aioflow.protocol.requests import CancelRun, DrainNode, Explain
from tests.core.world import World

OWN_ASYNC, OWN_TRIGGERS = "async:own", "triggers:own"
DIED = Failure(type="Crashed", message="SIGSEGV", reason="crashed")
BLOCKED = Failure(type="Blocked", message="the loop stood still for 30 s", reason="blocked")
ENDED = Failure(type="Exited", message="it had nothing to do", reason="exit")
ONCE = RetryPolicy(tries=1)
SENSOR = SensorSpec(interval_us=1_000_000, timeout_us=60_000_000)


def dag(dag_id: str, body: Body = Body.COROUTINE, **options: Any) -> DagSpec:
    task = TaskSpec(task_id="work", body=body, retry=ONCE, **options.pop("task", {}))
    return DagSpec(dag_id=dag_id, file="dag.py", tasks=(task,), **options)


def own(body: Body = Body.COROUTINE, **options: Any) -> DagSpec:
    return dag("own", body, isolated=("it changes os.environ['A']",), **options)


def two(body: Body = Body.COROUTINE, **options: Any) -> tuple[World, int, int]:
    """Start a run of an isolated DAG, and a run of another DAG beside it."""
    world = World()
    world.load(own(body, **options), dag("other", body, **options))
    return world, world.trigger("own"), world.trigger("other")


def roles(world: World, kind: type) -> list[str]:
    return [effect.role for effect in world.effects if isinstance(effect, kind)]


def up(world: World, role: str) -> list[Any]:
    return world.turn(HostUp(role))


def lost(role: str, world: World, failure: Failure = DIED, **fields: Any) -> HostLost:
    return HostLost(role=role, culprit=-1, failure=failure, at=world.now, **fields)


def interruptions(world: World, run_no: int) -> int:
    [row] = [task for task in world.rows.tasks.values() if task.run_no == run_no]
    return row.interruptions


def defer_all(world: World, class_path: str = "dag:T") -> None:
    starts = [effect.start for effect in world.starts.values()]
    world.starts.clear()
    for start in starts:
        at = (start.task_no, start.start_no, world.now, world.now)
        world.turn(Deferred(*at, class_path, b"\x80", "after"))


# ── roles of hosts ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["async", "triggers"])
def test_an_own_role_says_what_it_runs_and_is_distinguished_from_a_shared_one(kind):
    role = own_role(kind, "team.daily-v2")

    assert kind_of(role) == kind_of(kind) == kind
    assert is_own(role)
    assert not is_own(kind)


@pytest.mark.parametrize(
    ("was", "now", "is_quarantined", "expected"),
    [
        pytest.param(False, False, False, "triggers", id="shared"),
        pytest.param(False, False, True, "quarantine", id="quarantined"),
        pytest.param(True, True, False, OWN_TRIGGERS, id="isolated"),
        pytest.param(True, True, True, OWN_TRIGGERS, id="isolated-quarantined"),
        pytest.param(False, True, False, OWN_TRIGGERS, id="isolated-by-now"),
        pytest.param(True, False, False, OWN_TRIGGERS, id="isolated-until-now"),
    ],
)
def test_a_trigger_is_of_the_own_host_if_either_version_that_it_imports_is_isolated(
    was, now, is_quarantined, expected
):
    world = World()
    for version, is_isolated in (("v1", was), ("v2", now)):
        spec = own() if is_isolated else dag("own")
        world.load(spec, version=version)
    world.memory.loop_blockers.find("trigger", "dag:T").is_quarantined = is_quarantined

    dag_version = world.memory.dag_versions.get(("v1", "own")) or DagVersion(
        "v1", own() if was else dag("own")
    )

    assert role_of("dag:T", dag_version, world.memory) == expected


def test_coroutines_go_by_the_version_of_their_run():
    assert async_role(own()) == OWN_ASYNC
    assert async_role(dag("own")) == "async"


# ── coroutines ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", [{}, {"sensor": SENSOR}], ids=["coroutine", "sensor"])
def test_a_coroutine_starts_once_the_own_host_that_it_asks_for_is_up(task):
    world, run, _ = two(task=task)

    assert set(roles(world, StartHost)) == {OWN_ASYNC}
    assert roles(world, StartTry) == ["async"]
    wait = world.ask(Explain(run_id=world.memory.runs[run].row.run_id, tasks=((0, -1),)))
    assert wait[0, -1].detail == "async host of own"

    up(world, OWN_ASYNC)
    assert roles(world, StartTry) == ["async", OWN_ASYNC]


def test_no_host_is_started_for_functions():
    world, _, _ = two(Body.FUNCTION)

    assert roles(world, StartHost) == []
    assert len(world.starts) == 2


def test_the_death_of_an_own_host_costs_its_dag_alone():
    world, run, other = two()
    up(world, OWN_ASYNC)

    world.turn(lost(OWN_ASYNC, world))

    assert world.state(run, "work") == "queued"
    assert interruptions(world, run) == 1
    assert interruptions(world, other) == 0
    assert world.state(other, "work") == "running"


def test_the_death_of_the_shared_host_costs_an_isolated_dag_nothing():
    world, run, other = two()
    up(world, OWN_ASYNC)

    world.turn(lost("async", world))

    assert world.state(run, "work") == "running"
    assert interruptions(world, other) == 1


def test_work_sent_to_a_host_that_had_just_ended_is_sent_again_uncharged():
    world, run, _ = two(task={"execution_timeout_us": 60_000_000})
    up(world, OWN_ASYNC)
    world.effects.clear()

    world.turn(lost(OWN_ASYNC, world, ENDED, was_dismissed=True))

    [row] = [task for task in world.rows.tasks.values() if task.run_no == run]
    assert (row.started_at, row.due_at) == (None, None)  # its time has not begun
    assert interruptions(world, run) == 0
    assert roles(world, StartHost) == [OWN_ASYNC]
    up(world, OWN_ASYNC)
    assert roles(world, StartTry) == [OWN_ASYNC]


def test_a_coroutine_is_stopped_where_it_runs():
    world, run, _ = two()
    up(world, OWN_ASYNC)

    world.ask(CancelRun(run_id=world.memory.runs[run].row.run_id))

    assert roles(world, StopTry) == [OWN_ASYNC]


@pytest.mark.parametrize(("role", "is_suspended"), [("async", True), (OWN_ASYNC, False)])
def test_a_suspended_coroutine_is_lost_with_its_own_host_alone(role, is_suspended):
    world, run, _ = two()
    up(world, OWN_ASYNC)
    start = next(e.start for e in world.starts.values() if e.role == OWN_ASYNC)
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Awaiting(*at, 0, "wait", "dag:T", "dag.py:3", (("dag:T", b"\x80"),)))
    world.memory.packing.pack_waiting([], {})

    world.turn(lost(role, world))

    assert world.state(run, "work") == "deferred"
    assert bool(world.memory.active_tasks[start.task_no].suspended_start) == is_suspended


# ── triggers ────────────────────────────────────────────────────────────────────────────


def test_a_trigger_is_hosted_once_the_own_host_that_it_asks_for_is_up():
    world, _, _ = two(Body.FUNCTION)
    defer_all(world)

    assert roles(world, StartHost) == [OWN_TRIGGERS]
    assert roles(world, AssignTrigger) == ["triggers"]
    up(world, OWN_TRIGGERS)
    assert roles(world, AssignTrigger) == ["triggers", OWN_TRIGGERS]


def test_after_a_restart_the_own_hosts_are_started_that_something_waits_for():
    world, _, _ = two(Body.FUNCTION)
    defer_all(world)

    world.start_up()
    effects = world.turn(Restarted())

    assert [e.role for e in effects if isinstance(e, StartHost)] == [OWN_TRIGGERS]
    assert [e.host.class_path for e in up(world, OWN_TRIGGERS) if isinstance(e, AssignTrigger)]


def test_an_own_host_that_left_as_it_was_given_a_trigger_is_started_again():
    world, _, _ = two(Body.FUNCTION)
    defer_all(world)
    up(world, OWN_TRIGGERS)
    world.effects.clear()

    world.turn(lost(OWN_TRIGGERS, world, ENDED, was_dismissed=True))

    assert roles(world, StartHost) == [OWN_TRIGGERS]
    up(world, OWN_TRIGGERS)
    assert roles(world, AssignTrigger) == [OWN_TRIGGERS]


def test_an_own_host_that_left_with_nothing_stays_away():
    world, _, _ = two()
    up(world, OWN_ASYNC)
    world.finish_all()
    world.effects.clear()

    world.turn(lost(OWN_ASYNC, world, ENDED, was_dismissed=True))

    assert roles(world, StartHost) == []


def test_a_node_that_takes_work_again_starts_the_own_hosts_that_something_waits_for():
    world, _, _ = two(Body.FUNCTION)
    world.ask(DrainNode(node_no=1, is_drained=True))
    defer_all(world)
    assert roles(world, StartHost) == []

    world.ask(DrainNode(node_no=1, is_drained=False))

    assert set(roles(world, StartHost)) == {OWN_TRIGGERS}


def test_the_trigger_of_a_dag_goes_where_its_newest_version_belongs():
    world = World()
    trigger = DagTriggerSpec(class_path="dag:Events", kwargs=b"\x80")
    world.load(dag("own", trigger=trigger))
    [host] = [e for e in world.effects if isinstance(e, AssignTrigger)]
    assert host.role == "triggers"

    world.load(own(trigger=trigger), version="v2")
    given = (host.host.trigger_no, host.host.assignment_id, world.now)
    world.turn(TriggerEnded(*given, reason="reassigned"))

    assert roles(world, StartHost) == [OWN_TRIGGERS]
    up(world, OWN_TRIGGERS)
    assert roles(world, AssignTrigger) == ["triggers", OWN_TRIGGERS]


def test_a_trigger_that_blocks_its_own_host_fails_and_nothing_is_quarantined():
    world, run, _ = two(Body.FUNCTION)
    defer_all(world)
    up(world, OWN_TRIGGERS)
    number = next(
        e.host.trigger_no
        for e in world.effects
        if isinstance(e, AssignTrigger) and e.role == OWN_TRIGGERS
    )
    stalled = LoopBlocked(
        role=OWN_TRIGGERS,
        culprit=number,
        incident="1.1",
        milliseconds=9_000,
        source_location="dag.py:7",
    )
    effects = world.turn(
        stalled,
        HostLost(role=OWN_TRIGGERS, culprit=number, failure=BLOCKED, at=world.now),
    )

    assert world.state(run, "work") == "failed"
    assert not [e for e in effects if isinstance(e, IsolateTriggerClass)]


# ── warnings ────────────────────────────────────────────────────────────────────────────


def warned(effects: list[Any]) -> list[str | int]:
    return [e.facts["reason"] for e in effects if isinstance(e, Warn)]


def test_a_dag_that_changes_its_process_is_reported_once():
    world = World()
    parsed = FileParsed(file="dag.py", version="v1", dags=(own(),), sources={})

    assert warned(world.turn(parsed)) == ["it changes os.environ['A']"]
    assert warned(world.turn(parsed)) == []


def test_one_that_asked_for_hosts_of_its_own_is_not():
    spec = dag("own", isolated=(ASKED_FOR,))

    assert (
        warned(World().turn(FileParsed(file="dag.py", version="v1", dags=(spec,), sources={})))
        == []
    )
