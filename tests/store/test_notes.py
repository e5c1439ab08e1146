"""Notes are stored with their run, found by run and by text, and deleted with the run."""

from __future__ import annotations

from msgspec.structs import replace

from aioflow.model.rows import DeletionRow
from aioflow.model.run_filter import RunFilter
from aioflow.store import TABLES_OF_RUNS
from tests.journal_replay import compare_with_replay
from tests.store.samples import NOON, NOTE, RUN, batch, first_batch

OF_TASK = replace(NOTE, task_index=0, body=b"file late")
OF_CHILD = replace(NOTE, task_index=1, map_index=2, body=b"merchant 2 complained")
OTHER = replace(RUN, run_no=2, run_id="etl-2", key=None, first_task_no=500, conf=b"\xa6called")


async def test_notes_are_found_by_run_and_task(store):
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=[OTHER], notes=[OF_TASK, OF_CHILD]))

    assert await store.list_notes(1) == [NOTE, OF_TASK, OF_CHILD]
    assert await store.list_notes(1, after=(0, -1)) == [OF_CHILD]
    assert await store.list_notes(1, limit=2) == [NOTE, OF_TASK]
    assert await store.find_note(1, 1, 2) == OF_CHILD
    assert await store.find_note(1, 1, 3) is None
    assert await store.find_notes_of_runs([1, 2]) == {1: NOTE}
    assert await compare_with_replay(store) == []


async def test_a_note_replaces_another_and_is_removed(store):
    await store.commit(first_batch())
    later = replace(NOTE, at=NOON + 1, author="bob", body=b"solved")
    await store.commit(batch(2, notes=[later]))
    assert await store.list_notes(1) == [later]

    await store.commit(batch(3, gone_notes=[NOTE.key, (9, 9, 9)]))
    assert await store.list_notes(1) == []
    assert await compare_with_replay(store) == []


async def test_runs_are_found_by_the_text_of_their_notes(store):
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=[OTHER], notes=[OF_CHILD]))

    async def found(text):
        rows = await store.find_matching_runs(RunFilter(params=text), limit=10)
        counts = await store.count_matching_runs(RunFilter(params=text), limit=10)
        assert sum(one.count for one in counts.counts) == len(rows)
        return [row.run_no for row in rows]

    assert await found("called") == [2, 1]  # by its parameters, and by its note
    assert await found("called ☎") == [1]
    assert await found("complained") == [1]
    assert await found("nobody") == []


async def test_notes_are_deleted_before_their_run(store):
    await store.commit(first_batch())
    await store.commit(batch(2, notes=[OF_TASK], new_deletions=[DeletionRow(run_no=1, at=NOON)]))

    keys = await store.list_erasable("note", 1)
    assert keys == [NOTE.key, OF_TASK.key]
    assert TABLES_OF_RUNS.index("note") < TABLES_OF_RUNS.index("run")
    await store.commit(batch(3, erased={"note": keys}))
    assert await store.list_notes(1) == []
