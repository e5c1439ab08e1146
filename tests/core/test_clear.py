"""Clearing: which tasks run again, what is deleted with them, and what is left unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aioflow.core.transaction import Transaction
from aioflow.errors import RequestError, UnknownRun, UnknownTask
from aioflow.model.dag import Body, Chooses, MapSource, MapSpec, RetryPolicy
from aioflow.model.ids import after_clear, clear_number
from aioflow.model.states import RunState, TaskState, TriggerRule
from aioflow.protocol.effects import ReleaseTrigger, StopTry
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.reports import Deferred, Succeeded, TaskStarted
from aioflow.protocol.requests import CancelRun, ClearTasks, CreateRun, Mark
from tests.core.specs import mapped, task
from tests.core.world import World

ONCE = RetryPolicy(tries=1)


def clear(world: World, run: int, *tasks: str, **fields: Any) -> int:
    """Clear tasks of a run. Return how many were cleared, which the preview must predict."""
    request = ClearTasks(run_id=world.rows.runs[run].run_id, tasks=tasks, **fields)
    expected = None if request.key else previewed(world, request)
    cleared, state = world.ask(request)
    assert expected in (None, cleared)
    assert state.label in {world.run_state(run), "queued"}
    return int(cleared)


def previewed(world: World, request: ClearTasks | Mark, *, marked: bool = False) -> int:
    """Return how many tasks a request would clear or mark. The preview changes nothing."""
    before = world.rows.commit_no
    preview = world.ask(replace(request, dry_run=True))
    assert world.rows.commit_no == before
    touched = [task for task in preview.tasks if task.is_marked == marked]
    return sum(sum(task.states.values()) for task in touched)


def states(world: World, run: int, names: str) -> list[str]:
    return [world.state(run, name) for name in names]


def chain() -> tuple[World, int]:
    """Return an ended run of three tasks in a row, all of which have succeeded."""
    world = World()
    run = world.begin(task("a"), task("b", 0), task("c", 1))
    for name in "abc":
        world.succeed(name, body=b"\x01", size=1)
    assert world.run_state(run) == "success"
    return world, run


def fan_out(width: int = 3, **fields: Any) -> tuple[World, int]:
    """Return an ended run with a list, its children, and a task that collects their results."""
    world = World(cpu_slots=8)
    run = world.begin(
        task("list", feeds_limit=99), mapped("work", 0, retry=ONCE), task("sum", 1, **fields)
    )
    world.succeed("list", size=9, width=width)
    for index in range(width):
        world.succeed("work", index)
    return world, run


# ── one task, and its dependents ────────────────────────────────────────────────────────


def test_a_cleared_task_runs_again_and_what_comes_after_it_stays():
    world, run = chain()

    assert clear(world, run, "b") == 1

    assert world.run_state(run) == "running"
    assert states(world, run, "abc") == ["success", "running", "success"]
    world.succeed("b")
    assert world.run_state(run) == "success"
    assert not world.memory.runs


def test_downstream_is_cleared_on_request_and_runs_in_order():
    world, run = chain()

    assert clear(world, run, "b", downstream=True) == 2

    assert states(world, run, "abc") == ["success", "running", "pending"]
    world.succeed("b")
    world.succeed("c")
    assert world.run_state(run) == "success"


def test_a_run_is_cleared_as_a_whole():
    world, run = chain()

    assert clear(world, run) == 3

    for name in "abc":
        world.succeed(name)
    assert world.run_state(run) == "success"


def test_only_what_failed_is_cleared_on_request():
    world = World()
    run = world.begin(task("a"), task("b", retry=ONCE), task("c", 0, 1))
    world.succeed("a")
    world.fail("b")
    assert states(world, run, "abc") == ["success", "failed", "upstream_failed"]

    assert clear(world, run, failed=True) == 2

    assert states(world, run, "abc") == ["success", "running", "pending"]
    world.succeed("b")
    world.succeed("c")
    assert world.run_state(run) == "success"


def test_a_cleared_task_has_all_its_tries_again():
    world = World()
    run = world.begin(task("a", retry=ONCE))
    world.fail("a")

    clear(world, run, "a")

    row = next(iter(world.rows.tasks.values()))
    assert (row.try_number, row.failure, row.interruptions) == (1, None, 0)
    assert [row.state.label for row in world.rows.tries] == ["failed"]


def test_a_first_success_stays_to_be_read():
    world, run = chain()

    clear(world, run, "a")

    assert [(row.try_number, row.state.label) for row in world.rows.tries] == [(1, "success")]


def test_a_result_is_gone_with_the_success_that_gave_it():
    world, run = chain()

    clear(world, run, "a")
    world.succeed("a")  # without items, this time

    assert world.rows.runs[run].first_task_no not in world.rows.results


def test_a_report_of_an_earlier_start_stays_late():
    world, run = chain()
    number = world.rows.runs[run].first_task_no
    old = world.rows.tasks[number].start_no

    clear(world, run, "a")
    world.turn(Succeeded(number, old, world.now, world.now))

    assert world.rows.tasks[number].start_no == after_clear(old) + 1
    assert world.state(run, "a") == "running"


def test_a_start_tells_how_often_its_task_was_cleared():
    world = World()
    run = world.begin(task("a", retry=RetryPolicy(tries=2)))
    numbers = []
    for _ in range(3):
        world.fail("a")
        world.pass_time(3600)
        world.restart()
        numbers.append(world.started("a").start)
        clear(world, run, "a")

    assert [clear_number(start.start_no) for start in numbers] == [0, 1, 2]
    assert {start.try_number for start in numbers} == {2}
    assert clear_number(world.started("a").start.start_no) == 3


def test_a_task_that_runs_is_stopped_first():
    world = World()
    run = world.begin(task("a"), task("b", 0))
    started = world.started("a").start
    world.turn(TaskStarted(started.task_no, started.start_no, world.now))

    assert clear(world, run, "a") == 1

    stops = [effect for effect in world.effects if isinstance(effect, StopTry)]
    assert [(stop.task_no, stop.start_no) for stop in stops] == [(started.task_no, 1)]
    assert world.started("a").start.start_no == after_clear(1) + 1
    world.turn(Succeeded(started.task_no, 1, world.now, world.now))
    assert states(world, run, "ab") == ["running", "pending"]
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_wait_is_released():
    world = World()
    run = world.begin(task("a", body=Body.COROUTINE))
    start = world.started("a").start
    world.turn(
        Deferred(
            start.task_no,
            start.start_no,
            world.now,
            world.now,
            class_path="m:T",
            kwargs=b"\x80",
            next_method="go_on",
        )
    )

    clear(world, run, "a")

    assert [e.end.reason for e in world.effects if isinstance(e, ReleaseTrigger)] == ["cancelled"]
    assert world.state(run, "a") == "running"


def test_active_tasks_after_a_cleared_task_are_cleared_with_it():
    world = World()
    run = world.begin(task("a"), task("b", 0), task("c", 1))
    world.succeed("a")
    assert world.state(run, "b") == "running"

    assert clear(world, run, "a") == 2

    assert states(world, run, "abc") == ["running", "pending", "pending"]


def test_dependents_of_a_cleared_task_wait_for_it_again():
    world = World()
    run = world.begin(task("a"), task("b"), task("c", 0, 1))
    world.succeed("a")

    clear(world, run, "a")
    world.succeed("b")
    assert world.state(run, "c") == "pending"
    world.succeed("a")

    assert world.state(run, "c") == "running"


def test_to_clear_what_is_pending_changes_nothing():
    world = World()
    run = world.begin(task("a"), task("b", 0))
    before = world.rows.commit_no

    assert clear(world, run, "b") == 0

    assert world.rows.commit_no == before


def test_an_ended_run_of_which_nothing_is_cleared_stays_ended():
    world, run = chain()

    assert clear(world, run, failed=True) == 0

    assert world.run_state(run) == "success"
    assert not world.memory.runs


# ── runs ────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_becomes_active_again_waits_for_its_turn():
    world = World()
    first = world.begin(task("a"), max_active_runs=1)
    world.succeed("a")
    second = world.trigger()

    clear(world, first, "a")
    assert (world.run_state(first), world.run_state(second)) == ("queued", "running")
    world.restart()
    assert world.run_state(first) == "queued"
    world.finish_all()

    assert (world.run_state(first), world.run_state(second)) == ("success", "success")


def test_unstarted_tasks_of_a_cancelled_run_are_pending_again():
    world = World()
    run = world.begin(task("a"), task("b", 0), task("c", 1))
    world.succeed("a")
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert clear(world, run, "b") == 1

    assert states(world, run, "abc") == ["success", "running", "pending"]
    world.succeed("b")
    world.succeed("c")
    assert world.run_state(run) == "success"


def test_children_that_a_cancelled_run_had_not_begun_are_pending_again():
    world = World(cpu_slots=1)
    run = world.begin(task("list", feeds_limit=9), mapped("work", 0), task("sum", 1))
    world.succeed("list", size=9, width=3)
    world.succeed("work", 0)
    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    clear(world, run, failed=True)

    assert [world.state(run, "work", index) for index in range(3)] != ["success"] * 3
    world.finish_all()
    assert [world.state(run, "work", index) for index in range(3)] == ["success"] * 3
    assert (world.state(run, "sum"), world.run_state(run)) == ("success", "success")


def test_a_cleared_run_can_be_cancelled():
    world, run = chain()
    clear(world, run)

    world.ask(CancelRun(run_id=world.rows.runs[run].run_id))

    assert states(world, run, "abc") == ["cancelled"] * 3
    assert not world.memory.runs


def test_an_unknown_run_id_is_refused():
    with pytest.raises(UnknownRun):
        World().ask(ClearTasks(run_id="nobody"))


def test_a_task_that_the_run_does_not_have_is_refused_and_nothing_changes():
    world, run = chain()
    run_id = world.rows.runs[run].run_id

    with pytest.raises(UnknownTask):
        world.ask(ClearTasks(run_id=run_id, tasks=("z",)))
    with pytest.raises(UnknownTask):
        world.ask(ClearTasks(run_id=run_id, tasks=("a",), map_index=0))

    assert not world.memory.runs


# ── fan-outs ────────────────────────────────────────────────────────────────────────────


def test_a_fan_out_cleared_without_its_list_keeps_its_width_and_numbers():
    world, run = fan_out()
    world.succeed("sum")
    numbers = {row.task_no for row in world.rows.tasks.values()}

    assert clear(world, run, "work", downstream=True) == 4

    assert world.state(run, "sum") == "pending"
    world.finish_all()
    assert world.run_state(run) == "success"
    assert {row.task_no for row in world.rows.tasks.values()} == numbers


@pytest.mark.parametrize("width", [1, 3, 5])
def test_a_mapped_task_cleared_with_its_list_is_expanded_again(width):
    world, run = fan_out()
    world.succeed("sum")

    assert clear(world, run, "list", downstream=True) == 5
    assert world.state(run, "work") == "pending"
    world.succeed("list", size=9, width=width)
    world.finish_all()

    children = [row for row in world.rows.tasks.values() if row.map_index >= 0]
    ends = [row.state.label for row in children]
    assert (ends.count("removed"), ends.count("success")) == (3, width)
    assert world.run_state(run) == "success"


def test_one_child_is_cleared_alone():
    world, run = fan_out()
    world.succeed("sum")

    assert clear(world, run, "work", map_index=1) == 1

    assert [world.state(run, "work", index) for index in range(3)] == [
        "success",
        "running",
        "success",
    ]
    world.finish_all()
    assert world.run_state(run) == "success"


def test_the_children_that_failed_are_cleared_alone():
    world = World(cpu_slots=8)
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0, retry=ONCE), task("sum", 1))
    world.succeed("list", size=9, width=4)
    for index in range(4):
        (world.fail if index % 2 else world.succeed)("work", index)
    assert world.state(run, "sum") == "upstream_failed"

    assert clear(world, run, failed=True) == 3

    assert world.state(run, "sum") == "pending"
    world.succeed("work", 1)
    assert world.state(run, "sum") == "pending"
    world.succeed("work", 3)
    assert world.state(run, "sum") == "running"


def test_a_fan_out_whose_other_parent_is_cleared_waits_for_that():
    world = World(cpu_slots=8)
    spec = MapSpec(sources=(MapSource("item", 0, -1),))
    run = world.begin(task("list", feeds_limit=99), task("gate"), task("work", 0, 1, mapped=spec))
    world.succeed("gate")
    world.succeed("list", size=9, width=2)
    world.finish_all()

    assert clear(world, run, "gate", downstream=True) == 3

    for _ in range(2):
        assert [world.state(run, "work", index) for index in range(2)] == ["pending"] * 2
        world.restart()
    world.succeed("gate")
    assert [world.state(run, "work", index) for index in range(2)] == ["running"] * 2
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_fan_out_whose_other_parent_fails_this_time_does_not_run():
    world = World(cpu_slots=8)
    spec = MapSpec(sources=(MapSource("item", 0, -1),))
    run = world.begin(
        task("list", feeds_limit=99), task("gate", retry=ONCE), task("work", 0, 1, mapped=spec)
    )
    world.succeed("gate")
    world.succeed("list", size=9, width=2)
    world.finish_all()

    clear(world, run, "gate", downstream=True)
    world.fail("gate")

    assert [world.state(run, "work", index) for index in range(2)] == ["upstream_failed"] * 2
    assert world.run_state(run) == "failed"


# ── setups, teardowns, branches ─────────────────────────────────────────────────────────


def test_setup_and_teardown_are_cleared_with_what_runs_between_them():
    world = World()
    run = world.begin(
        task("s", is_setup=True),
        task("w", 0),
        task("v", 0),
        task("t", 0, 1, 2, is_teardown=True, rule=TriggerRule.ALL_DONE_SETUP_SUCCESS),
    )
    world.finish_all()

    assert clear(world, run, "w") == 3

    assert states(world, run, "swvt") == ["running", "pending", "success", "pending"]
    world.finish_all()
    assert world.run_state(run) == "success"


@pytest.mark.parametrize(
    ("cleared", "after"),
    [
        pytest.param(("b",), "skipped", id="without-its-branch"),
        pytest.param(("choose", "b"), "pending", id="with-its-branch"),
    ],
)
def test_unchosen_tasks_stay_skipped_unless_the_branch_is_cleared(cleared, after):
    world = World()
    run = world.begin(task("choose", chooses=Chooses.CHILDREN), task("a", 0), task("b", 0))
    world.succeed("choose", skips=(2,))
    world.finish_all()
    assert world.state(run, "b") == "skipped"

    clear(world, run, *cleared)

    assert world.state(run, "b") == after


@pytest.mark.parametrize(
    ("cleared", "index", "after"),
    [
        pytest.param(("b",), 0, ["skipped", "success"], id="without-its-branch"),
        pytest.param(("choose", "b"), 0, ["pending", "success"], id="with-its-branch"),
        pytest.param(("choose", "b"), -1, ["pending", "pending"], id="all-of-them"),
    ],
)
def test_unchosen_tasks_of_a_mapped_group_stay_skipped_index_by_index(cleared, index, after):
    over = (MapSource("x", -1, 2),)
    world = World(cpu_slots=9)
    run = world.begin(
        task("choose", chooses=Chooses.CHILDREN, mapped=MapSpec(over, (1, 2))),
        task("a", 0, mapped=MapSpec(over, (0, 2))),
        task("b", 0, mapped=MapSpec(over, (0, 1))),
    )
    world.succeed("choose", 0, skips=(2,))
    world.succeed("choose", 1, skips=(1,))
    world.finish_all()
    assert [world.state(run, "b", i) for i in range(2)] == ["skipped", "success"]

    clear(world, run, *cleared, map_index=index)

    assert [world.state(run, "b", i) for i in range(2)] == after
    world.finish_all()
    assert world.run_state(run) == "success"


# ── errors ──────────────────────────────────────────────────────────────────────────────


def test_a_restart_continues_with_what_was_cleared():
    world, run = chain()
    clear(world, run, "b", downstream=True)

    world.restart()

    assert states(world, run, "abc") == ["success", "running", "pending"]
    world.finish_all()
    assert world.run_state(run) == "success"


def test_a_refused_clear_of_an_ended_run_leaves_it_ended():
    world, run = chain()
    asked = RequestReceived(1, ClearTasks(run_id=world.rows.runs[run].run_id))

    _, _, tx = world.decide([asked])
    world.take_back(tx)

    assert isinstance(tx, Transaction)
    assert not world.memory.runs
    assert world.run_state(run) == "success"
    world.turn(asked)
    assert world.run_state(run) == "running"


def test_a_refused_clear_of_a_live_run_leaves_it_as_it_was():
    world = World()
    run = world.begin(task("a"), task("b", 0))
    world.succeed("a")
    asked = RequestReceived(1, ClearTasks(run_id=world.rows.runs[run].run_id, tasks=("a",)))

    _, _, tx = world.decide([asked])
    world.take_back(tx)
    world.turn()

    assert states(world, run, "ab") == ["success", "running"]
    world.succeed("b")
    assert world.run_state(run) == "success"


def test_a_run_that_is_being_cancelled_is_not_cleared(monkeypatch):
    monkeypatch.setattr("aioflow.core.transaction.BATCH_ROWS", 1)
    world = World()
    run = world.begin(task("a"), task("b"))
    run_id = world.rows.runs[run].run_id
    batch, _, tx = world.decide([RequestReceived(1, CancelRun(run_id=run_id))])
    world.rows.apply(batch)
    world.memory.commit_no = batch.number
    tx.mark_durable()

    with pytest.raises(RequestError, match="is being ended"):
        world.ask(ClearTasks(run_id=run_id))

    assert world.rows.runs[run].state is RunState.CANCELLED
    assert TaskState.PENDING not in {row.state for row in world.rows.tasks.values()}


def test_a_key_still_finds_the_run_that_was_cleared():
    world = World()
    world.begin(task("a"))
    world.finish_all()
    run_id, _ = world.ask(CreateRun(dag_id="dag", key="k"))
    world.finish_all()

    world.ask(ClearTasks(run_id=run_id))

    assert world.ask(CreateRun(dag_id="dag", key="k")) == (run_id, False)
