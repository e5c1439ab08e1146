"""Runs started by asset updates: each event is used once, and pending events are used together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aioflow.core.repair import execution
from aioflow.core.triggers import asset_conditions, event_runs
from aioflow.core.triggers.asset_conditions import is_condition_met, missing_assets
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.triggers import ASSETS, AssetCondition, DagTriggerSpec, EventOutcome
from aioflow.protocol.inputs import FileDeleted, RequestReceived
from aioflow.protocol.requests import ClearTasks, EmitEvent, SetPaused
from tests.core.test_event_runs import outcomes, packed
from tests.core.world import SECOND, World

A_AND_B = AssetCondition(True, ("a", "b"))
A_OR_B = AssetCondition(False, ("a", "b"))
EXTRA = msgspec.msgpack.encode({"rows": 3})
NOTHING = msgspec.msgpack.encode(None)


def consumer(condition: AssetCondition, **fields: Any) -> DagSpec:
    spec = DagTriggerSpec(class_path=ASSETS, kwargs=packed(condition), **fields.pop("said", {}))
    fields.setdefault("parameters", ("triggering_events",))
    return DagSpec(
        dag_id="dag", file="dag.py", tasks=(TaskSpec(task_id="use"),), trigger=spec, **fields
    )


def world_of(condition: AssetCondition, **fields: Any) -> World:
    """Return a world with a DAG scheduled by assets, and a DAG whose tasks update each of them."""
    world = World()
    makers = tuple(
        TaskSpec(task_id=f"make_{name}", outlets=((name, EXTRA if name == "a" else NOTHING),))
        for name in ("a", "b", "c")
    )
    world.load(DagSpec(dag_id="maker", file="maker.py", tasks=makers), file="maker.py")
    world.load(consumer(condition, **fields), version="v2")
    return world


def tell(world: World, *names: str) -> None:
    """Report asset updates from outside."""
    for name in names:
        world.ask(EmitEvent(name=f"asset:{name}", key=None, data=NOTHING))


@pytest.mark.parametrize(
    ("condition", "there", "missing"),
    [
        (A_AND_B, "", ["a", "b"]),
        (A_AND_B, "a", ["b"]),
        (A_AND_B, "ab", []),
        (A_OR_B, "", ["a", "b"]),
        (A_OR_B, "b", []),
        (AssetCondition(True, (A_OR_B, "c")), "a", ["c"]),
        (AssetCondition(True, (A_OR_B, "c")), "c", ["a", "b"]),
        (AssetCondition(False, (A_AND_B, "b")), "a", ["b"]),
    ],
)
def test_the_assets_that_are_missing_are_those_that_would_meet_the_condition(
    condition, there, missing
):
    assert missing_assets(condition, set(there)) == missing


def started(world: World) -> list[Any]:
    """Return the events that each run was given, in the order of the runs."""
    runs = sorted(world.rows.runs.items())
    return [
        {} if run.conf is None else msgspec.msgpack.decode(run.conf)["triggering_events"]
        for _, run in runs
        if run.dag_id == "dag"
    ]


def counts(world: World) -> list[dict[str, int]]:
    return [{name: len(events) for name, events in told.items()} for told in started(world)]


@pytest.mark.parametrize(
    ("condition", "there", "met"),
    [
        (A_AND_B, "", False),
        (A_AND_B, "a", False),
        (A_AND_B, "ab", True),
        (A_OR_B, "", False),
        (A_OR_B, "b", True),
        (AssetCondition(True, (A_OR_B, "c")), "a", False),
        (AssetCondition(True, (A_OR_B, "c")), "c", False),
        (AssetCondition(True, (A_OR_B, "c")), "bc", True),
        (AssetCondition(False, (A_AND_B, "c")), "b", False),
        (AssetCondition(False, (A_AND_B, "c")), "c", True),
        (AssetCondition(False, (A_AND_B, "c")), "ab", True),
    ],
)
def test_when_a_condition_is_met(condition, there, met):
    assert is_condition_met(condition, set(there)) is met


def test_the_success_of_a_task_starts_the_run_in_the_same_commit():
    world = world_of(AssetCondition(True, ("a",)))
    maker = world.trigger("maker")
    commits = world.rows.commit_no

    world.succeed("make_a")

    assert world.rows.commit_no == commits + 1
    (told,) = started(world)
    (event,) = told["a"]
    of = {"run_id": world.rows.runs[maker].run_id, "task_id": "make_a", "map_index": -1}
    assert event == {**of, "id": event["id"], "extra": {"rows": 3}}
    assert event["id"] in world.rows.named_events
    assert outcomes(world) == [EventOutcome.RUN]


def test_a_task_that_fails_makes_nothing():
    world = world_of(AssetCondition(True, ("a",)))
    world.trigger("maker")
    world.fail("make_a", retryable=False)

    assert started(world) == []


def test_all_of_them_start_one_run_with_all_that_was_held():
    world = world_of(A_AND_B)
    tell(world, "a", "a", "a")
    assert started(world) == []
    tell(world, "b")
    assert counts(world) == [{"a": 3, "b": 1}]

    tell(world, "b", "b", "a")
    assert counts(world)[1:] == [{"a": 1, "b": 2}]


def test_any_of_them_starts_a_run():
    world = world_of(A_OR_B)
    tell(world, "a", "b", "c")

    assert counts(world) == [{"a": 1}, {"b": 1}]


def test_pending_events_survive_a_restart():
    world = world_of(A_AND_B)
    tell(world, "a", "a")
    world.restart()
    assert outcomes(world) == [EventOutcome.HELD, EventOutcome.HELD]
    tell(world, "b")
    world.restart()

    assert counts(world) == [{"a": 2, "b": 1}]
    assert outcomes(world) == [EventOutcome.RUN] * 3


def test_a_turn_that_is_refused_holds_nothing():
    world = world_of(A_AND_B)
    tell(world, "a")
    world.refuse(RequestReceived(77, EmitEvent(name="asset:b", key=None, data=NOTHING)))

    assert counts(world) == [{"a": 1, "b": 1}]


def test_a_paused_dag_holds_the_run_or_the_events():
    world = world_of(AssetCondition(True, ("a",)))
    world.ask(SetPaused(dag_id="dag", paused=True))
    tell(world, "a")
    (run,) = world.rows.runs.values()
    assert run.state.label == "queued"

    stopping = world_of(AssetCondition(True, ("a",)), if_paused="stop")
    stopping.ask(SetPaused(dag_id="dag", paused=True))
    tell(stopping, "a", "a")
    assert started(stopping) == []
    stopping.ask(SetPaused(dag_id="dag", paused=False))
    assert counts(stopping) == [{"a": 2}]


def test_another_condition_goes_by_what_is_held_already():
    world = world_of(A_AND_B)
    tell(world, "a")
    world.load(consumer(A_OR_B), version="v3")

    assert counts(world) == [{"a": 1}]
    tell(world, "c")
    assert len(started(world)) == 1


def test_a_dag_that_is_gone_takes_nothing():
    world = world_of(AssetCondition(True, ("a",)))
    world.turn(FileDeleted("dag.py"))
    tell(world, "a")

    assert started(world) == []
    assert outcomes(world) == []


def test_a_dag_without_the_parameter_is_not_told_which_they_were():
    world = world_of(AssetCondition(True, ("a",)), parameters=())
    tell(world, "a")

    (run,) = world.rows.runs.values()
    assert run.conf is None


def test_only_the_latest_of_very_many_events_are_pending(monkeypatch):
    monkeypatch.setattr(asset_conditions, "PENDING_LIMIT", 3)
    monkeypatch.setattr(event_runs, "TOLD_LIMIT", 2)
    world = world_of(A_AND_B)
    tell(world, *"aaaaa")
    assert outcomes(world) == [EventOutcome.REPLACED] * 2 + [EventOutcome.HELD] * 3

    tell(world, "b")
    assert counts(world) == [{"a": 2, "b": 1}]
    assert outcomes(world) == [EventOutcome.REPLACED] * 2 + [EventOutcome.RUN] * 4


def test_skip_takes_what_was_held_with_it():
    world = world_of(AssetCondition(True, ("a",)), said={"if_running": "skip"})
    tell(world, "a", "a")

    assert outcomes(world) == [EventOutcome.RUN, EventOutcome.SKIPPED]


# ── more than can be run ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("restarted", [False, True])
def test_while_too_many_runs_wait_all_that_comes_is_held_for_one_run(monkeypatch, restarted):
    monkeypatch.setattr(event_runs, "RUNS_AHEAD", 2)
    world = world_of(AssetCondition(True, ("a",)), max_active_runs=1)
    tell(world, "a", "a", "a", "a", "a")
    assert counts(world) == [{"a": 1}] * 3
    if restarted:
        world.restart()

    world.succeed("use")
    assert counts(world) == [{"a": 1}] * 3 + [{"a": 2}]
    assert set(outcomes(world)) == {EventOutcome.RUN}


def test_pending_events_start_a_run_when_a_queued_run_starts_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(event_runs, "RUNS_AHEAD", 1)
    world = World()
    spec = consumer(AssetCondition(True, ("a",)), max_active_runs=1)
    tasks = (TaskSpec(task_id="first"), TaskSpec(task_id="use", parents=(0,), depends_on_past=True))
    world.load(msgspec.structs.replace(spec, tasks=tasks), version="v2")
    world.trigger(logical_date=2 * SECOND)
    before = world.trigger(logical_date=SECOND)
    assert world.run_state(before) == "queued"
    tell(world, "a")
    assert outcomes(world) == [EventOutcome.HELD]

    world.succeed("first")  # the next task waits for the run before, which begins for that
    assert world.run_state(before) == "running"
    assert outcomes(world) == [EventOutcome.RUN]


def test_pending_events_start_a_run_when_a_queued_run_is_cleared_over_several_turns(monkeypatch):
    monkeypatch.setattr(event_runs, "RUNS_AHEAD", 1)
    monkeypatch.setattr(execution, "SLICE_TASKS", 1)
    world = World()
    spec = consumer(AssetCondition(True, ("a",)), max_active_runs=1)
    names = [f"t{number}" for number in range(4)]
    tasks = tuple(TaskSpec(task_id=name) for name in names)
    world.load(msgspec.structs.replace(spec, tasks=tasks), version="v2")
    tell(world, "a")
    (first,) = world.memory.runs.values()
    for name in names:
        world.succeed(name)
    tell(world, "a")
    world.turn(RequestReceived(1, ClearTasks(run_id=first.row.run_id, tasks=("t0",))))
    tell(world, "a")
    assert world.run_state(first.row.run_no) == "queued"
    assert outcomes(world)[-1] is EventOutcome.HELD

    world.turn(RequestReceived(2, ClearTasks(run_id=first.row.run_id)))
    assert outcomes(world) == [EventOutcome.RUN] * 3
