"""Retention: which rows have expired and are deleted, and which are retained nevertheless."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aioflow.core.retention import Aged, deletable_runs, old_numbers
from aioflow.errors import RequestError
from aioflow.model.dag import TaskSpec
from aioflow.model.rows import RunRow
from aioflow.model.states import RunState
from aioflow.protocol.requests import DAG_EVENTS, EVENTS, JOURNAL, EmitEvent, EraseOld
from tests.core.test_assets import A_AND_B, tell, world_of
from tests.core.test_event_runs import fire, waiting
from tests.core.world import World

BEFORE, NEWEST = 1_000, 99
OLD = RunRow(
    run_no=7,
    run_id="old",
    dag_id="dag",
    version="v1",
    state=RunState.SUCCESS,
    cause="manual",
    first_task_no=8,
    created_at=1,
    ended_at=BEFORE - 1,
)
DATED = replace(OLD, logical_date=5)
LIVE = replace(OLD, run_no=8, state=RunState.RUNNING, ended_at=None, logical_date=6)
LATER = replace(DATED, run_no=8, ended_at=5_000, logical_date=6)


@pytest.mark.parametrize(
    ("run", "after", "goes"),
    [
        pytest.param(OLD, None, True, id="ended-long-ago"),
        pytest.param(replace(OLD, ended_at=BEFORE), None, False, id="not-long-enough-ago"),
        pytest.param(replace(OLD, ended_at=None), None, False, id="has-not-ended"),
        pytest.param(replace(OLD, run_no=NEWEST), None, False, id="ended-last-of-its-dag"),
        pytest.param(replace(OLD, state=RunState.FAILED), None, True, id="however-it-ended"),
        pytest.param(DATED, LATER, True, id="one-that-has-ended-comes-after-it"),
        pytest.param(DATED, LIVE, False, id="a-live-one-comes-right-after-it"),
        pytest.param(DATED, None, False, id="the-next-one-will-come-right-after-it"),
    ],
)
def test_which_runs_may_go(run, after, goes):
    found = list(deletable_runs([Aged(run, after)], before=BEFORE, newest=NEWEST))

    assert found == ([run] if goes else [])


def test_old_runs_directly_before_live_ones_are_retained():
    runs = [replace(DATED, run_no=no, logical_date=no) for no in range(1, 7)]
    for at in (2, 5):
        runs[at] = replace(runs[at], state=RunState.RUNNING, ended_at=None)
    line = [Aged(run, after) for run, after in zip(runs, [*runs[1:], None], strict=True)]

    found = deletable_runs(line, before=BEFORE, newest=5)

    assert [run.run_no for run in found] == [1, 4]


@pytest.mark.parametrize(
    ("rows", "below", "old"),
    [
        pytest.param([(1, 5), (2, 6)], None, [1, 2], id="all"),
        pytest.param([(1, 5), (2, 999), (3, 1_000)], None, [1, 2], id="until-the-first-young-one"),
        pytest.param([(1, 1_000), (2, 5)], None, [], id="none-behind-a-young-one"),
        pytest.param([(1, 5), (4, 6), (9, 7)], 4, [1], id="none-from-the-oldest-live-run-on"),
        pytest.param([], 4, [], id="nothing"),
    ],
)
def test_which_numbers_may_go(rows, below, old):
    assert old_numbers(rows, before=1_000, below=below) == old


def test_an_event_that_a_live_run_may_wait_for_is_not_erased():
    world = World()
    old, _ = world.ask(EmitEvent(name="n", key=None, data=b"\xc0"))
    run_no = world.begin(TaskSpec(task_id="a"))
    young, _ = world.ask(EmitEvent(name="n", key=None, data=b"\xc0"))

    assert old < run_no < young
    with pytest.raises(RequestError, match=f"run {run_no} is active and older"):
        world.ask(EraseOld(table=EVENTS, numbers=[old, young]))
    world.ask(EraseOld(table=EVENTS, numbers=[old]))
    assert world.batches[-1].erased == {EVENTS: [(old,)]}


def test_an_event_whose_key_was_erased_with_it_is_stored_again():
    world = World()
    old, _ = world.ask(EmitEvent(name="n", key=None, data=b"\xc0", request="once"))
    assert world.ask(EmitEvent(name="n", key=None, data=b"\xc0", request="once")) == (old, False)

    world.ask(EraseOld(table=EVENTS, numbers=[old]))

    assert world.ask(EmitEvent(name="n", key=None, data=b"\xc0", request="once"))[1] is True


def test_a_key_that_was_erased_starts_a_run_again():
    world = waiting()
    fire(world, {"n": 1})
    world.restart()
    fire(world, {"n": 1})
    (known,) = world.rows.dag_events
    assert len(world.rows.runs) == 1

    world.ask(EraseOld(table=DAG_EVENTS, numbers=[known]))
    world.restart()
    fire(world, {"n": 1})

    assert len(world.rows.runs) == 2


@pytest.mark.parametrize("restarts", [False, True])
def test_expired_pending_events_of_assets_do_not_count(restarts):
    world = world_of(A_AND_B)
    tell(world, "a")
    (held,) = world.rows.dag_events

    world.ask(EraseOld(table=DAG_EVENTS, numbers=[held]))
    if restarts:
        world.restart()
    tell(world, "b")
    assert not world.rows.runs
    tell(world, "a")

    assert len(world.rows.runs) == 1


def test_rows_of_the_journal_are_deleted_whatever_is_active():
    world = World()
    world.begin(TaskSpec(task_id="a"))

    world.ask(EraseOld(table=JOURNAL, numbers=[1, 2]))

    assert world.batches[-1].erased == {JOURNAL: [(1,), (2,)]}
