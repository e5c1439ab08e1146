"""Backfills are stored completely, found by number, DAG and state; runs are counted by state."""

from __future__ import annotations

import pytest
from anyio import create_task_group
from msgspec.structs import replace

from aioflow.errors import BatchRefused
from aioflow.model.dag import BackfillRow
from aioflow.model.rows import DeletionRow
from aioflow.model.states import RunState
from tests.journal_replay import compare_with_replay
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

    found = await store.find_backfills([50, 51, 40, 60])
    assert [row for row, _ in found] == [ONE, OVER, OTHER]
    assert await compare_with_replay(store) == []


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

    assert await store.list_backfills(limit=2) == [(OTHER, {}), (ONE, {})]
    assert await store.list_backfills(limit=2, before=50) == [(OVER, {})]
    assert await store.list_backfills(dag_id="etl") == [(ONE, {}), (OVER, {})]
    assert await store.list_backfills(dag_id="never") == []


async def test_the_last_of_several_rows_counts_and_a_restart_restores_active_ones(
    store,
):
    await store.commit(first_batch())
    later = replace(ONE, next_at=NOON + 8, made=2)
    await store.commit(batch(2, backfills=[ONE, OVER, OTHER, later]))
    await store.commit(batch(3, backfills=[replace(OTHER, state="done", ended_at=NOON)]))

    assert (await load(store)).backfills == [later]
    assert await compare_with_replay(store) == []


async def test_a_dag_has_one_active_backfill(store):
    await store.commit(first_batch())
    await store.commit(batch(2, backfills=[ONE]))

    with pytest.raises(BatchRefused):
        await store.commit(batch(3, backfills=[replace(ONE, backfill_no=51)]))


def run(number, state=RunState.RUNNING, backfill=50):
    """Return a run of a backfill."""
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


async def test_its_runs_are_counted_by_state_without_those_that_are_being_deleted(store):
    runs = [
        *(run(2, RunState.RUNNING), run(3, RunState.SUCCESS), run(4, RunState.SUCCESS)),
        *(run(5, RunState.FAILED), run(6, RunState.SUCCESS, backfill=40)),
    ]
    await store.commit(first_batch())
    await store.commit(
        batch(
            2,
            new_runs=runs,
            new_deletions=[DeletionRow(run_no=5, at=NOON)],
            backfills=[ONE, OVER, OTHER],
        )
    )

    found = await store.find_backfills([60, 50, 40, 30])

    assert found == [
        (OTHER, {}),
        (ONE, {RunState.RUNNING: 1, RunState.SUCCESS: 2}),
        (OVER, {RunState.SUCCESS: 1}),
    ]
    assert list(found[1][1]) == [RunState.RUNNING, RunState.SUCCESS]
    assert (await store.find_run("r2")).backfill == 50
    assert await compare_with_replay(store) == []


async def test_it_and_its_runs_are_seen_as_of_one_moment(store):
    await store.commit(first_batch())
    await store.commit(batch(2, backfills=[replace(ONE, made=0)]))
    seen = []

    async def see_it_often():
        while not seen or seen[-1][0] < 40:
            ((row, counts),) = await store.find_backfills([ONE.backfill_no])
            seen.append((row.made, sum(counts.values())))

    async with create_task_group() as group:
        group.start_soon(see_it_often)
        for made in range(1, 41):
            of_it = [replace(ONE, made=made)]
            await store.commit(batch(2 + made, new_runs=[run(1 + made)], backfills=of_it))

    assert [(made, runs) for made, runs in seen if made != runs] == []
