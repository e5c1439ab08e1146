"""Marking in slices: a batch contains at most one, and nothing else runs before the last one."""

from __future__ import annotations

import pytest

from aioflow.core.repair import execution
from aioflow.model.dag import Chooses, MapSource, MapSpec, TaskSpec
from aioflow.model.states import RunState, TaskState
from aioflow.protocol.inputs import RequestReceived
from aioflow.protocol.reports import Skipped, Succeeded
from aioflow.protocol.requests import CancelRun, Mark
from tests.core.specs import mapped, task
from tests.core.test_clear import ONCE
from tests.core.test_clear_slices import SLICE, WIDTH, Sliced, children, many, wide
from tests.core.test_one_to_one import over
from tests.core.test_one_to_one import task as follower
from tests.core.test_previous_runs import after, day, loaded
from tests.core.test_previous_runs import task as task_of_past
from tests.core.world import World

SUCCESS, FAILED = TaskState.SUCCESS, TaskState.FAILED


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch):
    monkeypatch.setattr(execution, "SLICE_TASKS", SLICE)


def ended(sliced: Sliced, state: TaskState) -> list[int]:
    """Return how many tasks each batch ends in this state."""
    return [[step for _, step in batch.steps].count(state) for batch in sliced.batches]


def lockstep(*more: TaskSpec, width: int = WIDTH) -> tuple[World, int]:
    """Return an expanded fan-out, and another fan-out that follows it child by child."""
    world = World(cpu_slots=2 * width)
    run = world.begin(
        follower("list", feeds_limit=99),
        follower("a", 0, mapped=over(0)),
        follower("b", 1, mapped=over(1)),
        *more,
    )
    world.succeed("list", size=9, width=width)
    return world, run


def followed(width: int = WIDTH) -> tuple[World, int]:
    """Return a mapped task whose children all failed, and one that follows it child by child."""
    world, run = lockstep(follower("sum", 2), width=width)
    for index in range(width):
        world.fail("a", index)
    assert world.run_state(run) == "failed"
    return world, run


def gated() -> tuple[World, int]:
    """Return a mapped task with all children active. One parent is not the list it expands."""
    world = World(cpu_slots=WIDTH)
    work = task("work", 0, 1, mapped=over(1))
    run = world.begin(task("gate", retry=ONCE), task("list", feeds_limit=99), work, task("sum", 2))
    world.succeed("gate")
    world.succeed("list", size=9, width=WIDTH)
    assert len(world.starts) == WIDTH
    return world, run


def stands(sliced: Sliced, name: str, width: int = WIDTH) -> set[str]:
    """Return the states of a task's children."""
    return {sliced.world.state(sliced.run, name, index) for index in range(width)}


# ── a run that had ended ────────────────────────────────────────────────────────────────


def test_no_batch_holds_more_than_a_slice_and_the_run_ends_with_the_last():
    sliced = wide()
    before = sliced.world.rows.runs[sliced.run].ended_at
    sliced.world.pass_time(60)

    sliced.mark(FAILED, "work")

    assert sliced.answers[0].answer == (WIDTH, RunState.QUEUED)
    sliced.go_on_to_the_end()
    assert max(ended(sliced, FAILED)) == SLICE
    assert len(sliced.batches) > WIDTH / SLICE
    assert children(sliced) == ["failed"] * WIDTH
    row = sliced.world.rows.runs[sliced.run]
    assert (row.state, row.ended_at) == (RunState.PARTIAL, before)
    assert not sliced.world.rows.outbox
    assert not sliced.world.memory.runs


@pytest.mark.parametrize("slices", range(6))
def test_a_restart_between_two_slices_continues_where_they_stood(slices):
    sliced = wide()
    sliced.mark(FAILED, "work")
    many(slices)(sliced)
    before = children(sliced).count("failed")

    sliced.restart()
    assert children(sliced).count("failed") <= before + SLICE
    sliced.go_on_to_the_end()

    assert children(sliced) == ["failed"] * WIDTH
    assert sliced.world.run_state(sliced.run) == "partial"
    assert not sliced.world.memory.runs


