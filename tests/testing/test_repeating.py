"""Repeated work in a simulation: tasks are cleared and fire times backfilled as by a daemon."""

from __future__ import annotations

import asyncio
from datetime import date

import pytest

from aioflow import DAG, DagError, Operator, current, dag, run_dag, task
from aioflow.author.dag import forget_registered
from aioflow.errors import UnknownTask
from aioflow.testing import RunStuck, Sim


@pytest.fixture(autouse=True)
def _no_dags_of_others():
    forget_registered()


# ── clear ───────────────────────────────────────────────────────────────────────────────


async def test_a_cleared_task_runs_again_and_what_comes_after_it_where_that_is_asked(sim: Sim):
    runs: list[str] = []

    @task
    def first() -> int:
        runs.append("first")
        return runs.count("first")

    @task
    def second(value: int) -> int:
        runs.append("second")
        return value

    @dag
    def pair() -> None:
        second(first())

    run = await (await sim.start(pair)).finished()
    assert await sim.clear(run, "first") == 1
    await run.finished()
    assert (runs, run["second"].result) == (["first", "second", "first"], 1)

    assert await sim.clear(run, "first", downstream=True) == 2
    await run.finished()

    assert runs[3:] == ["first", "second"]
    assert run["second"].result == 3


async def test_failed_tasks_are_cleared_without_the_others(sim: Sim):
    is_fixed = False

    @task(retries=0)
    def loads(number: int) -> int:
        if number == 2 and not is_fixed:
            raise OSError("no luck")
        return number

    @task
    def sums(numbers: list[int]) -> int:
        return sum(numbers)

    @dag
    def loading() -> None:
        sums(loads.expand(number=[1, 2, 3]))

    run = await (await sim.start(loading)).finished()
    assert run.states == {"loads": "failed", "sums": "upstream_failed"}
    is_fixed = True

    assert await sim.clear(run, failed=True) == 2
    await run.finished()

    assert run.states == {"loads": "success", "sums": "success"}
    assert [child.tries for child in run["loads"].children] == [1, 1, 1]
    with pytest.raises(UnknownTask):
        await sim.clear(run, "unloads")


# ── backfills ───────────────────────────────────────────────────────────────────────────


@task
async def books(day: date = current.logical_day, factor: int = 1) -> str:
    await asyncio.sleep(3600)
    return f"{day} {factor}"


async def test_a_backfill_has_the_runs_of_its_range(sim: Sim):
    @dag(schedule="0 3 * * *")
    def daily(factor: int = 1) -> None:
        books(factor=factor)

    filled = await sim.backfill(daily, date(2025, 12, 1), "2025-12-03", max_active=1, factor=7)
    assert filled.state == "running"
    assert [run.state for run in filled.runs] == ["running"]
    await filled.finished()

    assert filled.state == "done"
    assert [run["books"].result for run in filled.runs] == [
        "2025-12-01 7",
        "2025-12-02 7",
        "2025-12-03 7",
    ]
    assert (sim.now.hour, len(sim.runs(daily))) == (3, 3)

    again = await sim.backfill(daily, "2025-12-02", "2025-12-04")
    await again.finished()
    assert again.skipped == 2
    assert [run["books"].result for run in again.runs] == ["2025-12-04 1"]


async def test_a_backfill_that_takes_too_long_says_what_its_run_waits_for(sim: Sim):
    @dag(schedule="0 3 * * *")
    def slow() -> None:
        books()

    filled = await sim.backfill(slow, "2025-12-01", "2025-12-01")

    with pytest.raises(RunStuck, match="of slow is still running at 2026-01-01 00:30"):
        await filled.finished(within="30m")


async def test_a_backfill_leaves_the_schedule_of_its_dag_as_it_is(sim: Sim):
    @dag(schedule="0 3 * * *")
    def daily() -> None:
        books()

    await sim.schedule(daily)
    await (await sim.backfill(daily, "2025-12-01", "2025-12-01")).finished()
    before = len(sim.runs(daily))
    await sim.advance("2d")

    assert len(sim.runs(daily)) == before + 2


# ── DAGs that each test makes ───────────────────────────────────────────────────────────


class _Tells(Operator):
    def __init__(self, word: str, **options) -> None:
        super().__init__(**options)
        self.word = word

    def execute(self, context):
        return self.word


def _made(word: str) -> DAG:
    with DAG("d") as made:
        _Tells(word, task_id="tells")
    return made


@pytest.mark.parametrize("word", ["one", "two"])
async def test_each_test_makes_a_dag_of_the_same_name(sim: Sim, word: str):
    _made("none")  # as the test before has left it
    made = _made(word)

    run = await (await sim.start(made)).finished()

    assert run["tells"].result == word


async def test_a_broken_dag_of_another_test_leaves_this_one_alone(sim: Sim):
    @task
    def one(x: object = None) -> int:
        return 1

    with DAG("circle") as circle:
        a, b = one(), one()
        a >> b >> a
    with DAG("inner"):
        one()

    @task
    async def asks() -> str:
        return (await run_dag("inner"))["state"]

    @dag
    def fine() -> None:
        asks()

    run = await (await sim.start(fine)).finished()

    assert run["asks"].result == "success"
    with pytest.raises(DagError, match="one -> one__1 -> one"):
        await sim.start(circle)
