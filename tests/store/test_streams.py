"""Rows of streams: items in order, and expansions that grow until they are closed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aioflow.errors import BatchRefused
from aioflow.model.rows import ExpansionChange, ExpansionRow, ItemRow
from tests.journal_replay import compare_with_replay
from tests.store.loading import load
from tests.store.samples import batch, first_batch

OPEN = ExpansionRow(run_no=1, task_index=1, width=1, first_task_no=100, is_open=True)


def item(index: int, payload: bytes = b"\x07", task_no: int = 10) -> ItemRow:
    return ItemRow(task_no=task_no, item_index=index, run_no=1, payload=payload)


async def begun(store) -> None:
    await store.commit(
        replace(first_batch(), new_expansions=[OPEN], new_items=[item(0), item(0, task_no=11)])
    )


async def test_items_come_back_in_order_and_in_pages(store):
    await begun(store)
    await store.commit(batch(2, new_items=[item(2, b"\x09"), item(1, b"\x08")]))

    assert await store.list_items(10) == [item(0), item(1, b"\x08"), item(2, b"\x09")]
    assert await store.list_items(10, 0, 1) == [item(1, b"\x08")]
    assert await store.list_items(12) == []


async def test_a_restart_is_given_the_number_of_items(store):
    await begun(store)
    await store.commit(batch(2, new_items=[item(1)]))

    (run,) = (await load(store)).runs
    assert sorted(run.items) == [(10, 2), (11, 1)]
    assert sorted((await store.load_run(1)).items) == [(10, 2), (11, 1)]


async def test_a_fan_out_grows_and_is_closed_for_good(store):
    await begun(store)
    await store.commit(batch(2, expansion_changes=[ExpansionChange(1, 1, 1, 3, True)]))
    assert await store.list_expansions(1) == [replace(OPEN, width=3)]

    await store.commit(batch(3, expansion_changes=[ExpansionChange(1, 1, 3, 3, False)]))

    assert await store.list_expansions(1) == [replace(OPEN, width=3, is_open=False)]
    with pytest.raises(BatchRefused):
        await store.commit(batch(4, expansion_changes=[ExpansionChange(1, 1, 3, 4, False)]))


async def test_a_loop_that_is_closed_goes_back_to_a_round_in_one_commit(store):
    await begun(store)
    await store.commit(batch(2, expansion_changes=[ExpansionChange(1, 1, 1, 3, False)]))

    shorter = replace(OPEN, width=2)
    await store.commit(batch(3, gone_expansions=[(1, 1)], new_expansions=[shorter]))

    assert await store.list_expansions(1) == [shorter]
    await store.commit(batch(4, expansion_changes=[ExpansionChange(1, 1, 2, 3, True)]))
    assert await store.list_expansions(1) == [replace(OPEN, width=3)]


async def test_a_fan_out_that_is_not_as_wide_as_was_thought_grows_not(store):
    await begun(store)

    with pytest.raises(BatchRefused):
        await store.commit(batch(2, expansion_changes=[ExpansionChange(1, 1, 2, 3, True)]))

    assert await store.list_expansions(1) == [OPEN]


async def test_an_item_is_stored_once(store):
    await begun(store)

    with pytest.raises(BatchRefused):
        await store.commit(batch(2, new_items=[item(0, b"\x63")]))

    assert await store.list_items(10) == [item(0)]


async def test_items_without_a_consumer_are_deleted_together(store):
    await begun(store)
    await store.commit(batch(2, new_items=[item(1)], gone_items=[10]))

    assert await store.list_items(10) == []
    assert await store.list_items(11) == [item(0, task_no=11)]


async def test_the_journal_tells_of_items_and_of_what_grows(store):
    await begun(store)
    await store.commit(
        batch(2, new_items=[item(1)], expansion_changes=[ExpansionChange(1, 1, 1, 2, True)])
    )
    await store.commit(
        batch(3, gone_items=[11], expansion_changes=[ExpansionChange(1, 1, 2, 2, False)])
    )

    assert await compare_with_replay(store) == []
