"""A crash anywhere changes nothing, unless the DAG depends on what it must not."""

from __future__ import annotations

import itertools

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
