"""A crash anywhere changes nothing, unless the DAG depends on what it must not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from aioflow import dag, sleep, step, task
from aioflow.testing import Sim


@task
def letters() -> list[str]:
    return ["a", "b", "c"]


@task
def doubled(letter: str) -> str:
    return 2 * letter


@task
async def joined(parts: list[str]) -> str:
    found = [await step(str.upper, part) for part in parts]
    await sleep("3h")
    return "".join(found)


@dag
def words() -> None:
    joined(doubled.expand(letter=letters()))


async def test_the_same_comes_of_it_wherever_the_node_crashes():
    commits = await Sim.crash_everywhere(words)

    assert commits > 8


_numbers = itertools.count()


@task
async def number() -> int:
    taken = next(_numbers)
    await sleep("1h")
    return taken


@dag
def forgetful() -> None:
    number()


async def test_what_counts_how_often_it_ran_is_found_out():
    with pytest.raises(AssertionError, match=r"with a crash just \w+ commit \d+ of \d+:\nnumber: "):
        await Sim.crash_everywhere(forgetful)


async def test_a_crash_in_the_middle_of_a_wait_is_not_noticed(sim: Sim):
    run = await sim.start(words)
    await sim.advance("1h")

    await sim.crash()

    assert run["joined"].state == "deferred"
    await sim.advance("2h")
    assert run["joined"].result == "AABBCC"
    assert run["joined"].tries == 1


@task
def numbers(width: int) -> list[int]:
    return list(range(width))


@task
async def parked_twice(number: int) -> int:
    return 2 * number


@task
def twice(number: int) -> int:
    return 2 * number


@task
def counted(doubled: Sequence[int]) -> list[int]:
    return [len(doubled), doubled.width, sum(doubled)]  # type: ignore[attr-defined]


@dag
def wide(width: int) -> None:
    counted(parked_twice.expand(number=numbers(width)))


@dag
def wide_in_workers(width: int) -> None:
    counted(twice.expand(number=numbers(width)))


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize(
    ("fan", "width"),
    [
        (wide, 2_000),
        (wide_in_workers, 24),
    ],
)
async def test_a_fan_out_that_is_killed_at_any_commit_has_each_child_and_one_aggregate(fan, width):
    begun = itertools.count()

    def count_them(doubled: Sequence[int]) -> list[int]:
        next(begun)
        return counted.fn(doubled)

    with Sim() as sim:
        run = await sim.start(fan, width=width)
        await run.finished()
        assert len(run[fan.nodes[1].task_id].children) == width
        assert run["counted"].result == [width, width, width * (width - 1)]

    commits = await Sim.crash_everywhere(
        fan, lambda sim: sim.replace(counted, count_them), width=width
    )

    plays = 1 + 2 * commits
    # A crash before the commit of its end has it begin again; no other crash does.
    assert next(begun) == plays + 1
