"""``kill -9`` of a daemon at every system call it makes, and at calls chosen at random.

Parts are chosen by name, such as ``-k warm`` or ``-k "cold and unlink"``. There are no limits on
durations, so two workers share the shards. The promises are in ``docs/reference/faults.md``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.record import record
from tests.campaigns.shards import Shard, shards
from tests.faults import kills
from tests.faults.kills import COLD_CALLS, MISSES, WARM_CALLS, Tally, WarmKills

pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(3600)]

KILLS_PER_HOME = 25
WARM_LEAST = {"pwrite64": 70, "fdatasync": 6, "write": 16}
COLD_LEAST = {
    "pwrite64": 120, "fdatasync": 12, "fsync": 2, "write": 30, "link": 1, "unlink": 4,
    "rename": 1, "mkdir": 6, "ftruncate": 2,
}  # fmt: skip
# Beside other work, a settlement makes fewer writes, because more results share a write. Then up to
# half of the kills come too late, so three times as many attempts as required hits are allowed.
SETTLEMENT, SETTLEMENT_LEAST, SETTLEMENTS_AT_MOST = 300, 150, 450
WIDE, WIDE_LEAST, WIDE_AT_MOST = 2_000, 40, 120
AT_LEAST = 400
"""Minimum number of kill points in total. Each part asserts its own minimum."""

WARM_SHARDS = {"pwrite64": 2}
COLD_SHARDS = {"pwrite64": 4, "write": 2}
"""Kinds of calls with many calls are divided into shards. All others are a single shard."""


def each_call(calls: tuple[str, ...], divided: dict[str, int]) -> list[Any]:
    """Return a test parameter for each shard of each call."""
    return [
        pytest.param(call, shard, id=f"{call}-{shard}")
        for call in calls
        for shard in shards(divided.get(call, 1))
    ]


@pytest.mark.parametrize(("call", "shard"), each_call(WARM_CALLS, WARM_SHARDS))
def test_kill_at_every_warm_call(call, shard, tmp_path):
    """Kill before the n-th call of a run, for every n that occurs."""
    tally = Tally()
    numbers = until_there_is_none(shard, tally)
    for home_number in itertools.count():
        (folder := tmp_path / str(home_number)).mkdir()
        with WarmKills(folder, tally) as home:
            for number in itertools.islice(numbers, KILLS_PER_HOME):
                home.kill(call, number)
        if tally.missed_in_a_row >= MISSES:
            break
    record("faults", fault="kill_warm", call=call, shard=str(shard), **told(tally))
    judge(tally, shard.share(WARM_LEAST[call]))


@pytest.mark.parametrize(("call", "shard"), each_call(COLD_CALLS, COLD_SHARDS))
def test_kill_at_every_cold_call(call, shard, tmp_path):
    """Kill a first start and its first run before the n-th call, for every n that occurs."""
    tally = Tally()
    for number in until_there_is_none(shard, tally):
        kills.kill_a_start(tmp_path / str(number), call, number, tally)
    record("faults", fault="kill_cold", call=call, shard=str(shard), **told(tally))
    judge(tally, shard.share(COLD_LEAST[call]))


@pytest.mark.parametrize("shard", shards(5), ids=str)
def test_kill_settlements_at_random_writes(shard, tmp_path):
    kill_settlements(
        tmp_path, "kill_settlement", shard, SETTLEMENT, SETTLEMENT_LEAST, SETTLEMENTS_AT_MOST
    )


@pytest.mark.parametrize("shard", shards(4), ids=str)
def test_kill_wide_settlements_at_random_writes(shard, tmp_path):
    """Kill settlements with a fan-out of 2,000, forty times."""
    kill_settlements(tmp_path, "kill_wide", shard, WIDE, WIDE_LEAST, WIDE_AT_MOST)


def kill_settlements(
    folder: Path, fault: str, shard: Shard, merchants: int, least: int, at_most: int
) -> None:
    """Kill settlements until enough were hit. The seeds of all shards together are 0, 1, 2, ..."""
    tally = Tally()
    slowest = 0.0
    calls = kills.count_settlement(folder / "counted", merchants=merchants)
    for number in itertools.islice(shard.numbers(), shard.share(at_most)):
        home, seed = folder / str(number), number - 1
        recovery = kills.kill_a_settlement(home, seed, calls, tally, merchants=merchants)
        slowest = max(slowest, recovery)
        if tally.kills >= shard.share(least):
            break
    record(
        "faults",
        fault=fault,
        shard=str(shard),
        merchants=merchants,
        slowest_recovery_seconds=slowest,
        **told(tally),
    )
    judge(tally, shard.share(least))


def until_there_is_none(shard: Shard, tally: Tally) -> Iterator[int]:
    """Yield the numbers of a shard until several in a row have not been reached."""
    for number in shard.numbers():
        if tally.missed_in_a_row >= MISSES:
            return
        yield number


def told(tally: Tally) -> dict[str, Any]:
    """Return the tally for the record: ranges and counts of kill points instead of all points."""
    figures = asdict(tally)
    at, _ = figures.pop("at"), figures.pop("missed_in_a_row")
    figures["points"] = {call: [min(them), max(them), len(them)] for call, them in at.items()}
    return figures


def judge(tally: Tally, least: int) -> None:
    """Assert that enough was killed, and that each kill could have lost something."""
    assert tally.kills >= least
    assert tally.acknowledged >= tally.kills


def test_the_kills_asked_for_are_enough():
    assert sum(WARM_LEAST.values()) + sum(COLD_LEAST.values()) + SETTLEMENT_LEAST >= AT_LEAST
