"""Cycles of runs that wait for each other: found when the last wait closes one, reported once."""

from __future__ import annotations

import itertools
import logging

import pytest

from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.states import RunState
from aioflow.queries.wait_cycles import WAITS_LIMIT, Cycles, before
from aioflow.queries.waits import Waits
from aioflow.worker.query.messages import RunWanted
from tests.executors.processes import running, until
from tests.test_queries import Child, World

CHILD = Child()


class Table:
    """The waits for runs, and the cycles among them."""

    def __init__(self, over):
        self.waits = Waits()
        self.cycles = Cycles(
            self.waits, lambda run, task_index, index: (run, task_index) not in over
        )
        self.numbers = itertools.count()

    def add(self, run, awaited, task_index=0, leads_to=None):
        """Let a task wait for a run. Return the cycle that this closes."""
        self.last = self.enter(run, awaited, task_index, leads_to)
        return self.cycles.closed_by(self.last)

    def enter(self, run, awaited, task_index=0, leads_to=None):
        wanted = RunWanted(next(self.numbers), f"r{awaited}", None, 0, task_index, -1)
        no = self.waits.add(CHILD, 1, run, ("d", None), wanted)
        found = World().run(awaited)
        assert self.waits.bind_run(no, found, -1, leads_to)
        return no

    def of_task(self, run, task_index):
        return self.cycles.of_task(run, task_index, -1)


@pytest.fixture
def over():
    """Return the set of tasks, by run and task index, that no longer wait."""
    return set()


@pytest.fixture
def table(over):
    return Table(over)


def test_two_runs_that_wait_for_each_other(table):
    assert table.add(1, 2) == ""

    assert table.add(2, 1) == "r2 -> r1 -> r2"
    assert table.of_task(1, 0) == "r1 -> r2 -> r1"
    assert table.of_task(2, 0) == "r2 -> r1 -> r2"


def test_a_run_that_waits_for_itself(table):
    assert table.add(1, 1) == "r1 -> r1"


def test_a_longer_cycle_is_the_shortest_there_is(table):
    for run, awaited in ((1, 2), (2, 3), (3, 4), (4, 9), (2, 4)):
        assert table.add(run, awaited, task_index=awaited) == ""

    assert table.add(4, 1) == "r4 -> r1 -> r2 -> r4"


def test_a_chain_is_no_cycle(table):
    for run in range(100):
        assert table.add(run, run + 1) == ""

    assert table.of_task(0, 0) == ""


def test_it_is_reported_once_however_many_wait_in_it(table):
    table.add(1, 2)
    assert table.add(2, 1)

    assert table.add(2, 1, task_index=5) == ""
    assert table.of_task(2, 5) == "r2 -> r1 -> r2"


def test_ended_waits_close_no_cycle(table, over):
    assert table.add(1, 2) == ""
    table.waits.drop(table.last)
    table.waits.drop(table.last)
    assert table.add(2, 1) == ""

    table.add(1, 2, task_index=3)
    over.add((1, 3))
    assert table.of_task(2, 0) == ""


def test_a_task_that_does_not_come_after_the_waiting_one_can_end(table):
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
    table.add(1, 2, task_index=0)

    assert table.add(2, 1, task_index=0, leads_to=before(spec, 1)) == ""
    assert table.add(2, 1, task_index=7, leads_to=before(spec, 3)) == "r2 -> r1 -> r2"


def test_the_search_for_a_cycle_is_bounded(table):
    for task_index in range(3 * WAITS_LIMIT):
        table.enter(1, 2, task_index)
    for run in range(3, 6):
        table.add(run, 1)

    assert table.of_task(5, 0) == ""


async def test_the_wait_that_closes_a_cycle_is_warned_of_once(caplog):
    w = World()
    w.commit(runs=[w.run(7), w.run(8)])

    def ask(run_no, awaited):
        w.ask_run(Child(), run_id=awaited, asking=run_no)

    def told():
        return [record for record in caplog.records if "wait for each other" in record.message]

    with caplog.at_level(logging.WARNING):
        async with running(w.answers):
            ask(7, "r8")
            await until(lambda: w.answers.waiting == 1)
            ask(8, "r7")
            await until(told)
            cycle = w.answers.cycle(7, 0, -1)
            ask(8, "r7")
            await until(lambda: w.answers.waiting == 3)
            w.commit(ended={7: RunState.CANCELLED})
            await until(lambda: w.answers.waiting == 1)  # the third has been checked, too

    assert cycle == "r7 -> r8 -> r7"
    assert len(told()) == 1


async def test_a_cycle_ends_with_the_run_that_ended():
    w = World()
    w.commit(runs=[w.run(7), w.run(8)])
    async with running(w.answers):
        for run_no, awaited in ((7, "r8"), (8, "r7")):
            w.ask_run(Child(), run_id=awaited, asking=run_no)
        await until(lambda: w.answers.cycle(7, 0, -1))

        w.commit(ended={8: RunState.CANCELLED})

        await until(lambda: w.answers.waiting == 1)
        assert w.answers.cycle(8, 0, -1) == ""
