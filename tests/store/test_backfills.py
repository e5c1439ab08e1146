"""Backfills are stored whole, found by number, DAG and state; their runs are counted by state."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aioflow.backfills import BackfillRow
from aioflow.errors import BatchRefused
from aioflow.model import RunState
from aioflow.rows import DeletionRow
from aioflow.store.replay import compare
from tests.store.loading import load
from tests.store.samples import NOON, RUN, batch, first_batch

ONE = BackfillRow(
    backfill_no=50,
    dag_id="etl",
    first=NOON,
    last=NOON + 10,
    reprocess="failed",
    max_active=3,
    is_reverse=True,
    conf=b"\x80",
    next_at=NOON + 9,
    made=1,
    skipped=2,
    created_at=NOON + 20,
)
OVER = replace(
    ONE, backfill_no=40, state="failed", next_at=None, ended_at=NOON + 21, failure="no schedule"
)
OTHER = replace(ONE, backfill_no=60, dag_id="other", is_reverse=False, conf=None)


async def test_a_backfill_comes_back_as_it_was_stored(store):
    await store.commit(first_batch())
    await store.commit(batch(2, backfills=[ONE, OVER, OTHER]))

    assert [await store.find_backfill(number) for number in (50, 40, 60)] == [ONE, OVER, OTHER]
    assert await store.find_backfill(51) is None
    assert await compare(store) == []


async def test_a_backfill_is_found_by_its_idempotency_key(store):
    keyed = replace(ONE, key="monday")
    await store.commit(first_batch())
    await store.commit(batch(2, backfills=[keyed, OVER, OTHER]))

    assert await store.find_keyed_backfill("etl", "monday") == keyed
    assert await store.find_keyed_backfill("other", "monday") is None
    with pytest.raises(BatchRefused):
        await store.commit(batch(3, backfills=[replace(OVER, backfill_no=41, key="monday")]))


async def test_backfills_come_in_pages_the_newest_first(store):
    await store.commit(first_batch())
    await store.commit(batch(2, backfills=[ONE, OVER, OTHER]))

    assert await store.list_backfills(limit=2) == [OTHER, ONE]
    assert await store.list_backfills(limit=2, before=50) == [OVER]
    assert await store.list_backfills(dag_id="etl") == [ONE, OVER]
    assert await store.list_backfills(dag_id="never") == []


async def test_of_several_rows_of_one_the_last_counts_and_a_restart_has_what_goes_on(
    store,
):
    await store.commit(first_batch())
    later = replace(ONE, next_at=NOON + 8, made=2)
    await store.commit(batch(2, backfills=[ONE, OVER, OTHER, later]))
    await store.commit(batch(3, backfills=[replace(OTHER, state="done", ended_at=NOON)]))

    assert (await load(store)).backfills == [later]
    assert await compare(store) == []


async def test_a_dag_has_one_backfill_that_goes_on(store):
    await store.commit(first_batch())
    await store.commit(batch(2, backfills=[ONE]))

    with pytest.raises(BatchRefused):
        await store.commit(batch(3, backfills=[replace(ONE, backfill_no=51)]))


async def test_its_runs_are_counted_by_state_without_those_that_are_being_deleted(store):
    def run(number, state, backfill=50):
        return replace(
            RUN,
            run_no=number,
            run_id=f"r{number}",
            key=None,
            first_task_no=number * 100,
            state=state,
            cause="backfill",
            backfill=backfill,
        )

    runs = [
        *(run(2, RunState.RUNNING), run(3, RunState.SUCCESS), run(4, RunState.SUCCESS)),
        *(run(5, RunState.FAILED), run(6, RunState.SUCCESS, backfill=40)),
    ]
    await store.commit(first_batch())
    await store.commit(
        batch(2, new_runs=runs, new_deletions=[DeletionRow(run_no=5, at=NOON)], backfills=[ONE])
    )

    counts = await store.count_runs_of_backfills([50, 40, 30])

    assert counts == {
        50: {RunState.RUNNING: 1, RunState.SUCCESS: 2},
        40: {RunState.SUCCESS: 1},
        30: {},
    }
    assert list(counts[50]) == [RunState.RUNNING, RunState.SUCCESS]
    assert (await store.find_run("r2")).backfill == 50
    assert await compare(store) == []
