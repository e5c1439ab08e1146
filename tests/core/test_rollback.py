"""A refused turn leaves no trace: memory, slots and waits are those of the last commit."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from aioflow.core import quarantine
from aioflow.core.step import TurnFailed, decide
from aioflow.model.dag import Body, DagSpec, MapSource, MapSpec, RetryPolicy, SensorSpec, TaskSpec
from aioflow.model.states import Failure, TaskState
from aioflow.protocol.effects import AssignTrigger, StartTry, StopTry
from aioflow.protocol.inputs import (
    FileDeleted,
    FileParsed,
    HostLost,
    HostUp,
    RequestReceived,
    Restarted,
)
from aioflow.protocol.reports import (
    Deferred,
    Failed,
    Recalled,
    SensorNotReady,
    Succeeded,
    TaskStarted,
    TriggerEnded,
    TriggerFired,
)
from aioflow.protocol.requests import CancelRun, ClearTasks, CreateRun, Mark, SetPool
from tests.core.world import World

SEGFAULT = Failure(type="Killed", message="SIGSEGV", reason="crashed")


def task(name: str, *parents: int, **fields: Any) -> TaskSpec:
    return TaskSpec(task_id=name, parents=parents, **fields)


def claiming_world() -> tuple[World, int]:
    """Return a run whose only worker runs child 1 and has claimed children 2 and 3."""
    world = World(cpu_slots=1)
    spec = MapSpec(sources=(MapSource("item", 0, -1),))
    run = world.begin(task("list", feeds_limit=9), task("work", 0, mapped=spec, map_limit=9))
    world.succeed("list", size=9, width=4)
    world.succeed("work", 0)
    return world, run


def ended(world: World, name: str, index: int = -1) -> Succeeded:
    start = world.started(name, index).start
    return Succeeded(start.task_no, start.start_no, world.now, world.now + 5)


def test_a_refused_begin_of_a_claimed_try_is_taken_when_it_is_repeated():
    world, run = claiming_world()
    second = world.started("work", 2).start
    inputs = (ended(world, "work", 1), TaskStarted(second.task_no, second.start_no, world.now))

    world.refuse(*inputs)

    assert world.state(run, "work", 1) == "success"
    assert world.state(run, "work", 2) == "running"
    assert world.slots.workers[0].current is world.memory.active_tasks[second.task_no]


def test_a_refused_recall_leaves_the_claims_where_they_are_until_it_is_repeated():
    world, run = claiming_world()
    tries = tuple((e.start.task_no, e.start.start_no) for e in world.starts.values() if e.claimed)
    for task_no, _ in tries:
        world.starts.pop(task_no)

    world.refuse(Recalled(tries))
    world.turn(ended(world, "work", 1))
    world.finish_all()

    assert world.run_state(run) == "success"


def test_a_rollback_by_an_unrelated_refusal_does_not_restore_a_recalled_claim():
    world, run = claiming_world()
    tries = tuple((e.start.task_no, e.start.start_no) for e in world.starts.values() if e.claimed)
    for task_no, _ in tries:
        world.starts.pop(task_no)
    world.slots.is_open = False  # so that no try is claimed again at once
    world.turn(Recalled(tries))

    world.refuse(ended(world, "work", 1))
    world.slots.is_open = True
    world.turn()
    world.finish_all()

    assert world.run_state(run) == "success"


def test_a_refused_cancel_still_stops_what_runs_when_it_is_repeated():
    world = World()
    run = world.begin(task("a"))

    world.refuse(RequestReceived(7, CancelRun(run_id=world.rows.runs[run].run_id)))

    assert world.run_state(run) == "cancelled"
    assert [e.task_no for e in world.effects if isinstance(e, StopTry)]
    assert world.slots.workers[0].is_idle


def test_a_running_task_keeps_its_slot_through_a_refusal():
    world = World(cpu_slots=1)
    run = world.begin(task("a"), task("b"))

    world.refuse(RequestReceived(7, CancelRun(run_id="nobody")), ended(world, "a"))

    assert world.state(run, "a") == "success"
    assert world.state(run, "b") == "running"
    assert not world.slots.workers[0].is_idle


@pytest.mark.parametrize("body", [Body.FUNCTION, Body.COROUTINE])
@pytest.mark.parametrize("request_of", [ClearTasks, partial(Mark, state=TaskState.SUCCESS)])
def test_a_refused_clear_or_mark_leaves_what_runs_in_its_place(request_of, body):
    world = World(cpu_slots=1)
    run = world.begin(task("a", body=body), task("b", body=body))
    world.turn(HostUp("async"))
    started = world.memory.active_tasks[world.started("a").start.task_no]
    slot = started.worker, started.is_hosted
    request = request_of(run_id=world.rows.runs[run].run_id, tasks=("a",))

    _, _, tx = world.decide([RequestReceived(0, request)])
    world.take_back(tx)

    started = world.memory.active_tasks[started.task_no]
    assert (started.worker, started.is_hosted) == slot != (-1, False)
    assert started.run.running == 1 + (body is Body.COROUTINE)
    world.finish_all()
    assert world.run_state(run) == "success"


def defer(world: World, name: str) -> Deferred:
    start = world.starts.pop(world.started(name).start.task_no).start
    return Deferred(start.task_no, start.start_no, world.now, world.now, "m:T", b"\x80", "next")


def test_a_refused_end_of_a_trigger_is_not_late_when_it_is_repeated():
    world = World()
    run = world.begin(task("wait", retry=RetryPolicy(tries=1)))
    world.turn(defer(world, "wait"))
    host = next(e for e in world.effects if isinstance(e, AssignTrigger)).host

    world.refuse(TriggerEnded(host.trigger_no, host.assignment_id, world.now, SEGFAULT))

    assert world.state(run, "wait") == "failed"
    assert not world.rows.triggers


def test_a_refused_deferral_leaves_no_wait_that_never_was():
    world = World()
    world.begin(task("wait"))

    world.refuse(defer(world, "wait"))

    assert world.memory.waits.keys() == world.rows.triggers.keys()
    assert len(world.memory.waits) == 1


def test_a_refused_event_resumes_once_when_it_is_repeated():
    world = World()
    run = world.begin(task("wait"))
    world.turn(defer(world, "wait"))
    host = next(e for e in world.effects if isinstance(e, AssignTrigger)).host

    world.refuse(TriggerFired(host.trigger_no, host.assignment_id, 0, world.now, b"\x01"))

    assert world.state(run, "wait") == "running"
    assert world.started("wait").start.start_no == 2


def test_a_deferred_sensor_is_hosted_again_though_a_turn_in_between_was_refused():
    world = World()
    world.begin(
        task("look", sensor=SensorSpec(), body=Body.COROUTINE), task("other", body=Body.COROUTINE)
    )
    world.turn(HostLost(role="async", culprit=-1, failure=SEGFAULT, at=world.now))
    world.starts.clear()

    world.refuse(RequestReceived(1, CreateRun(dag_id="dag")))
    world.turn(HostUp("async"))

    assert world.started("look") is not None


def test_queued_runs_keep_their_order():
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),), max_active_runs=1))
    first, second, third = (world.trigger() for _ in range(3))

    world.refuse(ended(world, "a"))

    assert [world.run_state(run) for run in (first, second, third)] == [
        "success",
        "running",
        "queued",
    ]


def test_a_refused_start_up_sweeps_stray_triggers_when_it_is_repeated():
    world = World()
    run = world.begin(task("wait"))
    world.turn(defer(world, "wait"))
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
    world.start_up()

    world.refuse(Restarted())

    assert not world.rows.triggers


def test_a_refused_pool_keeps_its_old_size():
    world = World()
    world.ask(SetPool(name="ledger", slots=2))

    _, _, tx = world.decide([RequestReceived(1, SetPool(name="ledger", slots=9))])
    world.take_back(tx)

    assert world.slots.pools["ledger"].slots == 2


def test_a_refused_move_of_a_dag_between_files_is_made_when_it_is_repeated():
    world = World()
    spec = DagSpec(dag_id="dag", file="a.py", tasks=(task("a"),))
    world.load(spec, file="a.py")
    world.load(spec, file="b.py", version="v2")

    world.refuse(FileDeleted("a.py"))

    assert (world.memory.dags["dag"].file, world.memory.dags["dag"].gone) == ("b.py", False)


@pytest.mark.parametrize("refused", [False, True])
def test_a_process_that_dies_before_its_first_begin_gives_the_try_back_uncharged(refused):
    world = World(cpu_slots=1)
    run = world.begin(task("a"))
    start = world.starts.pop(world.started("a").start.task_no).start
    recalled = Recalled(((start.task_no, start.start_no),))

    if refused:
        world.refuse(recalled)
    else:
        world.turn(recalled)

    assert world.state(run, "a") == "running"
    again = world.started("a").start
    assert (again.start_no, again.try_number) == (2, 1)
    assert world.memory.active_tasks[again.task_no].interruptions == 0


def test_a_file_parsed_twice_in_refused_turns_is_one_version():
    world = World()
    spec = DagSpec(dag_id="dag", file="a.py", tasks=(task("a"),))

    world.refuse(FileParsed(file="a.py", version="v1", dags=(spec,), sources={}))

    assert list(world.rows.versions) == ["v1"]


def test_a_report_that_cannot_be_taken_still_frees_its_slot():
    from aioflow.core import rollback

    world = World(cpu_slots=1)
    world.begin(task("a"))
    start = world.started("a").start
    report = Failed(start.task_no, start.start_no, 1, 2, SEGFAULT)

    rollback.free_slot(report, world.memory, world.slots)

    assert world.slots.workers[0].is_idle


# ── attribution of refused inputs ───────────────────────────────────────────────────────


def test_a_report_that_raises_before_it_touched_anything_is_blamed_on_its_run():
    world = World()
    run = world.begin(task("a"))
    start = world.started("a").start
    unreadable: Any = "a time that is none"

    with pytest.raises(TurnFailed) as failed:
        world.decide([Succeeded(start.task_no, start.start_no, world.now, unreadable)])

    assert not failed.value.tx.runs
    entry = Succeeded(start.task_no, start.start_no, world.now, unreadable)
    blamed = quarantine.blamed(entry, world.memory)
    assert [held.run_no for held in blamed] == [run]


def test_a_run_that_only_began_in_the_same_turn_is_not_blamed():
    world = World()
    first = world.begin(task("a"), max_active_runs=1)
    second = world.trigger()
    entry = ended(world, "a")

    _, _, tx = world.decide([entry])
    world.take_back(tx)

    assert set(tx.runs) == {first, second}
    assert [run.run_no for run in quarantine.blamed(entry, world.memory)] == [first]


def test_a_turn_that_grants_nothing_starts_nothing():
    world = World(cpu_slots=1)
    world.begin(task("a"), task("b"))

    _, effects, _ = decide(
        world.memory,
        world.slots,
        [ended(world, "a")],
        at=world.moment,
        random=lambda: 0.0,
        numbers=world.numbers,
        granting=False,
    )

    assert not [effect for effect in effects if isinstance(effect, StartTry)]


def test_a_refused_start_up_counts_the_runs_of_a_dag_once_when_it_is_repeated():
    world = World()
    world.begin(task("a"), max_active_runs=1)
    second = world.trigger()
    world.start_up()
    world.refuse(Restarted())

    world.finish_all()

    assert world.run_state(second) == "success"


def test_a_look_that_was_offered_twice_is_not_taken_before_its_instant():
    world = World(cpu_slots=1)
    sensor = SensorSpec(interval_us=60_000_000, timeout_us=3_600_000_000)
    world.begin(task("file", sensor=sensor))
    world.start_up()
    world.refuse(Restarted())
    look = world.started("file").start

    effects = world.turn(SensorNotReady(look.task_no, look.start_no, world.now, world.now + 5))

    assert not [effect for effect in effects if isinstance(effect, StartTry)]


def test_a_refused_change_of_a_file_leaves_the_version_that_is_in_force():
    world = World()
    world.load(DagSpec(dag_id="dag", file="dag.py", tasks=(task("a"),)))
    spec = DagSpec(dag_id="dag", file="dag.py", tasks=(task("b"),))
    parsed = FileParsed(file="dag.py", version="v2", dags=(spec,), sources={})

    _, _, tx = world.decide([parsed])
    world.take_back(tx)

    run = world.trigger()
    assert world.state(run, "a") == "running"
