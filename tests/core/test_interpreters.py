"""A DAG with another interpreter: which roles run its code, and what it waits for."""

from __future__ import annotations

import random
from typing import Any

import pytest

from aioflow.core.state.child_roles import (
    async_role,
    dag_of,
    interpreter_of,
    is_on_demand,
    is_own,
    kind_of,
    own_role,
    shared_role,
    slot_role,
)
from aioflow.core.triggers.assignment import newest_version, role_of
from aioflow.model.dag import Body, DagSpec, RetryPolicy, StartTriggerSpec, TaskSpec
from aioflow.model.states import Failure, WaitKind
from aioflow.model.triggers import DagTriggerSpec
from aioflow.protocol.effects import AssignTrigger, StartHost, StartTry
from aioflow.protocol.inputs import FileParsed, HostLost, HostUp, LoopBlocked, Restarted
from aioflow.protocol.reports import Awaiting, Deferred, Recalled
from aioflow.protocol.requests import Explain
from tests.core.world import World

PROBLEM = "python 'lab' (/lab/bin/python) cannot be used: there is no such file"
ENDED = Failure(type="Exited", message="it had nothing to do", reason="exit")
BLOCKED = Failure(type="Blocked", message="the loop stood still for 30 s", reason="blocked")
OURS, THEIRS = "aioflow_triggers.files:FileTrigger", "dag:T"


def dag(dag_id: str, body: Body = Body.FUNCTION, **options: Any) -> DagSpec:
    task = TaskSpec(
        task_id="work", body=body, retry=RetryPolicy(tries=1), **options.pop("task", {})
    )
    return DagSpec(dag_id=dag_id, file="dag.py", tasks=(task,), **options)


def lab(body: Body = Body.FUNCTION, **options: Any) -> DagSpec:
    return dag("lab", body, interpreter="lab", **options)


def two(body: Body = Body.FUNCTION, **options: Any) -> tuple[World, int, int]:
    """Start a run in another interpreter, and a run of another DAG in our own."""
    world = World()
    world.load(lab(body, **options), dag("other", body, **options))
    return world, world.trigger("lab"), world.trigger("other")


def roles(world: World, kind: type) -> list[str]:
    return [effect.role for effect in world.effects if isinstance(effect, kind)]


def reason(world: World, run_no: int) -> Any:
    run_id = world.memory.runs[run_no].row.run_id
    wait = world.ask(Explain(run_id=run_id, tasks=((0, -1),)))[0, -1]
    return wait.kind, wait.detail


def unusable(world: World) -> HostLost:
    failure = Failure(type="InterpreterUnusable", message=PROBLEM, reason="interpreter")
    return HostLost(role="slot@lab", culprit=-1, failure=failure, at=world.now, was_dismissed=True)


# ── roles ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["async", "triggers", "quarantine", "slot"])
def test_a_role_says_kind_interpreter_and_dag(kind):
    shared, own = shared_role(kind, "lab-2"), own_role(kind, "team@x.daily", "lab-2")

    assert [(kind_of(r), interpreter_of(r), dag_of(r)) for r in (kind, shared, own)] == [
        (kind, "", ""),
        (kind, "lab-2", ""),
        (kind, "lab-2", "team@x.daily"),
    ]
    assert [is_on_demand(r) for r in (kind, shared, own)] == [False, True, True]
    assert [is_own(r) for r in (kind, shared, own)] == [False, False, True]
    ours = own_role(kind, "a")
    assert (kind_of(ours), interpreter_of(ours), dag_of(ours)) == (kind, "", "a")


def test_code_of_a_dag_belongs_to_roles_of_its_interpreter():
    isolated = lab(isolated=("it asked",))

    assert (async_role(lab()), slot_role(lab())) == ("async@lab", "slot@lab")
    assert async_role(isolated) == "async@lab:lab"
    assert slot_role(dag("other")) == ""


