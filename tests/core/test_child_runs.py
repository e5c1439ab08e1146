"""Runs that a task starts and awaits: one per call, whatever is repeated or killed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.model.dag import Body, DagSpec, RetryPolicy, TaskSpec
from aioflow.model.states import RecordState
from aioflow.protocol.effects import AssignTrigger, ConfirmCall
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.reports import RunCalled
from aioflow.protocol.requests import CancelRun, Explain
from tests.core.test_durable_calls import NOW_AND_THEN, answers, begun, of_kind, resumed, start_of
from tests.core.world import SECOND, World

CHILD = DagSpec(
    dag_id="child",
    file="child.py",
    tasks=(TaskSpec(task_id="work", retry=RetryPolicy(tries=1)),),
    parameters=("n",),
    max_active_runs=1,
)


def parent(**fields: Any) -> tuple[World, int]:
    """Start a run of a single coroutine, and load a DAG that the coroutine can run."""
    world = World()
    world.load(CHILD, version="c1", file="child.py")
    return begun(world, **fields)


def call(
    world: World, ordinal: int = 0, dag_id: str = "child", conf: bytes | None = None
) -> RunCalled:
    """Return the report that the coroutine runs another DAG."""
    start = start_of(world)
    at = (start.task_no, start.start_no, world.now, world.now, ordinal)
    return RunCalled(*at, "run_dag", dag_id, "flow.py:6", dag_id, conf)


def suspend(world: World, ordinal: int = 0) -> RunCalled:
    report = call(world, ordinal)
    del world.starts[report.task_no]
    world.turn(report)
    return report


def children(world: World) -> list[Any]:
    return [run for run in world.rows.runs.values() if run.dag_id == "child"]


def test_the_run_its_record_and_the_wait_are_one_commit():
    world, run_no = parent()
    commits = world.rows.commit_no

    suspend(world)

    (child,), (wait,) = children(world), world.rows.triggers.values()
    assert world.rows.commit_no == commits + 1
    assert (child.cause, child.caller) == ("task", wait.trigger_no)
    assert [row.state for row in world.rows.records.values()] == [RecordState.OPEN]
    assert world.state(run_no, "c") == "deferred"
    assert of_kind(world.effects, AssignTrigger) == []


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_successful_run_resumes_its_caller_with_its_end(comes_back):
    world, run_no = parent()
    suspend(world)
    (child,) = children(world)
    if comes_back:
        world.restart()

    world.succeed("work")

    assert answers(world) == [{"state": "success", "run_id": child.run_id, "result": None}]
    assert world.rows.triggers == {}
    assert world.state(run_no, "c") == "running"


def test_the_end_of_the_run_and_the_answer_are_one_commit_and_the_coroutine_is_resumed():
    world, _ = parent()
    suspend(world)
    commits = world.rows.commit_no

    world.succeed("work")

    assert world.rows.commit_no == commits + 1
    assert msgspec.msgpack.decode(resumed(world).answer)["state"] == "success"


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_run_that_ended_badly_fails_the_call(how):
    world, run_no = parent()
    suspend(world)
    (child,) = children(world)

    if how == "failed":
        world.fail("work")
    else:
        world.ask(CancelRun(run_id=child.run_id))

    resume = resumed(world)
    assert resume.failure.type == "aioflow.errors:DagRunFailed"
    assert msgspec.msgpack.decode(resume.answer) == ["child", child.run_id, how]
    assert [row.state for row in world.rows.records.values()] == [RecordState.FAILED]
    assert world.state(run_no, "c") == "running"


def test_the_try_after_a_failed_call_starts_a_new_run():
    world, _ = parent()
    suspend(world)
    world.fail("work")

    world.fail("c")
    world.pass_time(1)
    assert start_of(world).recorded == 0
    suspend(world)

    assert len(children(world)) == 2


def test_a_report_that_is_repeated_makes_no_second_run():
    world, _ = parent()
    report = suspend(world)

    world.turn(report)
    world.restart()
    world.turn(report)

    assert len(children(world)) == 1


def test_a_turn_that_is_taken_back_leaves_one_run():
    world, run_no = parent()

    world.refuse(call(world))

    assert len(children(world)) == 1
    assert world.state(run_no, "c") == "deferred"
    assert world.memory.active_runs == {"dag": 1, "child": 1}


@pytest.mark.parametrize(
    ("dag_id", "conf", "error", "arguments"),
    [
        pytest.param("nobody", None, "UnknownDag", ["nobody"], id="unknown"),
        pytest.param("child", b"\x81\xa1x\x01", "BadConf", None, id="parameters"),
    ],
)
def test_a_run_that_cannot_be_made_fails_the_call_at_once(dag_id, conf, error, arguments):
    world, run_no = parent()

    effects = world.turn(call(world, dag_id=dag_id, conf=conf))

    (confirmed,) = of_kind(effects, ConfirmCall)
    told = msgspec.msgpack.decode(confirmed.recorded.answer)
    assert confirmed.recorded.failure.type == f"aioflow.errors:{error}"
    assert told == (arguments or [confirmed.recorded.failure.message])
    assert world.state(run_no, "c") == "running"
    assert children(world) == []
    assert [row.state for row in world.rows.records.values()] == [RecordState.FAILED]


def test_a_run_waits_for_those_of_its_dag_and_its_caller_says_so():
    world, run_no = parent()
    first = world.trigger("child")
    suspend(world)
    (_, child) = children(world)

    waits = world.ask(Explain(run_id=world.rows.runs[run_no].run_id, tasks=((0, -1),)))[0, -1]
    world.succeed("work")

    assert waits.detail == f"run {child.run_id} of child, which is queued"
    assert world.run_state(first) == "success"
    assert world.run_state(child.run_no) == "running"


def test_a_cancelled_caller_leaves_its_run_alone():
    world, run_no = parent()
    suspend(world)
    (child,) = children(world)

    world.ask(CancelRun(run_id=world.rows.runs[run_no].run_id))
    assert world.rows.triggers == {}
    world.succeed("work")

    assert world.run_state(run_no) == "cancelled"
    assert world.run_state(child.run_no) == "success"


def test_a_caller_that_times_out_fails_and_leaves_its_run_alone():
    world, run_no = parent(execution_timeout_us=60 * SECOND, retry=RetryPolicy(tries=1))
    suspend(world)

    world.pass_time(61)
    assert world.state(run_no, "c") == "failed"
    world.succeed("work")

    assert [world.run_state(run.run_no) for run in children(world)] == ["success"]


def test_a_run_without_work_answers_at_once():
    world = World()
    world.load(DagSpec(dag_id="child", file="child.py", tasks=()), version="c1", file="child.py")
    world, _ = begun(world)

    suspend(world)

    assert msgspec.msgpack.decode(resumed(world).answer)["state"] == "success"


def test_a_dag_may_run_itself_as_deep_as_its_limit_admits():
    world = World()
    task = TaskSpec(task_id="c", body=Body.COROUTINE, retry=NOW_AND_THEN)
    run_no = world.begin(task, max_active_runs=2)

    suspend_self(world)
    world.succeed("c")

    assert msgspec.msgpack.decode(resumed(world).answer)["state"] == "success"
    assert world.run_state(run_no) == "running"


def suspend_self(world: World) -> None:
    report = call(world, dag_id="dag")
    del world.starts[report.task_no]
    world.turn(report)


def test_many_callers_are_each_answered_by_their_own_run():
    world = World()
    world.load(CHILD, version="c1", file="child.py")
    tasks = tuple(TaskSpec(task_id=f"c{n}", body=Body.COROUTINE) for n in range(5))
    world.begin(*tasks)
    for effect in list(world.starts.values()):
        start = effect.start
        del world.starts[start.task_no]
        at = (start.task_no, start.start_no, world.now, world.now, 0)
        world.turn(RunCalled(*at, "run_dag", "child", "flow.py:6", "child", None))
    callers = {run.caller: run.run_id for run in children(world)}
    waits = {row.trigger_no: row.task_no for row in world.rows.triggers.values()}

    told = {}
    for _ in range(5):
        world.succeed("work")
        for effect in list(world.starts.values()):
            if effect.resume is not None:
                answer = msgspec.msgpack.decode(effect.resume.answer or b"")
                told[effect.start.task_no] = answer["run_id"]

    assert told == {waits[number]: run_id for number, run_id in callers.items()}


def test_a_request_in_the_same_turn_as_the_end_sees_one_answer():
    world, _ = parent()
    suspend(world)
    (child,) = children(world)
    effect = world.started("work")
    assert effect is not None

    world.turn(
        RequestReceived(1, CancelRun(run_id=child.run_id)),
        RequestReceived(2, CancelRun(run_id=child.run_id)),
    )

    assert resumed(world).failure.type == "aioflow.errors:DagRunFailed"
    assert len(of_kind(world.effects, ConfirmCall)) == 0


def test_a_run_that_is_only_started_is_one_commit_and_its_caller_continues():
    world, run_no = parent()
    commits = world.rows.commit_no
    report = msgspec.structs.replace(call(world), kind="start_dag", waits=False)

    effects = world.turn(report)

    (child,) = children(world)
    assert world.rows.commit_no == commits + 1
    assert child.caller is None
    (told,) = [effect.recorded for effect in effects if isinstance(effect, ConfirmCall)]
    assert msgspec.msgpack.decode(told.answer or b"") == child.run_id
    assert world.state(run_no, "c") == "running"
    world.turn(report)
    assert len(children(world)) == 1
