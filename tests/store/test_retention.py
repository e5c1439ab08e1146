"""Old rows are found page by page by an index, and a journal without its beginning is checked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aioflow.model.rows import DeletionRow, NamedEventRow, RunChange
from aioflow.model.states import RunState, TaskState
from tests.journal_replay import compare_with_replay
from tests.store.samples import (
    NOON,
    RUN,
    TASK,
    VERSION,
    batch,
    execute,
    first_batch,
    moved,
)

SECOND_TASK = replace(TASK, task_no=11, task_index=1, state=TaskState.QUEUED, start_no=0)


def ended(number, at, *, dag_id="etl", date=None):
    return replace(
        RUN,
        run_no=number,
        run_id=f"r{number}",
        dag_id=dag_id,
        key=None,
        first_task_no=number * 100,
        logical_date=date,
        state=RunState.SUCCESS if at else RunState.RUNNING,
        ended_at=at,
    )


async def test_old_runs_come_by_their_end_a_page_at_a_time(store):
    runs = [
        *(ended(2, NOON + 30), ended(3, NOON + 10), ended(4, NOON + 10), ended(5, NOON + 40)),
        *(ended(6, None), ended(7, NOON + 20, dag_id="other"), ended(8, NOON + 5)),
    ]
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=runs, new_deletions=[DeletionRow(run_no=8, at=NOON)]))

    found, cursor = [], (-(2**62), -1)
    while page := await store.list_old_runs("etl", before=NOON + 40, after=cursor, limit=2):
        found += [run.run_no for run in page]
        cursor = (page[-1].ended_at, page[-1].run_no)

    assert found == [3, 4, 2]
    assert (await store.newest_ended_run("etl")).run_no == 5
    assert await store.newest_ended_run("never") is None
    assert await store.oldest_live_run() == 1


async def test_the_run_after_is_that_of_the_next_date(store):
    runs = [
        *(ended(2, NOON, date=NOON + 30), ended(3, None, date=NOON + 10)),
        *(ended(4, NOON, date=NOON + 30), ended(5, NOON, dag_id="other", date=NOON + 11)),
        ended(6, NOON, date=None),
    ]
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=runs))

    places = [(NOON, 1), (NOON + 10, 3), (NOON + 30, 2), (NOON + 30, 4)]
    found = await store.find_runs_after("etl", places)

    assert [run and run.run_no for run in found] == [3, 2, 4, None]


async def test_numbers_come_with_their_instants(store):
    event = NamedEventRow(event_no=5, name="n", key=None, data=b"\xc0", at=NOON)
    await store.commit(first_batch())
    await store.commit(batch(2, named_events=[event, replace(event, event_no=9, at=NOON + 1)]))

    assert await store.list_numbers("journal", after=-1, limit=9) == [(1, NOON), (2, NOON + 2)]
    assert await store.list_numbers("named_event", after=5, limit=9) == [(9, NOON + 1)]
    assert await store.list_numbers("named_event", after=-1, limit=1) == [(5, NOON)]


async def shortened(store):
    """Return a store whose journal no longer has the first two commits."""
    await store.commit(first_batch())
    await store.commit(batch(2, new_tasks=[SECOND_TASK]))
    await store.commit(
        batch(
            3,
            steps=[(10, TaskState.SUCCESS)],
            task_changes=[moved(TASK, TaskState.SUCCESS)],
            new_versions=[VERSION],
            done_outbox=[3],
            gone_files=["etl.py"],
        )
    )
    await store.commit(batch(4, erased={"journal": [(1,), (2,)]}))
    await store.commit(
        batch(
            5,
            run_changes=[RunChange(1, RunState.RUNNING, RunState.SUCCESS, 1, 2, None)],
            new_runs=[ended(2, NOON)],
        )
    )
    assert [row.commit_no for row in await store.read_journal()] == [3, 4, 5]


async def test_a_journal_without_its_beginning_is_still_held_against_the_tables(store):
    await shortened(store)

    assert await compare_with_replay(store) == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        pytest.param("UPDATE task SET state = 7 WHERE task_no = 10", "state", id="changed-since"),
        pytest.param("UPDATE run SET ended_at = 9 WHERE run_no = 1", "ended_at", id="run"),
        pytest.param("DELETE FROM run WHERE run_no = 2", "not stored", id="made-since"),
        pytest.param(
            "INSERT INTO dag_file VALUES ('etl.py', NULL, NULL, NULL, 1)",
            "not in the journal",
            id="gone-since",
        ),
        pytest.param("DELETE FROM journal WHERE commit_no = 4", "continues with 5", id="gap"),
        pytest.param("DELETE FROM journal WHERE commit_no = 3", "begins with 4", id="too-short"),
    ],
)
async def test_a_hand_in_the_database_is_noticed_as_far_as_the_journal_goes(
    store, store_url, statement, said
):
    await shortened(store)
    execute(store_url, statement)

    assert said in " ".join(await compare_with_replay(store))


async def test_errors_in_the_rest_of_the_journal_are_noticed(store, store_url):
    await shortened(store)
    await store.commit(
        batch(
            6,
            steps=[(10, TaskState.RUNNING)],  # a task that succeeded does not run again like this
            task_changes=[moved(replace(TASK, state=TaskState.SUCCESS), TaskState.RUNNING)],
        )
    )

    assert any("task 10" in fault for fault in await compare_with_replay(store))
