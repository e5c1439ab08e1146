"""The usual durations and waits of a DAG's tasks, from the history."""

from __future__ import annotations

from typing import cast

import pytest

from aioflow.api.page.usual import UsualTimes, usual_seconds
from aioflow.api.queries import RunReader
from aioflow.clock import SystemClock
from aioflow.model.history import HistoryRow, Measure, bucket_of
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp

KEY = ("etl", "load")


class SetClock(SystemClock):
    """A clock that shows the time set by the test."""

    at = Timestamp(1_700_000_000_000_000)

    def now(self) -> Timestamp:
        return self.at


class Database:
    """A store that is its own reader, and counts how often it is read."""

    def __init__(self, *rows: HistoryRow) -> None:
        self.store = self
        self.rows = rows
        self.reads = 0

    async def count_durations_of_tasks(self, tasks, since, until):
        self.reads += 1
        return [row for row in self.rows if (row.dag_id, row.task_id) in tasks]


def usual_of(database: Database, clock: SetClock | None = None) -> UsualTimes:
    return UsualTimes(cast("RunReader", database), clock or SetClock())


def took(seconds: float, times: int, measure: Measure = Measure.DURATION) -> HistoryRow:
    return HistoryRow(*KEY, int(measure), 0, bucket_of(int(seconds * 1000)), times, 0)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (TaskState.RUNNING, 60),
        (TaskState.SENSING, 60),
        (TaskState.DEFERRED, 3600),
        (TaskState.QUEUED, 2),
        (TaskState.PENDING, None),
        (TaskState.RETRYING, None),
    ],
)
async def test_each_state_has_the_median_of_its_own_measure(state, expected):
    rows = took(60, 5), took(3600, 3, Measure.WAIT), took(2, 9, Measure.QUEUE)
    usual = usual_of(Database(*rows))

    found = usual_seconds((await usual.of_tasks([KEY])).get(KEY), state)

    assert found == (None if expected is None else pytest.approx(expected, rel=0.1))


async def test_two_durations_are_not_usual():
    usual = usual_of(Database(took(60, 2)))

    assert usual_seconds((await usual.of_tasks([KEY]))[KEY], TaskState.RUNNING) is None


async def test_many_rows_need_one_read_a_minute():
    clock, database = SetClock(), Database(took(60, 5))
    usual = usual_of(database, clock)
    for _ in range(3):
        await usual.of_tasks([KEY, ("etl", "other")])
    assert database.reads == 1

    clock.at = Timestamp(clock.at + 61_000_000)
    await usual.of_tasks([KEY])

    assert database.reads == 2


async def test_a_run_of_many_tasks_is_not_looked_up():
    database = Database(took(60, 5))

    assert await usual_of(database).of_tasks([("etl", str(n)) for n in range(61)]) == {}
    assert database.reads == 0
