"""Clearing with the newest version: moving runs to it, refusals, and crashes."""

from __future__ import annotations

from typing import Any

import pytest

from aioflow.core.repair import execution
from aioflow.core.runs.version_upgrade import differences
from aioflow.errors import DagBroken, VersionDiffers
from aioflow.model.dag import Chooses, DagSpec, MapSource, MapSpec, RetryPolicy, TaskSpec
from aioflow.model.states import TaskState, TriggerRule
from aioflow.protocol.inputs import FileDeleted, RequestReceived
from aioflow.protocol.reports import TaskStarted
from aioflow.protocol.requests import CancelRun, ClearTasks
from tests.core.specs import mapped, task
from tests.core.world import World

ONCE = RetryPolicy(tries=1)


def dag(*tasks: TaskSpec, **fields: Any) -> DagSpec:
    return DagSpec(dag_id="dag", file="dag.py", tasks=tasks, **fields)


def clear(world: World, run: int, *tasks: str, **fields: Any) -> int:
    request = ClearTasks(run_id=world.rows.runs[run].run_id, tasks=tasks, **fields)
    count, _ = world.ask(request)
    return int(count)


def version(world: World, run: int) -> str:
    return world.rows.runs[run].version


def failed_chain() -> tuple[World, int]:
    """Return a run of two tasks in a row. The second failed, and the file has been fixed since."""
    world = World()
    run = world.begin(task("a"), task("b", 0, retry=ONCE))
    world.succeed("a", body=b"\x01", size=1)
    world.fail("b")
    world.load(dag(task("a"), task("b", 0)), version="v2")
    return world, run


def test_a_cleared_task_runs_the_version_of_its_run():
    world, run = failed_chain()

    assert clear(world, run, "b") == 1

    assert version(world, run) == "v1"
    started = world.started("b")
    assert started is not None
    assert started.info.version == "v1"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_latest_moves_an_ended_run_to_the_newest_version(is_restarted: bool):
    world, run = failed_chain()

    assert clear(world, run, "b", latest=True) == 1
    if is_restarted:
        world.restart()

    assert version(world, run) == "v2"
    started = world.started("b")
    assert started is not None
    assert started.info.version == "v2"
    world.fail("b")
    assert world.state(run, "b") == "retrying"  # as the newest version says
    assert world.state(run, "a") == "success"


def test_the_newest_version_itself_is_no_move():
    world, run = failed_chain()
    clear(world, run, "b", latest=True)
    world.succeed("b")

    assert clear(world, run, latest=True) == 2

    assert sum(len(batch.run_versions) for batch in world.batches) == 1
    assert version(world, run) == "v2"


def test_the_move_is_one_commit_with_the_clear():
    world, run = failed_chain()
    before = len(world.batches)

    clear(world, run, "b", latest=True)

    first = world.batches[before]
    assert first.run_versions == [(run, "v1", "v2")]
    assert [change.state for change in first.task_changes] == [TaskState.PENDING]


def test_a_request_that_comes_twice_moves_once():
    world, run = failed_chain()
    assert clear(world, run, "b", latest=True, key="k") == 1
    world.succeed("b")
    world.load(dag(task("a"), task("b", 0)), version="v3")

    assert clear(world, run, "b", latest=True, key="k") == 1

    assert version(world, run) == "v2"


def test_a_turn_that_is_taken_back_leaves_the_version():
    world, run = failed_chain()
    request = ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("b",), latest=True)

    world.refuse(RequestReceived(99, request))

    assert version(world, run) == "v2"
    assert sum(len(batch.run_versions) for batch in world.batches) == 1
    world.succeed("b")
    assert world.run_state(run) == "success"


def test_a_live_run_moves_when_all_that_is_under_way_is_cleared():
    world = World()
    run = world.begin(task("a"), task("b"), task("c", 0, 1))
    world.fail("a")
    world.succeed("b")
    assert world.state(run, "a") == "retrying"
    world.load(dag(task("a"), task("b"), task("c", 0, 1)), version="v2")

    clear(world, run, "a", latest=True)

    started = world.started("a")
    assert started is not None
    assert started.info.version == "v2"
    world.succeed("a")
    last = world.started("c")
    assert last is not None
    assert last.info.version == "v2"  # it had not begun
    world.succeed("c")
    assert world.run_state(run) == "success"


def test_nothing_under_way_changes_its_code():
    world = World()
    run = world.begin(task("a", retry=ONCE), task("slow"))
    start = world.started("slow")
    assert start is not None
    world.turn(TaskStarted(start.start.task_no, start.start.start_no, world.now))
    world.fail("a")
    world.load(dag(task("a"), task("slow")), version="v2")

    with pytest.raises(VersionDiffers, match="task 'slow' is under way; clear that, too, or wait"):
        clear(world, run, "a", latest=True)

    assert version(world, run) == "v1"
    assert world.state(run, "a") == "failed"
    assert clear(world, run, latest=True) == 2
    assert version(world, run) == "v2"


def test_children_keep_their_numbers_and_continue_with_the_newest_version():
    world = World(cpu_slots=8)
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0, retry=ONCE), task("sum", 1))
    world.succeed("list", size=9, width=3)
    world.succeed("work", 0)
    world.fail("work", 1)
    world.load(
        dag(task("list", feeds_limit=99), mapped("work", 0, pool="wide"), task("sum", 1)),
        version="v2",
    )
    world.turn()

    with pytest.raises(VersionDiffers, match="'work' is under way"):
        clear(world, run, "work", map_index=1, latest=True)  # the third child still runs
    assert clear(world, run, "work", downstream=True, latest=True) == 4

    numbers = {row.task_no for row in world.rows.tasks.values() if row.map_index >= 0}
    assert len(numbers) == 3
    for index in range(3):
        started = world.started("work", index)
        assert started is not None
        assert started.info.version == "v2"
        world.succeed("work", index)
    world.succeed("sum")
    assert world.run_state(run) == "success"


