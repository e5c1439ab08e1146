"""Rows of durable calls."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aioflow.errors import BatchRefused
from aioflow.model.rows import ItemRow, RecordChange, RecordRow, TriggerChange
from aioflow.model.states import RecordState, TaskState, TriggerState
from aioflow.protocol.inputs import CoroutineProgress
from tests.journal_replay import compare_with_replay
from tests.store.loading import load
from tests.store.samples import (
    FAILURE,
    NOON,
    RUN,
    TASK,
    TRIGGER,
    batch,
    execute,
    first_batch,
    moved,
)

S = RecordState

STEP = RecordRow(
    task_no=10,
    ordinal=0,
    run_no=1,
    state=S.ANSWERED,
    kind="step",
    name="etl:lookup",
    source_location="etl.py:7",
    answer=b"\x07",
)
FAILED = replace(STEP, ordinal=1, state=S.FAILED, answer=b"\x90", failure=FAILURE)
OPEN = replace(STEP, ordinal=2, state=S.OPEN, kind="any_of", name="A, B", answer=None)
OTHER = replace(TASK, task_no=11, task_index=1)


def with_records(*rows: RecordRow) -> Any:
    return replace(first_batch(), new_tasks=[TASK, OTHER], new_records=list(rows))


async def test_records_come_back_as_they_were_in_order(store):
    await store.commit(with_records(OPEN, STEP, FAILED, replace(STEP, task_no=11)))

    assert await store.list_records(10) == [STEP, FAILED, OPEN]
    assert await store.list_records(11) == [replace(STEP, task_no=11)]
    assert await store.list_records(12) == []


async def test_records_come_in_pages(store):
    await store.commit(with_records(STEP, FAILED, OPEN))

    assert await store.list_records(10, -1, 2) == [STEP, FAILED]
    assert await store.list_records(10, 1, 2) == [OPEN]


@pytest.mark.parametrize("count", [3, 400])
async def test_a_restart_knows_the_records_and_the_items_of_each_run(store, store_url, count):
    numbers = range(2, count + 2)
    await store.commit(first_batch())
    await store.commit(
        batch(
            2,
            new_runs=[replace(RUN, run_no=n, run_id=f"r{n}", key=None) for n in numbers],
            new_tasks=[replace(TASK, task_no=100 + n, run_no=n) for n in numbers],
            new_records=[
                replace(STEP, task_no=100 + n, run_no=n, ordinal=at)
                for n in numbers
                for at in (0, 1)
            ],
            new_items=[
                ItemRow(task_no=100 + n, item_index=0, run_no=n, payload=b"\x07") for n in numbers
            ],
        )
    )
    execute(store_url, "ANALYZE")  # or the database thinks that there is nothing to sort

    runs = (await load(store)).runs[1:]

    assert [run.progress for run in runs] == [[CoroutineProgress(100 + n, 2)] for n in numbers]
    assert [run.items for run in runs] == [[(100 + n, 1)] for n in numbers]


async def test_an_open_record_is_answered_once(store):
    await store.commit(with_records(STEP, FAILED, OPEN))
    answered = RecordChange(10, 2, S.ANSWERED, b"\x92\x01\x02", None)

    await store.commit(batch(2, record_changes=[answered]))
    with pytest.raises(BatchRefused):
        await store.commit(batch(3, record_changes=[answered]))

    (found,) = await store.list_records(10, 1)
    assert found == replace(OPEN, state=S.ANSWERED, answer=b"\x92\x01\x02")


async def test_a_call_is_made_opened_and_answered_in_one_batch(store):
    change = RecordChange(10, 2, S.FAILED, None, FAILURE)

    await store.commit(replace(with_records(STEP, FAILED, OPEN), record_changes=[change]))

    assert (await store.list_records(10))[-1] == replace(OPEN, state=S.FAILED, failure=FAILURE)
    assert await compare_with_replay(store) == []


async def test_a_dropped_call_may_be_made_again_in_the_same_batch(store):
    await store.commit(with_records(STEP, FAILED))
    reexpanded = replace(FAILED, state=S.ANSWERED, answer=b"new", failure=None)

    await store.commit(batch(2, dropped_records=[(10, 1)], new_records=[reexpanded]))

    assert await store.list_records(10) == [STEP, reexpanded]
    assert await compare_with_replay(store) == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"new_records": [STEP]}, id="made-twice"),
        pytest.param({"dropped_records": [(10, 9)]}, id="dropped-but-never-made"),
        pytest.param(
            {"record_changes": [RecordChange(10, 0, S.ANSWERED, b"x", None)]}, id="answered-again"
        ),
        pytest.param({"new_records": [replace(STEP, task_no=99)]}, id="of-no-task"),
    ],
)
async def test_a_mismatching_change_is_refused_as_a_whole(store, changes):
    await store.commit(with_records(STEP))

    with pytest.raises(BatchRefused):
        await store.commit(batch(2, gone_files=["etl.py"], **changes))

    assert await store.list_records(10) == [STEP]
    assert len(await store.list_dag_files()) == 1


async def test_a_restart_knows_how_far_each_task_has_come(store):
    await store.commit(with_records(STEP, FAILED, OPEN, replace(STEP, task_no=11)))

    (run,) = (await load(store)).runs

    expected = [CoroutineProgress(10, 3, 1, "any_of", "A, B"), CoroutineProgress(11, 1)]
    assert sorted(run.progress, key=lambda progress: progress.task_no) == expected
    assert await store.load_run(1) == run


async def test_a_restart_reads_no_records_of_ended_runs(store):
    ended = replace(RUN, run_no=2, run_id="etl-2", key=None, logical_date=1, ended_at=NOON)
    task = replace(TASK, task_no=20, run_no=2)
    await store.commit(
        replace(
            first_batch(),
            new_runs=[RUN, ended],
            new_tasks=[TASK, task],
            new_records=[replace(STEP, task_no=20, run_no=2)],
        )
    )

    (run,) = (await load(store)).runs

    assert run.progress == []


async def test_triggers_know_which_call_they_belong_to(store):
    branch = replace(TRIGGER, trigger_no=8, ordinal=2, branch=1, next_method="")
    await store.commit(replace(with_records(STEP, FAILED, OPEN), new_triggers=[TRIGGER, branch]))
    fired = TriggerChange(8, TriggerState.WAITING, TriggerState.FIRED, b"e", None)
    await store.commit(batch(2, trigger_changes=[fired]))

    (run,) = (await load(store)).runs

    assert run.triggers[1] == replace(branch, state=TriggerState.FIRED, event=b"e")


async def test_the_journal_tells_the_same_as_the_tables(store):
    await store.commit(with_records(STEP, FAILED, OPEN))
    await store.commit(
        batch(
            2,
            steps=[(10, TaskState.RETRYING)],
            task_changes=[moved(TASK, TaskState.RETRYING, failure=FAILURE)],
            dropped_records=[(10, 1), (10, 2)],
        )
    )

    assert await compare_with_replay(store) == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE record SET answer = NULL WHERE ordinal = 0",
        "UPDATE record SET name = 'other' WHERE ordinal = 0",
        "DELETE FROM record WHERE ordinal = 1",
    ],
)
async def test_a_hand_in_the_records_is_noticed(store, store_url, statement):
    await store.commit(with_records(STEP, FAILED))
    execute(store_url, statement)

    assert "record" in " ".join(await compare_with_replay(store))


async def test_a_trigger_is_found_with_the_label_of_the_call_that_waits_for_it(store):
    labelled = replace(OPEN, ordinal=0, label="the bank's answer")
    rows = replace(
        with_records(labelled, replace(labelled, task_no=11, label="")),
        new_triggers=[
            replace(TRIGGER, ordinal=0),
            replace(TRIGGER, trigger_no=8, task_no=11, ordinal=0),
            replace(TRIGGER, trigger_no=9, task_no=11, ordinal=-1),
        ],
    )
    await store.commit(rows)

    assert await store.list_records(10) == [labelled]
    assert await store.find_call_labels([7, 8, 9, 10]) == {7: "the bank's answer"}
    assert await store.find_call_labels([]) == {}


async def test_map_labels_are_found_by_task_number(store):
    await store.commit(replace(first_batch(), new_tasks=[TASK, OTHER], labels=[(10, 1, "north")]))

    assert await store.find_labels([10, 11]) == {10: "north"}