@pytest.mark.parametrize("slices", range(6))
def test_a_run_is_cancelled_between_two_slices_with_what_was_marked_by_then(slices):
    sliced = wide()
    sliced.mark(FAILED, "work")
    many(slices)(sliced)
    before = children(sliced)

    sliced.turn(RequestReceived(9, CancelRun(run_id=sliced.world.rows.runs[sliced.run].run_id)))
    sliced.go_on_to_the_end()

    assert children(sliced) == before
    assert not sliced.world.memory.runs
    assert not sliced.world.rows.outbox


@pytest.mark.parametrize("crash_after", [None, *range(5)])
def test_a_run_that_was_cut_short_stays_so_while_it_is_marked_and_after(crash_after):
    world, run = gated()
    sliced = Sliced(world, run)
    sliced.turn(RequestReceived(0, CancelRun(run_id=world.rows.runs[run].run_id)))
    sliced.go_on_to_the_end()
    before = world.rows.runs[run]
    world.pass_time(60)

    sliced.mark(FAILED, "list", "work")
    sliced.mark(FAILED)
    assert sliced.is_clearing
    assert world.run_state(run) == "cancelled"
    sliced.go_on_over(crash_after)

    assert set(children(sliced)) == {"failed"}
    row = world.rows.runs[run]
    assert row.ended_at == before.ended_at
    assert row.state is (RunState.FAILED if crash_after is None else RunState.CANCELLED)
    assert not world.memory.runs


def test_a_refused_slice_is_taken_back_and_comes_again():
    sliced = wide()
    sliced.mark(FAILED, "work")
    sliced.go_on()
    again = sliced.waiting.pop()
    before = dict(sliced.world.rows.tasks)

    _, _, tx = sliced.world.decide([again])
    sliced.world.take_back(tx)

    assert sliced.world.rows.tasks == before
    sliced.turn(again)
    sliced.go_on_to_the_end()
    assert children(sliced) == ["failed"] * WIDTH
    assert sliced.world.run_state(sliced.run) == "partial"


def test_another_request_waits_until_all_is_marked():
    sliced = wide()
    sliced.mark(FAILED, "work")

    sliced.ask(tasks=("work",))
    assert len(sliced.answers) == 1
    sliced.go_on_to_the_end()

    assert sliced.counts == [WIDTH, WIDTH]
    sliced.finish_all()
    assert sliced.world.run_state(sliced.run) == "success"


# ── earlier decisions ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("crash_after", [None, *range(10)])
def test_unrun_tasks_after_a_wide_mark_are_reset_a_slice_at_a_time(crash_after):
    world, run = followed()
    sliced = Sliced(world, run)

    sliced.mark(SUCCESS, "a")
    sliced.go_on_over(crash_after)

    most = max(ended(sliced, TaskState.PENDING))
    assert most == SLICE if crash_after is None else most <= SLICE
    assert stands(sliced, "a") == {"success"}
    assert world.state(run, "sum") == "pending"
    sliced.finish_all()
    assert world.run_state(run) == "success"
    assert not world.rows.outbox


@pytest.mark.parametrize("crash_after", [None, *range(6)])
def test_children_that_asked_to_be_skipped_themselves_stay_so(crash_after):
    world, run = gated()
    for index in range(WIDTH):
        start = world.starts.pop(world.started("work", index).start.task_no).start
        world.turn(Skipped(start.task_no, start.start_no, world.now, world.now))
    assert world.run_state(run) == "success"
    sliced = Sliced(world, run)

    sliced.mark(FAILED, "gate")
    sliced.go_on_over(crash_after)

    assert stands(sliced, "work") == {"skipped"}
    assert not world.starts
    assert world.rows.runs[run].ended_at is not None


@pytest.mark.parametrize("crash_after", [None, *range(8)])
def test_children_under_way_are_stopped_a_slice_at_a_time(crash_after):
    world, run = gated()
    sliced = Sliced(world, run)

    sliced.mark(FAILED, "gate")
    sliced.go_on_over(crash_after)

    most = max(ended(sliced, TaskState.PENDING))
    assert most == SLICE if crash_after is None else most <= SLICE
    assert stands(sliced, "work") == {"upstream_failed"}
    assert world.run_state(run) == "failed"


