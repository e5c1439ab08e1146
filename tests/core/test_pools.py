"""Pools that count deferred tasks: a deferred task keeps its pool slot and resumes in it."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core import rollback
from aioflow.core.why import still_waits
from aioflow.model.dag import Body, DagSpec, RetryPolicy, SensorSpec, TaskSpec
from aioflow.model.states import CODE_MISSING, Failure, TaskState, WaitKind
from aioflow.protocol.effects import AssignTrigger, StartTry
from aioflow.protocol.inputs import HostLost, HostUp, RequestReceived, Restarted
from aioflow.protocol.reports import (
    Awaiting,
    Deferred,
    Failed,
    Succeeded,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import CancelRun, ClearTasks, Explain, Mark, SetPool, ShowPools
from tests.core.test_quarantine import quarantine
from tests.core.world import SECOND, World

ONCE = RetryPolicy(tries=1)
KILLED = Failure(type="Killed", message="SIGKILL", reason="killed")
MISSING = Failure(type="CodeMissing", message="not there", reason=CODE_MISSING)
LOOKING = SensorSpec(interval_us=60 * SECOND, timeout_us=3600 * SECOND)
BODIES = pytest.mark.parametrize("body", [Body.FUNCTION, Body.COROUTINE])


def a_pool(world: World, slots: int | None = 1, *, counts: bool = True) -> None:
    world.ask(SetPool(name="ledger", slots=slots, include_deferred=counts))


def task(name: str, **fields: Any) -> TaskSpec:
    fields.setdefault("retry", ONCE)
    return TaskSpec(task_id=name, pool="ledger", **fields)


def used(world: World) -> int:
    ((_, taken),) = world.ask(ShowPools())
    return taken


def defer(world: World, name: str) -> AssignTrigger:
    """Defer a running task: a function in a method, a coroutine in the middle of its body."""
    effect = world.started(name)
    assert effect is not None
    start = world.starts.pop(effect.start.task_no).start
    said = (start.task_no, start.start_no, world.now, world.now)
    if effect.body is Body.FUNCTION:
        world.turn(Deferred(*said, "m:T", b"\x80", "next"))
    else:
        world.turn(Awaiting(*said, 0, "wait", "m:T", "dag.py:1", (("m:T", b"\x80"),)))
    return [effect for effect in world.effects if isinstance(effect, AssignTrigger)][-1]


def fire(world: World, hosted: AssignTrigger) -> None:
    host = hosted.host
    world.turn(
        TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\x01"),
        TriggerEnded(host.trigger_no, host.assignment_id, world.now),
    )


@BODIES
def test_a_deferred_task_keeps_its_pool_slot_and_resumes_in_it(body):
    world = World()
    a_pool(world)
    run = world.begin(task("first", body=body), task("second", body=body))
    hosted = defer(world, "first")
    assert (used(world), world.state(run, "second")) == (1, "queued")

    fire(world, hosted)
    assert (world.state(run, "first"), world.state(run, "second")) == ("running", "queued")
    assert used(world) == 1
    world.succeed("first")

    assert world.state(run, "second") == "running"
    world.succeed("second")
    assert used(world) == 0


def test_it_keeps_its_room_while_no_worker_is_free():
    world = World(cpu_slots=1)
    a_pool(world)
    run = world.begin(task("first"), task("second"))
    hosted = defer(world, "first")
    world.load(DagSpec(dag_id="busy", file="b.py", tasks=(TaskSpec(task_id="b"),)), file="b.py")
    world.trigger("busy")

    fire(world, hosted)

    assert (world.state(run, "first"), world.state(run, "second")) == ("queued", "queued")
    why = world.ask(Explain(run_id=world.rows.runs[run].run_id, tasks=((0, -1), (1, -1))))
    assert why[0, -1].detail == "all 1 slots of pool ledger are taken"
    assert why[1, -1].kind is WaitKind.SLOT
    assert why[1, -1].detail == ("pool ledger: 1 of 1 slots are taken, 1 of them by deferred tasks")
    world.succeed("b")
    assert (world.state(run, "first"), world.state(run, "second")) == ("running", "queued")


def restart(world: World) -> None:
    """Crash, and restart with the rows of the pools."""
    rows = dict(world.slots.pools)
    world.start_up()
    world.slots.pools = rows
    world.turn(Restarted())
    world.turn(HostUp("async"), HostUp("triggers"))


@BODIES
def test_deferred_tasks_use_the_same_pool_slots_after_a_restart(body):
    world = World()
    a_pool(world)
    run = world.begin(task("first", body=body), task("second", body=body))
    defer(world, "first")

    restart(world)

    assert (used(world), world.state(run, "second")) == (1, "queued")
    fire(world, [effect for effect in world.effects if isinstance(effect, AssignTrigger)][-1])
    assert (world.state(run, "first"), world.state(run, "second")) == ("running", "queued")


@BODIES
def test_a_refused_turn_leaves_the_rooms_as_they_were(body):
    world = World()
    a_pool(world)
    world.begin(task("first", body=body), task("second", body=body))
    host = defer(world, "first").host

    _, _, tx = world.decide(
        [TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\x01")]
    )
    world.take_back(tx)

    assert used(world) == 1
    world.turn(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\x01"))
    assert (used(world), world.started("first") is not None) == (1, True)


@BODIES
def test_a_pool_that_counts_what_waits_from_now_on_counts_it_at_once(body):
    world = World(cpu_slots=3)
    a_pool(world, 2, counts=False)
    run = world.begin(*(task(name, body=body) for name in "abcd"))
    defer(world, "a")
    hosted = defer(world, "b")
    assert (used(world), world.state(run, "d")) == (2, "running")

    a_pool(world, 2)
    assert used(world) == 4
    world.succeed("c")
    world.succeed("d")
    assert used(world) == 2
    fire(world, hosted)
    assert (used(world), world.state(run, "b")) == (2, "running")

    a_pool(world, 2, counts=False)
    assert used(world) == 1


def test_tasks_that_exceed_a_reduced_pool_continue_nevertheless():
    world = World()
    a_pool(world, 2)
    run = world.begin(task("wide", slots=2), task("narrow"))
    hosted = defer(world, "wide")
    a_pool(world, 1)

    fire(world, hosted)

    assert (world.state(run, "wide"), world.state(run, "narrow")) == ("running", "queued")
    world.succeed("wide")
    assert world.state(run, "narrow") == "running"


def test_a_resumed_task_of_no_room_does_not_stand_before_one_that_has_its_own():
    """Both tasks resume after a wait, but one of them released its pool slot when it failed."""
    world = World()
    a_pool(world, 1)
    again = RetryPolicy(tries=2, delay_us=0, jitter=False)
    run = world.begin(task("failed", body=Body.COROUTINE, retry=again, priority=9), task("kept"))
    hosted = defer(world, "failed")
    fire(world, hosted)
    world.fail("failed")
    assert world.state(run, "kept") == "running"
    hosted = defer(world, "kept")
    world.pass_time(1)
    assert world.state(run, "failed") == "queued"

    fire(world, hosted)

    assert (world.state(run, "kept"), world.state(run, "failed")) == ("running", "queued")
    assert used(world) == 1


@BODIES
def test_a_wait_that_ends_releases_its_pool_slot(body):
    world = World()
    a_pool(world)
    run = world.begin(task("first", body=body), task("second", body=body))
    host = defer(world, "first").host

    world.turn(TriggerEnded(host.trigger_no, host.assignment_id, world.now))

    assert (world.state(run, "first"), world.state(run, "second")) == ("failed", "running")
    defer(world, "second")
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
    assert used(world) == 0


@BODIES
@pytest.mark.parametrize("again", [False, True], ids=["marked", "cleared"])
def test_a_deferred_task_that_a_person_ends_releases_its_pool_slots(body, again):
    world = World()
    a_pool(world)
    run = world.begin(task("first", body=body), task("second", body=body))
    run_id = world.rows.runs[run].run_id
    defer(world, "first")
    assert (used(world), world.state(run, "second")) == (1, "queued")

    if again:
        world.ask(ClearTasks(run_id=run_id, tasks=("first",)))
    else:
        world.ask(Mark(run_id=run_id, state=TaskState.SUCCESS, tasks=("first",)))

    assert (used(world), world.state(run, "second")) == (1, "running")
    world.finish_all()
    assert (used(world), world.run_state(run)) == (0, "success")


def test_a_host_that_dies_takes_no_room_away():
    world = World()
    a_pool(world)
    world.begin(task("first", body=Body.COROUTINE), task("second", body=Body.COROUTINE))
    defer(world, "first")

    world.turn(HostLost(role="async", culprit=-1, failure=KILLED, at=world.now), HostUp("async"))

    assert (used(world), world.starts) == (1, {})


def test_a_sensor_in_a_worker_weighs_while_it_is_deferred_and_a_hosted_one_never():
    world = World()
    a_pool(world)
    run = world.begin(
        task("def", sensor=LOOKING),
        task("async", sensor=LOOKING, body=Body.COROUTINE),
        task("next"),
    )
    hosted = defer(world, "def")
    assert (used(world), world.state(run, "async")) == (1, "sensing")
    assert world.state(run, "next") == "queued"

    fire(world, hosted)
    world.succeed("def")

    assert world.state(run, "next") == "running"


def a_resumed_sensor(world: World) -> tuple[int, StartTry]:
    """Resume a sensor in a pool with one slot. Another task waits for that slot."""
    a_pool(world)
    run = world.begin(task("looks", sensor=LOOKING), task("next"))
    fire(world, defer(world, "looks"))
    resumed = world.started("looks")
    assert resumed is not None
    return run, resumed


def test_a_resumed_sensor_whose_code_is_missing_asks_for_its_pool_slot_again():
    world = World()
    run, resumed = a_resumed_sensor(world)
    start = world.starts.pop(resumed.start.task_no).start

    world.turn(Failed(start.task_no, start.start_no, None, world.now, MISSING))
    assert (world.state(run, "looks"), world.state(run, "next")) == ("retrying", "running")
    world.pass_time(3)

    assert (world.state(run, "looks"), used(world)) == ("queued", 1)
    world.succeed("next")
    assert world.state(run, "looks") == "running"


def test_a_resumed_sensor_of_a_quarantined_run_takes_no_pool_slot_from_others_at_a_restart():
    world = World()
    run, resumed = a_resumed_sensor(world)
    end = Succeeded(resumed.start.task_no, resumed.start.start_no, world.now, world.now)
    _, _, tx = world.decide([end])
    world.take_back(tx)
    rollback.free_slot(end, world.memory, world.slots)  # its process is done with it
    world.aside(lambda tx: tx.change_run(world.memory.runs[run], quarantine="refused"))
    other_dag = DagSpec(dag_id="other", file="other.py", tasks=(task("waits"),))
    world.load(other_dag, version="v2", file="other.py")
    other = world.trigger("other")
    defer(world, "waits")

    restart(world)

    assert (world.state(run, "looks"), world.state(other, "waits")) == ("queued", "deferred")
    assert used(world) == 1


def a_deferred_task_before_another_run(world: World) -> tuple[int, AssignTrigger, int]:
    """Defer a task that keeps the only slot of its pool. Another run waits for the slot."""
    a_pool(world)
    held = world.begin(task("looks"))
    hosted = defer(world, "looks")
    other = DagSpec(dag_id="other", file="o.py", tasks=(task("next"),))
    world.load(other, version="v2", file="o.py")
    waits = world.trigger("other")
    assert world.state(waits, "next") == "queued"
    return held, hosted, waits


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_wait_that_ends_in_a_quarantined_run_releases_its_pool_slot(is_restarted):
    world = World()
    held, hosted, waits = a_deferred_task_before_another_run(world)
    quarantine(world, held)
    assert (used(world), world.state(waits, "next")) == (1, "queued")
    if is_restarted:
        restart(world)
        assert (used(world), world.state(waits, "next")) == (1, "queued")
        hosted = [effect for effect in world.effects if isinstance(effect, AssignTrigger)][-1]

    fire(world, hosted)

    assert (world.state(held, "looks"), world.state(waits, "next")) == ("queued", "running")
    world.succeed("next")
    assert (used(world), world.slots.used_by_deferred("ledger")) == (0, 0)


def test_a_resumed_task_releases_its_pool_slot_when_its_run_is_quarantined():
    world = World(cpu_slots=1)
    held, hosted, waits = a_deferred_task_before_another_run(world)
    world.load(DagSpec(dag_id="busy", file="b.py", tasks=(TaskSpec(task_id="b"),)), file="b.py")
    world.trigger("busy")
    fire(world, hosted)
    assert (world.state(held, "looks"), used(world)) == ("queued", 1)

    quarantine(world, held)
    world.succeed("b")

    assert world.state(waits, "next") == "running"


def test_a_quarantined_run_that_is_cleared_gets_its_pool_slot_again():
    world = World()
    held, hosted, waits = a_deferred_task_before_another_run(world)
    run_id = world.rows.runs[held].run_id
    quarantine(world, held)
    fire(world, hosted)
    world.ask(CancelRun(run_id=run_id))
    assert (world.state(waits, "next"), used(world)) == ("running", 1)

    world.ask(ClearTasks(run_id=run_id))

    assert world.state(held, "looks") == "queued"
    world.succeed("next")
    assert (world.state(held, "looks"), used(world)) == ("running", 1)
    defer(world, "looks")
    assert used(world) == 1


def test_tasks_that_wait_for_something_else_than_their_turn():
    world = World(cpu_slots=1)
    a_pool(world)
    run = world.begin(
        task("first"), task("second"), task("third", sensor=LOOKING, body=Body.COROUTINE)
    )
    defer(world, "first")

    found = [still_waits(world.memory, run, task_index, -1) for task_index in range(3)]

    assert found == [True, False, True]
    assert not still_waits(world.memory, run, 0, 3)
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
    assert not still_waits(world.memory, run, 0, -1)


@pytest.mark.parametrize("wishes", [(2, None, 3), (None, 3, None)], ids=["set-last", "lifted-last"])
def test_the_last_of_several_changes_of_a_pool_in_one_turn_is_stored(wishes):
    world = World()
    a_pool(world, 1)

    asked = [SetPool(name="ledger", slots=slots, include_deferred=True) for slots in wishes]
    batch, _, _ = world.decide(
        RequestReceived(100 + at, request) for at, request in enumerate(asked)
    )

    stored = [(row.name, row.slots) for row in batch.pools], batch.gone_pools
    lifted, limited = ([], ["ledger"]), ([("ledger", wishes[-1])], [])
    assert stored == (lifted if wishes[-1] is None else limited)
