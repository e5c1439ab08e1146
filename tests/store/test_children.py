"""The database counts, draws and lists the children of a mapped task."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from sqlalchemy import func, select

from aioflow.model.children import DURATION_BOUNDS_US, NO_DURATION, Cell, ChildCount, SlowChild
from aioflow.model.states import Failure, TaskState
from aioflow.store import tables
from aioflow.store.columns import read_rows
from tests.store.samples import NOON, TASK, batch, first_batch

SECOND = DURATION_BOUNDS_US.index(1_000_000)


def child(number: int, state: TaskState, took_us: int | None = None, **fields):
    return replace(
        TASK,
        task_no=100 + number,
        task_index=1,
        map_index=number,
        state=state,
        started_at=NOON,
        ended_at=None if took_us is None else NOON + took_us,
        **fields,
    )


async def with_children(store, *children):
    await store.commit(first_batch())
    await store.commit(batch(2, new_tasks=list(children)))


async def test_children_are_counted_by_state_and_duration_with_the_recent_ends(store):
    await with_children(
        store,
        child(0, TaskState.SUCCESS, 999_999),
        child(1, TaskState.SUCCESS, 1_000_000),
        child(2, TaskState.SUCCESS, 10**15),
        child(3, TaskState.SUCCESS, -5),
        child(4, TaskState.SKIPPED, 7),
        child(5, TaskState.RUNNING),
        child(6, TaskState.REMOVED, 7),
        child(7, TaskState.FAILED, 1_000_000),
    )

    assert await store.count_children(100, 107, since=NOON + 1_000_000) == [
        ChildCount(TaskState.RUNNING, NO_DURATION, 1, 0),
        ChildCount(TaskState.SUCCESS, 0, 1, 0),
        ChildCount(TaskState.SUCCESS, SECOND, 1, 0),
        ChildCount(TaskState.SUCCESS, SECOND + 1, 1, 1),
        ChildCount(TaskState.SUCCESS, len(DURATION_BOUNDS_US), 1, 1),
        ChildCount(TaskState.SKIPPED, NO_DURATION, 1, 0),
    ]


async def test_a_cell_shows_the_child_that_needs_attention_most(store):
    await with_children(
        store,
        child(0, TaskState.SUCCESS, 5),
        child(1, TaskState.FAILED, 1_000_000),
        child(2, TaskState.FAILED, 7),
        child(3, TaskState.QUEUED),
        child(4, TaskState.RUNNING),
        child(6, TaskState.SUCCESS, 5),
        child(12, TaskState.SKIPPED, 5),
    )

    assert await store.list_cells(100, 113, size=3) == [
        Cell(0, TaskState.FAILED, 1, SECOND + 1, 3),
        Cell(1, TaskState.RUNNING, 1, NO_DURATION, 2),
        Cell(2, TaskState.SUCCESS, 0, 0, 1),
        Cell(4, TaskState.SKIPPED, 0, NO_DURATION, 1),
    ]
    assert [cell.position for cell in await store.list_cells(100, 113, size=1)] == [
        *range(5),
        6,
        12,
    ]


def test_a_row_of_an_aggregate_that_cannot_be_read_is_left_out():
    counted: Any = select(func.count(), func.max(tables.task.c.state))

    def made(values):
        return TaskState(values[1])

    assert read_rows(counted, made, [(1, 6), (1, 77)], lambda *_: None) == [TaskState.SUCCESS]


async def test_the_slowest_and_the_failed_children_are_listed(store):
    failure = Failure(type="OSError", message="no", reason="raised")
    await with_children(
        store,
        child(0, TaskState.SUCCESS, 5),
        child(1, TaskState.FAILED, 9, failure=failure),
        child(2, TaskState.SUCCESS, 9),
        child(3, TaskState.RETRYING, 99, failure=failure),
        child(4, TaskState.FAILED, 1, failure=failure),
    )

    assert await store.list_slowest(100, 105, limit=3) == [
        SlowChild(101, TaskState.FAILED, 9),
        SlowChild(102, TaskState.SUCCESS, 9),
        SlowChild(100, TaskState.SUCCESS, 5),
    ]
    failed = await store.list_failed(100, 105, limit=5)
    assert [(row.map_index, row.failure) for row in failed] == [(1, failure), (4, failure)]
    assert [row.map_index for row in await store.list_failed(102, 105, limit=1)] == [4]
