"""Lookup of the run directly before another run of the same DAG."""

from __future__ import annotations

from msgspec.structs import replace

from tests.store.samples import NOON, RUN, batch, first_batch


def dated(number, at, dag_id="etl"):
    fields = {"run_id": f"r{number}", "key": None, "logical_date": at, "dag_id": dag_id}
    return replace(RUN, run_no=number, first_task_no=number * 100, **fields)


async def test_the_run_before_is_that_of_the_date_before_whenever_it_was_made(store):
    runs = [
        *(dated(2, NOON + 30), dated(3, NOON + 10), dated(4, NOON + 20)),
        *(dated(5, NOON + 15, "other"), dated(6, None), dated(7, NOON + 20)),
    ]
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=runs))
    two, three, four, _, _, seven = runs

    places = [(NOON + 30, 2), (NOON + 20, 7), (NOON + 20, 4), (NOON + 10, 3), (1 << 62, -1)]
    found = await store.find_runs_before("etl", places)

    before_all = found[3]
    assert found == [seven, four, three, before_all, two]
    assert before_all is None or before_all.logical_date < NOON + 10
    assert await store.find_runs_before("never", [(1 << 62, -1)]) == [None]
    assert await store.find_runs_before("etl", []) == []
