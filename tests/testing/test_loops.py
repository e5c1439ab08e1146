"""Loops as authors write them, played in the test kit with user code in real hosts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aioflow import Retry, Skip, current, dag, sleep, task, task_group
from aioflow.author.dag import forget_registered
from aioflow.testing import Sim


@pytest.fixture(autouse=True)
def _no_dags_of_others():
    """Forget the DAGs of earlier tests, since all DAGs of a file know each other."""
    forget_registered()


@task
def start() -> int:
    return 1


@task
def doubled(number: int, before: int | None = None) -> int:
    return 2 * number if before is None else 2 * before


@task
async def waited(number: int) -> int:
    await sleep("1h")
    return number


@task
def told(last: int, every: Sequence[int] = ()) -> tuple[int, list[int]]:
    return last, list(every)


def large(number: int) -> bool:
    return number > 10


@task_group(until=large, max_rounds=9)
def grow(number: int, previous: int | None = None) -> int:
    return waited(doubled(number, previous))


@dag
def growing() -> None:
    grown = grow(start())
    told(grown, grown.rounds)


async def test_a_loop_comes_to_its_last_value_and_knows_all_of_them(sim: Sim):
    run = await (await sim.start(growing)).finished()

    assert run.state == "success"
    assert run["told"].result == (16, [2, 4, 8, 16])
    assert run["grow.until"].state == "success"
    assert len(run["grow.waited"].children) == 4


async def test_a_loop_continues_between_two_of_its_rounds(sim: Sim):
    run = await sim.start(growing)
    await sim.advance("90m")

    assert run["grow.doubled"].state == "running"
    assert run["grow.waited"].children[1].state == "deferred"
    assert run["told"].state == "pending"


@pytest.mark.nightly
async def test_a_crash_anywhere_changes_no_round():
    assert await Sim.crash_everywhere(growing) > 12


@task
def counted(previous: dict[str, int] | None, number: int = current.round) -> dict[str, int]:
    return {"round": number, "sum": number + (previous["sum"] if previous else 0)}


async def test_a_task_knows_its_round_and_what_the_one_before_came_to(sim: Sim):
    @task_group(until=lambda value: value["round"] == 3)
    def sums(previous: dict[str, int] | None = None) -> dict[str, int]:
        return counted(previous)

    @dag
    def summing() -> None:
        told(sums()["sum"])

    run = await (await sim.start(summing)).finished()

    assert run["told"].result == (6, [])


async def test_the_first_round_may_be_given_what_stands_before_it(sim: Sim):
    @task_group(until=large)
    def twice(previous: int) -> int:
        return doubled(previous)

    @dag
    def doubling() -> None:
        told(twice(previous=start()))

    run = await (await sim.start(doubling)).finished()

    assert run["told"].result == (16, [])


async def test_at_the_cap_the_loop_fails_and_says_so(sim: Sim):
    @task_group(until=large, max_rounds=2)
    def short(previous: int) -> int:
        return doubled(previous)

    @dag
    def too_short() -> None:
        told(short(previous=1))

    run = await (await sim.start(too_short)).finished()

    assert run.states == {
        "short.doubled": "success",
        "short.until": "failed",
        "told": "upstream_failed",
    }
    error = run["short.until"].error
    assert error is not None
    assert (error.reason, run["short.until"].tries) == ("max_rounds", 1)


async def test_a_task_that_always_runs_takes_the_last_value(sim: Sim):
    @task_group(until=large, max_rounds=2)
    def short(previous: int) -> int:
        return doubled(previous)

    @dag
    def best_so_far() -> None:
        told.override(trigger_rule="all_done")(short(previous=1))

    run = await (await sim.start(best_so_far)).finished()

    assert run["told"].result == (4, [])


async def test_a_function_that_decides_may_be_a_task_with_options_of_its_own(sim: Sim):
    asked: list[int] = []

    @task(retry=Retry(tries=2, delay="1m"))
    async def decides(number: int) -> object:
        asked.append(number)
        if len(asked) == 1:
            raise OSError("not now")
        return [number] if number > 3 else []

    @task_group(until=decides)
    def enough(previous: int) -> int:
        return doubled(previous)

    @dag
    def asking() -> None:
        told(enough(previous=1))

    run = await (await sim.start(asking)).finished()

    assert run["told"].result == (4, [])
    assert asked == [2, 2, 4]


async def test_a_round_that_is_skipped_skips_what_follows(sim: Sim):
    def never(number: int) -> bool:
        raise Skip("nothing to do")

    @task_group(until=never)
    def skips(previous: int) -> int:
        return doubled(previous)

    @dag
    def skipping() -> None:
        told(skips(previous=1))

    run = await (await sim.start(skipping)).finished()

    assert run["told"].state == "skipped"
    assert run.state == "success"


async def test_one_may_map_over_the_rounds(sim: Sim):
    @dag
    def fanned() -> None:
        told(0, doubled.expand(number=grow(start()).rounds))

    run = await (await sim.start(fanned)).finished()

    assert run["told"].result == (0, [4, 8, 16, 32])