def test_a_wide_fan_out_moves_at_once_and_is_cleared_in_slices(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(execution, "SLICE_TASKS", 2)
    world = World(cpu_slots=8)
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0, retry=ONCE))
    world.succeed("list", size=9, width=5)
    for index in range(5):
        world.fail("work", index)
    world.load(dag(task("list", feeds_limit=99), mapped("work", 0)), version="v2")
    request = ClearTasks(run_id=world.rows.runs[run].run_id, failed=True, latest=True)

    batch, _, tx = world.decide([RequestReceived(0, request)])
    world._commit(batch, tx)
    assert version(world, run) == "v2"
    world.restart()  # kill -9 between two slices

    assert [world.state(run, "work", index) for index in range(5)] == ["running"] * 5
    assert {effect.info.version for effect in world.starts.values()} == {"v2"}
    for index in range(5):
        world.succeed("work", index)
    assert world.run_state(run) == "success"


def test_more_under_way_than_one_turn_stops_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(execution, "SLICE_TASKS", 2)
    world = World(cpu_slots=8)
    run = world.begin(task("a"), task("b"), task("c"))
    world.load(dag(task("a"), task("b"), task("c")), version="v2")

    with pytest.raises(VersionDiffers, match="more than 2 tasks are under way; cancel the run"):
        clear(world, run, latest=True)

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))
    assert clear(world, run, latest=True) == 3
    assert version(world, run) == "v2"


def test_a_time_limit_of_the_newest_version_holds():
    world = World()
    tasks = (task("a", retry=ONCE), task("b", 0))
    run = world.begin(*tasks, run_timeout_us=60_000_000)
    world.load(dag(*tasks), version="v2")

    clear(world, run, latest=True)
    world.pass_time(61)

    assert world.run_state(run) == "running"


def test_a_shorter_time_limit_holds_at_once():
    world = World()
    tasks = (task("a", retry=ONCE), task("b", 0))
    run = world.begin(*tasks)
    world.load(dag(*tasks, run_timeout_us=60_000_000), version="v2")

    clear(world, run, latest=True)
    world.pass_time(61)

    assert world.run_state(run) == "failed"


# ── refusals ────────────────────────────────────────────────────────────────────────────────


A, B = task("a"), task("b", 0)
LOOP = MapSpec(sources=(MapSource("item", -1, 1),), until=1)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ((A, B), (A,), "task 'b' is gone"),
        ((A,), (A, B), "task 'b' is new"),
        ((A, task("b")), (task("b"), A), "the tasks are in another order, from 'a' on"),
        ((A, B), (A, task("b")), "task 'b' follows other tasks"),
        ((A, B), (A, task("b", 0, argument_parents=())), "task 'b' follows other tasks"),
        ((A, B), (A, task("b", 0, rule=TriggerRule.ALL_DONE)), "task 'b' has another trigger rule"),
        ((A, B), (A, mapped("b", 0)), "task 'b' is mapped otherwise"),
        ((A,), (task("a", streams=True),), "task 'a' is a stream in one of them only"),
        ((A,), (task("a", is_setup=True),), "task 'a' is a setup or teardown in one of them only"),
        ((A,), (task("a", chooses=Chooses.ALL),), "task 'a' chooses otherwise what is skipped"),
        (
            (A,),
            (task("a", depends_on_past=True),),
            "task 'a' waits for the run before in one of them only",
        ),
        (
            (A, task("b", mapped=LOOP, map_limit=5)),
            (A, task("b", mapped=LOOP, map_limit=6)),
            "task 'b' has another max_rounds",
        ),
        (
            (task("a", streams=True), mapped("b", 0, map_limit=5)),
            (task("a", streams=True), mapped("b", 0, map_limit=6)),
            "task 'b' has another map_limit",
        ),
    ],
)
def test_a_graph_that_is_another_is_refused_with_what_differs(
    old: tuple[TaskSpec, ...], new: tuple[TaskSpec, ...], reason: str
):
    assert differences(dag(*old), dag(*new)) == [reason]


def test_code_retries_pools_and_limits_may_differ():
    new = task(
        "b", 0, retry=ONCE, pool="other", slots=3, priority=9, map_limit=7, window=2, line=99
    )
    assert differences(dag(A, B), dag(A, new, max_active_tasks=1)) == []


def test_a_run_whose_graph_differs_stays_as_it_is():
    world = World()
    run = world.begin(A, task("b", 0, retry=ONCE))
    world.succeed("a")
    world.fail("b")
    world.load(dag(A, B, task("c", 1)), version="v2")
    before = len(world.batches)

    with pytest.raises(VersionDiffers, match="task 'c' is new; clear without --latest"):
        clear(world, run, "b", latest=True)

    assert len(world.batches) == before
    assert clear(world, run, "b") == 1


def test_a_conf_that_the_newest_version_does_not_take_is_refused():
    world, run = failed_chain()
    world.load(dag(A, B, parameters=("day",), required=("day",)), version="v3")

    with pytest.raises(VersionDiffers, match="needs day"):
        clear(world, run, "b", latest=True)


def test_a_dag_without_a_file_has_no_newest_version():
    world, run = failed_chain()
    world.turn(FileDeleted("dag.py"))

    with pytest.raises(DagBroken, match="no longer defines it"):
        clear(world, run, "b", latest=True)
