"""A fan-out of 2,000 in worker processes, killed at each commit in turn, in the test kit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aioflow import dag, task
from aioflow.testing import Sim

RESULTS = Path(__file__).parent / "results"
WIDTH = 2_000


@task
def numbers() -> list[int]:
    return list(range(WIDTH))


@task
def twice(number: int) -> int:
    return 2 * number


@task
def counted(doubled: Sequence[int]) -> list[int]:
    return [len(doubled), sum(doubled)]


@dag
def wide() -> None:
    counted(twice.expand(number=numbers()))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_children_are_2000_and_the_aggregate_one_wherever_the_node_is_killed():
    begun = itertools.count()

    def count_them(doubled: Sequence[int]) -> list[int]:
        next(begun)
        return counted.fn(doubled)

    with Sim() as sim:
        run = await (await sim.start(wide)).finished()
        assert run["counted"].result == [WIDTH, WIDTH * (WIDTH - 1)]

    commits = await Sim.crash_everywhere(wide, lambda sim: sim.replace(counted, count_them))

    aggregates = next(begun)
    assert aggregates == 1 + 2 * commits + 1  # once in each life of a run, but for one cut short
    now = datetime.now(UTC)
    figures = {"width": WIDTH, "commits": commits, "crashes": 2 * commits, "begun": aggregates}
    with (RESULTS / f"fan_outs-{now.date().isoformat()}.jsonl").open("a") as file:
        file.write(json.dumps({"at": now.isoformat(), **figures}) + "\n")