@pytest.mark.parametrize("crash_after", [None, *range(8)])
def test_only_followers_that_may_not_run_are_stopped(crash_after):
    world, run = lockstep()
    for index in range(WIDTH):
        world.succeed("a", index)
    assert len(world.starts) == WIDTH
    sliced = Sliced(world, run)
    run_id = world.rows.runs[run].run_id

    sliced.turn(RequestReceived(0, Mark(run_id=run_id, state=FAILED, tasks=("a",), map_index=3)))
    sliced.go_on_over(crash_after)

    assert world.state(run, "b", 3) == "upstream_failed"
    assert world.started("b", 2) is not None
    assert world.started("b", 2).start.start_no == (1 if crash_after is None else 2)
    sliced.finish_all()
    assert world.run_state(run) == "failed"


# ── an active run ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("crash_after", [None, *range(6)])
def test_an_active_wide_mapped_task_is_marked_and_the_tasks_after_it_run(crash_after):
    world = World(cpu_slots=2)
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0), task("sum", 1))
    world.succeed("list", size=9, width=WIDTH)
    world.succeed("work", 0)
    sliced = Sliced(world, run)

    sliced.mark(SUCCESS, "work")
    assert sliced.counts == [WIDTH - 1]
    sliced.go_on_over(crash_after)

    assert stands(sliced, "work") == {"success"}
    assert world.state(run, "sum") == "running"
    sliced.finish_all()
    assert world.run_state(run) == "success"


def test_tasks_that_end_before_their_slice_keep_their_end():
    world = World(cpu_slots=WIDTH)
    run = world.begin(task("list", feeds_limit=99), mapped("work", 0), task("sum", 1))
    world.succeed("list", size=9, width=WIDTH)
    start = world.started("work", WIDTH - 1).start
    sliced = Sliced(world, run)
    sliced.mark(SUCCESS, "work")

    sliced.turn(Succeeded(start.task_no, start.start_no, world.now, world.now))
    sliced.go_on_to_the_end()

    assert stands(sliced, "work") == {"success"}
    assert world.rows.tasks[start.task_no].failure is None
    assert world.state(run, "sum") == "running"


@pytest.mark.parametrize("crash_after", [None, 0, 1, 2])
def test_tasks_that_a_branch_skips_while_its_run_is_marked_stay_skipped(crash_after):
    world = World(cpu_slots=9)
    run = world.begin(
        task("bad", retry=ONCE),
        task("fork", chooses=Chooses.CHILDREN),
        task("left", 0, 1),
        *(task(f"t{number}", 0) for number in range(4)),
    )
    world.fail("bad")
    assert world.state(run, "left") == "upstream_failed"
    fork = world.starts.pop(world.started("fork").start.task_no).start
    sliced = Sliced(world, run)
    sliced.mark(SUCCESS, "bad")
    assert sliced.is_clearing

    ended_well = Succeeded(fork.task_no, fork.start_no, world.now, world.now, skips=(2,))
    sliced.turn(ended_well)
    sliced.go_on_over(crash_after)

    assert world.state(run, "left") == "skipped"
    sliced.finish_all()
    assert world.run_state(run) == "success"


def test_the_next_run_continues_when_the_marks_of_a_run_marked_as_ended_are_complete():
    work = MapSpec((MapSource("n", -1, WIDTH),))
    world = loaded(after("gate"), after("work", 0, mapped=work), task_of_past("tail", parents=(1,)))
    first = day(world, 1)
    world.succeed("gate")
    sliced = Sliced(world, first)
    sliced.mark(SUCCESS)
    assert world.run_state(first) == "success"
    second = day(world, 2)
    sliced.mark(FAILED, "work")

    sliced.finish_all()
    assert world.state(second, "tail") == "success"
    assert world.run_state(second) == "success"
