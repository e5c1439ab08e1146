"""Runs that wait for each other: found where the last wait closes the cycle, and said once."""

from __future__ import annotations

import logging

import msgspec
import pytest

from aioflow.answers.cycles import LOOKED_AT, Cycles, Waiting, before
from aioflow.host.questions import RunWanted
from aioflow.messages import Ask
from aioflow.model import DagSpec, RunState, TaskSpec
from tests.executors.processes import running, until
from tests.test_answers import Child, World


def waits(run: int, awaited: int, position: int = 0, leads_to=None) -> Waiting:
    return Waiting(run, position, -1, awaited, f"r{awaited}", leads_to)


@pytest.fixture
def over():
    """Tasks, by run and position, that no longer wait."""
    return set()


@pytest.fixture
def cycles(over):
    return Cycles(lambda run, position, map_index: (run, position) not in over)


def test_two_runs_that_wait_for_each_other(cycles):
    assert cycles.add(waits(1, 2)) == ""

    assert cycles.add(waits(2, 1)) == "r2 -> r1 -> r2"
    assert cycles.of_task(1, 0, -1) == "r1 -> r2 -> r1"
    assert cycles.of_task(2, 0, -1) == "r2 -> r1 -> r2"


def test_a_run_that_waits_for_itself(cycles):
    assert cycles.add(waits(1, 1)) == "r1 -> r1"


def test_a_longer_cycle_is_the_shortest_there_is(cycles):
    for run, awaited in ((1, 2), (2, 3), (3, 4), (4, 9), (2, 4)):
        assert cycles.add(waits(run, awaited, position=awaited)) == ""

    assert cycles.add(waits(4, 1)) == "r4 -> r1 -> r2 -> r4"


def test_a_chain_is_no_cycle(cycles):
    for run in range(100):
        assert cycles.add(waits(run, run + 1)) == ""

    assert cycles.of_task(0, 0, -1) == ""


def test_it_is_told_once_however_many_wait_in_it(cycles):
    cycles.add(waits(1, 2))
    assert cycles.add(waits(2, 1))

    assert cycles.add(waits(2, 1, position=5)) == ""
    assert cycles.of_task(2, 5, -1) == "r2 -> r1 -> r2"


def test_what_waits_no_longer_closes_no_cycle(cycles, over):
    first = waits(1, 2)
    cycles.add(first)
    cycles.remove(first)
    cycles.remove(first)
    assert cycles.add(waits(2, 1)) == ""

    cycles.add(waits(1, 2, position=3))
    over.add((1, 3))
    assert cycles.of_task(2, 0, -1) == ""


def test_a_task_that_does_not_come_after_the_waiting_one_can_end(cycles):
    spec = DagSpec(
        dag_id="d",
        file="d.py",
        tasks=(
            TaskSpec(task_id="waits"),
            TaskSpec(task_id="beside"),
            TaskSpec(task_id="after", parents=(0,)),
            TaskSpec(task_id="last", parents=(2, 1)),
        ),
    )
    assert before(spec, 1) == {1}
    assert before(spec, 3) == {0, 1, 2, 3}
    cycles.add(waits(1, 2, position=0))

    assert cycles.add(waits(2, 1, position=0, leads_to=before(spec, 1))) == ""
    assert cycles.add(waits(2, 1, position=7, leads_to=before(spec, 3))) == "r2 -> r1 -> r2"


def test_the_search_for_a_cycle_is_bounded(cycles):
    for position in range(3 * LOOKED_AT):
        cycles.add(waits(1, 2, position=position))
    for run in range(3, 6):
        cycles.add(waits(run, 1))

    assert cycles.of_task(5, 0, -1) == ""


async def test_who_closes_a_cycle_is_warned_of_once(caplog):
    w = World()
    w.commit(runs=[w.run(7), w.run(8)])

    def ask(run_no, awaited):
        wanted = RunWanted("d", None, awaited, None, 0, 0, -1)
        child = Child()
        w.answers.ask(child, Ask(1, run_no, "run", msgspec.msgpack.encode(wanted)))

    with caplog.at_level(logging.WARNING):
        async with running(w.answers):
            ask(7, "r8")
            await until(lambda: w.answers.waiting == 1)
            ask(8, "r7")
            await until(lambda: w.answers.cycle(8, 0, -1))
            ask(8, "r7")
            await until(lambda: w.answers.waiting == 3)

    assert w.answers.cycle(7, 0, -1) == "r7 -> r8 -> r7"
    told = [record for record in caplog.records if "wait for each other" in record.message]
    assert len(told) == 1


async def test_a_cycle_is_over_with_the_run_that_ended():
    w = World()
    w.commit(runs=[w.run(7), w.run(8)])
    async with running(w.answers):
        for run_no, awaited in ((7, "r8"), (8, "r7")):
            wanted = RunWanted("d", None, awaited, None, 0, 0, -1)
            w.answers.ask(Child(), Ask(1, run_no, "run", msgspec.msgpack.encode(wanted)))
        await until(lambda: w.answers.cycle(7, 0, -1))

        w.commit(ended={8: RunState.CANCELLED})

        await until(lambda: w.answers.waiting == 1)
        assert w.answers.cycle(8, 0, -1) == ""
