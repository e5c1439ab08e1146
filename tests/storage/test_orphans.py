"""Stored results that no commit refers to are deleted, and no others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aioflow.clock import SystemClock
from aioflow.errors import SettingsError
from aioflow.maintenance.result_orphans import OrphanedResults
from aioflow.model.rows import TaskRow
from aioflow.model.states import TaskState
from aioflow.results import result_path
from aioflow.storage.objects import open_objects
from aioflow.storage.results import FileResults, ObjectResults, pack_result
from aioflow.storage.stored import claim_storage

DAY = 86_400


class Rows:
    """A store with rows of tasks and results."""

    def __init__(self) -> None:
        self.tasks: dict[int, TaskState] = {}
        self.results: dict[int, int] = {}
        self.commit = lambda: None

    async def list_tasks_between(self, first, end, limit):
        found = [
            TaskRow(
                task_no=no,
                run_no=1,
                task_index=0,
                map_index=-1,
                state=state,
                try_number=1,
                start_no=1,
            )
            for no, state in self.tasks.items()
            if first <= no < end
        ]
        self.commit()  # between the two reads
        return found

    async def list_stored_results(self, first, end):
        return [(no, start) for no, start in self.results.items() if first <= no < end]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "results"


async def put(folder: Path, key, age_seconds: float = 2 * DAY) -> None:
    await FileResults(folder).put(key, pack_result(key, bytearray(b"content")))
    then = SystemClock().now() / 1e6 - age_seconds
    os.utime(result_path(folder, *key), (then, then))


async def left_of(folder: Path, rows: Any) -> list:
    storage = FileResults(folder)
    await OrphanedResults([storage], rows, SystemClock()).delete_all(storage)
    blocks = [await storage.list_block(block) for block in await storage.list_blocks()]
    return sorted(one.key for block in blocks for one in block)


async def test_results_that_are_committed_or_may_be_are_left(folder):
    rows = Rows()
    rows.tasks = {
        1: TaskState.SUCCESS,
        2: TaskState.RUNNING,
        3: TaskState.DEFERRED,
        4: TaskState.FAILED,
        5_000: TaskState.SUCCESS,
    }
    rows.results = {1: 3, 5_000: 1}
    for key in [(1, 2), (1, 3), (2, 1), (3, 1), (4, 1), (5_000, 1), (9_000, 1)]:
        await put(folder, key)
    await put(folder, (9_001, 1), age_seconds=DAY - 3_600)

    assert await left_of(folder, rows) == [(1, 3), (2, 1), (3, 1), (5_000, 1), (9_001, 1)]


async def test_a_commit_while_it_looks_saves_the_result(folder):
    rows = Rows()
    rows.tasks = {1: TaskState.RUNNING}

    def commit():
        rows.tasks[1] = TaskState.SUCCESS
        rows.results[1] = 1

    rows.commit = commit
    await put(folder, (1, 1))

    assert await left_of(folder, rows) == [(1, 1)]
    assert await left_of(folder, rows) == [(1, 1)]


async def test_another_database_may_not_use_the_same_storage(tmp_path):
    storage = ObjectResults(open_objects(f"file://{tmp_path}/shared", "results.url"))

    async def claim(mark: str) -> None:
        async def of_database(_: str) -> str:
            return mark

        await claim_storage(of_database, storage.owner, SystemClock(), "results.url")

    await claim("first")
    await claim("first")
    with pytest.raises(SettingsError, match="another database"):
        await claim("second")