@pytest.mark.parametrize(
    ("class_path", "needs_dag", "is_isolated", "is_quarantined", "expected"),
    [
        pytest.param(THEIRS, False, False, False, "triggers@lab", id="own-class"),
        pytest.param(THEIRS, False, False, True, "quarantine@lab", id="own-class-quarantined"),
        pytest.param(THEIRS, False, True, False, "triggers@lab:lab", id="own-class-isolated"),
        pytest.param(OURS, False, False, False, "triggers", id="catalogue"),
        pytest.param(OURS, False, False, True, "quarantine", id="catalogue-quarantined"),
        pytest.param(OURS, False, True, False, "triggers", id="catalogue-isolated"),
        pytest.param(OURS, True, False, False, "triggers@lab", id="catalogue-with-arguments"),
        pytest.param("aioflow_triggers_x:T", False, False, False, "triggers@lab", id="alike"),
    ],
)
def test_a_trigger_is_hosted_where_its_class_can_be_imported(
    class_path, needs_dag, is_isolated, is_quarantined, expected
):
    world = World()
    world.load(lab(isolated=("x",) if is_isolated else ()))
    world.memory.loop_blockers.find("trigger", class_path).is_quarantined = is_quarantined

    [dag_version] = world.memory.dag_versions.values()
    assert role_of(class_path, dag_version, world.memory, needs_dag=needs_dag) == expected


def test_a_trigger_does_not_move_to_a_version_of_another_interpreter():
    world = World()
    world.load(lab(), version="v1")
    run = world.trigger("lab")
    world.load(dag("lab"), version="v2")

    memory = world.memory
    assert newest_version(memory.runs[run].dag_version, memory) == "v1"


# ── functions ───────────────────────────────────────────────────────────────────────────


def test_functions_wait_until_workers_can_be_started_and_say_why():
    world, run, _ = two()

    assert roles(world, StartTry) == ["async"]  # the other DAG's
    assert set(roles(world, StartHost)) == {"slot@lab"}
    assert reason(world, run) == (WaitKind.EXECUTOR, "python 'lab' is being checked")
    world.turn(unusable(world))
    assert reason(world, run) == (WaitKind.EXECUTOR, PROBLEM)
    world.turn(HostUp("slot@lab"))
    assert world.state(run, "work") == "running"
    assert roles(world, StartTry) == ["async", "async@lab"]


def test_a_try_whose_interpreter_broke_waits_again_uncharged():
    world, run, _ = two()
    world.turn(HostUp("slot@lab"))
    [start] = [e.start for e in world.starts.values() if e.role == "async@lab"]

    world.turn(unusable(world), Recalled(((start.task_no, start.start_no),)))

    assert world.state(run, "work") == "queued"
    [row] = [task for task in world.rows.tasks.values() if task.run_no == run]
    assert (row.interruptions, row.try_number) == (0, 1)
    assert reason(world, run) == (WaitKind.EXECUTOR, PROBLEM)
    world.turn(HostUp("slot@lab"))
    assert world.state(run, "work") == "running"


def test_after_a_restart_the_interpreters_are_checked_that_tasks_wait_for():
    world, run, _ = two()
    world.start_up()

    effects = world.turn(Restarted())

    assert {e.role for e in effects if isinstance(e, StartHost)} == {"slot@lab"}
    assert world.state(run, "work") == "queued"


# ── coroutines and triggers ─────────────────────────────────────────────────────────────


def test_coroutines_wait_for_the_host_of_their_interpreter():
    world, run, _ = two(Body.COROUTINE)

    assert set(roles(world, StartHost)) == {"async@lab"}
    assert reason(world, run) == (WaitKind.HOST, "async host of python 'lab'")
    world.turn(unusable(world))
    assert reason(world, run) == (WaitKind.HOST, f"async host of python 'lab': {PROBLEM}")
    world.turn(HostUp("async@lab"))
    assert roles(world, StartTry) == ["async", "async@lab"]


def test_triggers_of_both_kinds_go_to_their_hosts():
    world, run, _ = two()
    world.turn(HostUp("slot@lab"))
    [start] = [e.start for e in world.starts.values() if e.role == "async@lab"]
    world.effects.clear()

    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, THEIRS, b"\x80", "after"))

    assert roles(world, StartHost) == ["triggers@lab"]
    world.turn(HostUp("triggers@lab"))
    assert roles(world, AssignTrigger) == ["triggers@lab"]
    world.turn(
        HostLost(role="triggers@lab", culprit=-1, failure=ENDED, at=world.now, was_dismissed=True)
    )
    assert roles(world, StartHost) == ["triggers@lab", "triggers@lab"]
    assert world.state(run, "work") == "deferred"


def test_a_trigger_of_the_catalogue_needs_no_host_of_the_interpreter():
    world, _, _ = two(Body.COROUTINE)
    world.turn(HostUp("async@lab"))
    [start] = [e.start for e in world.starts.values() if e.role == "async@lab"]
    world.effects.clear()

    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Awaiting(*at, 0, "wait", OURS, "dag.py:3", ((OURS, b"\x80"),)))

    assert roles(world, AssignTrigger) == ["triggers"]
    assert "triggers@lab" not in roles(world, StartHost)


