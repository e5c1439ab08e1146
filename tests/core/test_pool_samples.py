"""Each minute has one sample for each pool that is used or waited for."""

from __future__ import annotations

import pytest

from aioflow.core.requests import MOST_POOLS
from aioflow.model.pool_usage import MINUTE_US, PoolUsageRow, minute_of
from aioflow.protocol.requests import PoolSample, RecordPoolUsage
from tests.core.world import World


@pytest.fixture
def world():
    return World()


def record(world, *pools, expired=()):
    """Store samples of pools. Return all stored samples."""
    world.ask(RecordPoolUsage(pools=pools, expired=expired))
    return sorted(world.rows.pool_usage.values())


def test_a_pool_without_tasks_has_no_sample(world):
    used, wanted = PoolSample("used", 3, 1, 0), PoolSample("wanted", 1, 0, 4)
    stored = record(world, PoolSample("idle", 2, 0, 0), used, wanted)

    start = minute_of(world.now)
    assert stored == [
        PoolUsageRow("used", start, 3, 1, 0),
        PoolUsageRow("wanted", start, 1, 0, 4),
    ]


def test_nothing_is_committed_while_no_pool_is_used(world):
    before = world.rows.commit_no
    assert record(world, PoolSample("idle", 2, 0, 0)) == []
    assert world.rows.commit_no == before


def test_a_second_sample_of_a_minute_replaces_the_first(world):
    record(world, PoolSample("db", 4, 1, 0))
    assert [row.used for row in record(world, PoolSample("db", 4, 3, 0))] == [3]

    world.pass_time(60)
    later = record(world, PoolSample("db", 4, 2, 0))
    assert [row.used for row in later] == [3, 2]
    assert later[1].start - later[0].start == MINUTE_US


def test_expired_samples_are_deleted_and_missing_ones_are_ignored(world):
    (old,) = record(world, PoolSample("db", 4, 1, 0))
    world.pass_time(60)
    gone = (("db", old.start), ("other", old.start))
    assert [row.used for row in record(world, PoolSample("db", 4, 2, 0), expired=gone)] == [2]


def test_of_too_many_pools_those_that_most_tasks_wait_for_have_samples(world):
    pools = [PoolSample(f"p{at}", 1, 1, at) for at in range(MOST_POOLS + 5)]
    stored = record(world, *pools)

    assert len(stored) == MOST_POOLS
    assert min(row.queued for row in stored) == 5
