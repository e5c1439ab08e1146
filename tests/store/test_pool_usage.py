"""Samples of pool usage are stored by minute, read by pool, and deleted by age."""

from __future__ import annotations

from aioflow.model.pool_usage import MINUTE_US
from tests.journal_replay import compare_with_replay
from tests.store.samples import POOL_USAGE, batch, first_batch

START = POOL_USAGE.start
LATER = POOL_USAGE._replace(start=START + MINUTE_US, used=4)
OTHER = LATER._replace(pool="api \N{SNOWMAN}")


async def usage(store, pool, since=START, until=START + 2 * MINUTE_US):
    return await store.list_pool_usage(pool, since=since, until=until)


async def test_samples_of_a_pool_are_found_in_order(store):
    await store.commit(first_batch())
    await store.commit(batch(2, pool_usage=[LATER, OTHER]))

    assert await usage(store, "db") == [POOL_USAGE, LATER]
    assert await usage(store, "db", since=START + 1) == [LATER]
    assert await usage(store, "db", until=LATER.start) == [POOL_USAGE]
    assert await usage(store, OTHER.pool) == [OTHER]
    assert await usage(store, "none") == []
    assert await compare_with_replay(store) == []


async def test_a_sample_replaces_the_one_of_its_minute(store):
    await store.commit(first_batch())
    now = POOL_USAGE._replace(slots=9, used=8, queued=0)
    await store.commit(batch(2, pool_usage=[now]))

    assert await usage(store, "db") == [now]
    assert await compare_with_replay(store) == []


async def test_old_samples_are_found_the_oldest_first_and_deleted(store):
    await store.commit(first_batch())
    await store.commit(batch(2, pool_usage=[LATER]))

    assert await store.list_old_pool_usage(before=START, limit=9) == []
    old = await store.list_old_pool_usage(before=LATER.start + 1, limit=1)
    assert old == [("db", START)]
    await store.commit(batch(3, erased={"pool_usage": [*old, ("gone", START)]}))
    assert await usage(store, "db") == [LATER]
    assert await compare_with_replay(store) == []