def test_a_task_that_starts_deferred_is_made_in_its_interpreter():
    world = World()
    world.load(lab(task={"start_trigger": StartTriggerSpec(class_path=OURS, next_method="after")}))
    world.trigger("lab")

    assert roles(world, StartHost) == ["triggers@lab"]
    world.turn(HostUp("triggers@lab"))
    [given] = [e for e in world.effects if isinstance(e, AssignTrigger)]
    assert (given.role, given.host.is_made_there) == ("triggers@lab", True)


@pytest.mark.parametrize(("class_path", "role"), [(OURS, "triggers"), (THEIRS, "triggers@lab")])
def test_the_trigger_of_a_dag_goes_where_its_class_is(class_path, role):
    world = World()
    world.load(lab(trigger=DagTriggerSpec(class_path=class_path, kwargs=b"\x80")))
    world.turn(HostUp("triggers@lab"))

    assert roles(world, AssignTrigger) == [role]


def test_what_blocks_the_host_of_an_interpreter_moves_to_its_quarantine():
    world, run, _ = two()
    world.turn(HostUp("slot@lab"))
    [start] = [e.start for e in world.starts.values() if e.role == "async@lab"]
    at = (start.task_no, start.start_no, world.now, world.now)
    world.turn(Deferred(*at, THEIRS, b"\x80", "after"), HostUp("triggers@lab"))
    [given] = [e for e in world.effects if isinstance(e, AssignTrigger)]
    world.effects.clear()
    number = given.host.trigger_no
    blocked = LoopBlocked(
        role="triggers@lab", culprit=number, incident="1.1", milliseconds=9_000, source_location="x"
    )
    world.turn(
        blocked, HostLost(role="triggers@lab", culprit=number, failure=BLOCKED, at=world.now)
    )
    world.turn(HostUp("triggers@lab"))
    world.turn(HostUp("quarantine@lab"))

    assert world.state(run, "work") == "deferred"
    assert "quarantine@lab" in roles(world, StartHost)
    assert roles(world, AssignTrigger)[-1] == "quarantine@lab"


def test_a_new_version_in_an_interpreter_is_another_one():
    world = World()
    world.turn(FileParsed(file="dag.py", version="v1", dags=(dag("lab"),), sources={}))
    world.turn(FileParsed(file="dag.py", version="v2", dags=(lab(),), sources={}))

    newest = world.memory.newest("lab")
    assert newest is not None
    assert newest.interpreter == "lab"


# ── anything at any moment ──────────────────────────────────────────────────────────────


def lose(role: str, world: World, rng: random.Random) -> None:
    """Report that a role is down. Some tries had not begun in a worker by then."""
    if role not in world.memory.hosts_up:
        return
    is_slot = role == "slot@lab"
    lost = [e.start for e in world.starts.values() if e.role == "async@lab"]
    lost = [s for s in lost if (world.starts[s.task_no].worker >= 0) == is_slot]
    lost = [s for s in lost if not is_slot or rng.random() < 0.5]
    for start in lost:
        del world.starts[start.task_no]
    if is_slot:
        keys = tuple((start.task_no, start.start_no) for start in lost)
        world.turn(unusable(world), *([Recalled(keys)] if keys else []))
    else:
        ended = HostLost(role=role, culprit=-1, failure=ENDED, at=world.now, was_dismissed=True)
        world.turn(ended)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_becomes_of_an_interpreter_each_task_succeeds_in_its_first_try(seed):
    rng = random.Random(seed)
    world = World()
    world.load(lab(), dag("coroutines", Body.COROUTINE, interpreter="lab"), dag("other"))
    runs: list[int] = []
    for _ in range(60):
        role = rng.choice(["slot@lab", "async@lab"])
        match rng.randrange(5):
            case 0:
                world.turn(HostUp(role))
            case 1:
                lose(role, world, rng)
            case 2:
                world.finish_all()
            case 3:
                world.starts.clear()
                world.start_up()
                world.turn(Restarted(), HostUp("async"))
            case _:
                runs.append(world.trigger(rng.choice(["lab", "coroutines", "other"])))
    world.turn(HostUp("slot@lab"), HostUp("async@lab"))
    world.finish_all()

    assert {world.state(run, "work") for run in runs} == {"success"}
    assert {row.try_number for row in world.rows.tasks.values()} == {1}
