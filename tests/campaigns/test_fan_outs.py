"""A fan-out of 2,000 on a node in the test process, crashed at each of its commits in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

import pytest

from aioflow import dag, task
from aioflow.testing import Sim
from aioflow.testing.crash_test import Ending, ending_of
from tests.campaigns.record import record
from tests.campaigns.shards import shards

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
@pytest.mark.parametrize("shard", shards(4), ids=str)
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_children_are_2000_and_the_aggregate_one_wherever_the_node_is_crashed(shard):
    """Crash as ``Sim.crash_everywhere`` does, but only at the commits of this shard."""
    aggregates = commits = crashes = stored_by = 0

    def count_them(doubled: Sequence[int]) -> list[int]:
        nonlocal aggregates
        aggregates += 1
        return counted.fn(doubled)

    async def play(crash: Callable[[int, bool], bool]) -> Ending:
        with Sim() as sim:
            sim.replace(counted, count_them)
            sim._world.crash_where(crash)
            run = await (await sim.start(wide)).finished()
            assert run["counted"].result == [WIDTH, WIDTH * (WIDTH - 1)]
            return ending_of(run)

    def count(number: int, is_before: bool) -> bool:
        nonlocal commits, stored_by
        commits = number
        if aggregates and not stored_by:
            stored_by = number  # the first commit since the aggregate ran
        return False

    expected = await play(count)
    for number in takewhile(lambda number: number <= commits, shard.numbers()):
        for is_before in (True, False):
            ending = await play(lambda *place, wanted=(number, is_before): place == wanted)
            assert ending == expected, f"crashed at commit {number}, before it: {is_before}"
            crashes += 1

    record(
        "fan_outs",
        shard=str(shard),
        width=WIDTH,
        commits=commits,
        crashes=crashes,
        begun=aggregates,
    )
    assert crashes == 2 * shard.share(commits)
    # The aggregate runs once in each play, and twice if the crash was before its result was stored.
    is_cut_short = (stored_by - shard.number) % shard.of == 0
    assert aggregates == 1 + crashes + is_cut_short
