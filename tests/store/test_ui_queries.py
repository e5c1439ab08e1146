"""Queries for the user interface, on each database: correct, bounded, and aborted in time."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing

import anyio
import pytest
from msgspec.structs import replace
from sqlalchemy.engine import make_url

from aioflow.errors import StoreSlow
from aioflow.model.access import AuditEntry, AuditRow
from aioflow.model.rows import DeletionRow, NamedEventRow, NodeFacts
from aioflow.model.states import Failure, RunState, TaskState, TriggerState
from aioflow.store import open_store
from tests.store.loading import load
from tests.store.samples import (
    NOON,
    RUN,
    TASK,
    TRIGGER,
    TRY,
    VAULT,
    batch,
    first_batch,
)

_MINUTE = 60_000_000


def ended(number: int, state: RunState = RunState.SUCCESS, **fields):
    return replace(
        RUN,
        run_no=number,
        run_id=f"etl-{number}",
        key=None,
        logical_date=None,
        state=state,
        ended_at=NOON + number * _MINUTE,
        **fields,
    )


async def test_the_newest_runs_of_many_dags_come_together(store):
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=[ended(n) for n in range(2, 6)]))
    await store.commit(batch(3, new_deletions=[DeletionRow(run_no=5, at=NOON)]))

    found = await store.list_recent_runs(["etl", "nobody", "a\0b", "\ud800"], limit=2)

    assert {name: [run.run_no for run in runs] for name, runs in found.items()} == {
        "etl": [4, 3],
        "nobody": [],
    }


async def test_failed_runs_are_counted_and_listed_without_reading_the_others(store):
    await store.commit(first_batch())
    states = [RunState.SUCCESS, RunState.FAILED, RunState.CANCELLED, RunState.FAILED]
    await store.commit(batch(2, new_runs=[ended(n + 2, s) for n, s in enumerate(states)]))

    assert await store.count_failed_since(NOON) == 2
    assert await store.count_failed_since(NOON + 5 * _MINUTE) == 1
    assert await store.count_failed_since(NOON, limit=1) == 1
    listed = await store.list_runs(state=RunState.FAILED, limit=1)
    older = await store.list_runs(state=RunState.FAILED, before=listed[0].run_no)
    assert [run.run_no for run in listed + older] == [5, 3]
    assert [run.run_no for run in await store.list_runs(state=RunState.CANCELLED)] == [4]


async def test_the_newest_runs_of_one_bad_state_are_listed(store):
    await store.commit(first_batch())
    states = [RunState.FAILED, RunState.PARTIAL, RunState.SUCCESS, RunState.FAILED]
    await store.commit(batch(2, new_runs=[ended(n + 2, s) for n, s in enumerate(states)]))

    failed = await store.list_runs(state=RunState.FAILED, limit=10)
    assert [run.run_no for run in failed] == [5, 2]
    partial = await store.list_runs(state=RunState.PARTIAL, limit=1)
    assert [run.run_no for run in partial] == [3]


async def test_clears_of_a_run_and_its_tasks_are_found_and_none_of_a_longer_id(store):
    await store.commit(first_batch())
    targets = ["etl-1", "etl-1 load", "etl-10", "etl-10 load"]
    entries = [
        AuditRow(
            audit_no=number,
            at=NOON + number,
            noted=AuditEntry(
                actor="anna", role="operator", action="run.clear", target=target, address=""
            ),
            previous=b"",
            digest=bytes([number]),
        )
        for number, target in enumerate(targets, start=1)
    ]
    await store.commit(batch(2, audit=entries))

    assert await store.list_clears("etl-1") == [
        (NOON + 1, "anna", "etl-1"),
        (NOON + 2, "anna", "etl-1 load"),
    ]


async def test_clears_of_many_runs_are_found_for_each_of_them(store):
    await store.commit(first_batch())
    noted = AuditEntry(
        actor="anna",
        role="operator",
        action="runs.clear_failed",
        target="2 runs of: all runs",
        address="",
        after="etl-10 etl-1",
    )
    other = replace(noted, action="runs.cancel")
    rows = [
        AuditRow(audit_no=number, at=NOON + number, noted=one, previous=b"", digest=bytes([number]))
        for number, one in enumerate((noted, other), start=1)
    ]
    await store.commit(batch(2, audit=rows))

    assert await store.list_clears("etl-1") == [(NOON + 1, "anna", "etl-1")]
    assert await store.list_clears("etl-10") == [(NOON + 1, "anna", "etl-10")]
    assert await store.list_clears("etl") == []


async def test_the_oldest_waits_leave_out_the_tasks_that_are_known(store):
    await store.commit(first_batch())
    tasks = [replace(TASK, task_no=number, map_index=-1) for number in (11, 12, 13)]
    waits = [replace(TRIGGER, trigger_no=number, task_no=number) for number in (11, 12, 13)]
    gone = replace(waits[2], state=TriggerState.ENDING)
    await store.commit(batch(2, new_tasks=tasks, new_triggers=[*waits[:2], gone]))

    oldest = await store.list_oldest_waits([], limit=10)
    others = await store.list_oldest_waits([(10, 12), (90, 95)], limit=10)
    assert [row.trigger_no for row in oldest] == [7, 11, 12]
    assert [row.trigger_no for row in others] == [12]


async def test_versions_are_counted_among_the_newest_runs(store):
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=[ended(n) for n in range(2, 5)]))

    assert await store.count_versions_of_dag("etl") == [("ab12", 4)]
    assert await store.count_versions_of_dag("etl", limit=2) == [("ab12", 2)]
    assert await store.find_made_at(["ab12", "none"]) == {"ab12": NOON}
    assert (await store.find_runs_by_no([1, 4, 99])).keys() == {1, 4}


async def test_tasks_are_counted_by_state_with_their_first_start_and_last_end(store):
    await store.commit(first_batch())
    children = [
        replace(
            TASK,
            task_no=100 + n,
            task_index=1,
            map_index=n,
            state=TaskState.SUCCESS if n else TaskState.RUNNING,
            started_at=NOON + n,
            ended_at=NOON + 10 * n if n else None,
        )
        for n in range(3)
    ]
    await store.commit(batch(2, new_tasks=children))

    assert await store.count_states_between(100, 103) == [
        (1, TaskState.RUNNING, 1, NOON, None),
        (1, TaskState.SUCCESS, 2, NOON + 1, NOON + 20),
    ]
    assert await store.count_tasks_in(100, 103, TaskState.SUCCESS) == 2
    numbers = store.list_task_nos_in(100, 103, TaskState.SUCCESS, offset=1, limit=5)
    assert await numbers == [102]
    assert [row.task_no for row in await store.list_tries_between(0, 100)] == [TRY.task_no]


async def test_the_task_that_failed_first_of_a_run_is_found(store):
    await store.commit(first_batch())
    assert await store.find_first_failed(TASK.run_no) is None
    failed = [
        replace(
            TASK,
            task_no=100 + n,
            task_index=1,
            map_index=n,
            state=TaskState.FAILED,
            ended_at=NOON - n,
            failure=Failure(type="OSError", message=f"no {n}", reason="raised"),
        )
        for n in range(3)
    ]
    await store.commit(batch(2, new_tasks=failed))

    found = await store.find_first_failed(TASK.run_no)
    assert (found.map_index, found.failure.message) == (2, "no 2")
    assert await store.find_first_failed(TASK.run_no + 1) is None


async def test_waits_are_narrowed_down_and_counted_by_age(store):
    await store.commit(first_batch())
    more = [
        replace(TRIGGER, trigger_no=20, class_path="m.x:Old", since=NOON - 90 * _MINUTE),
        replace(TRIGGER, trigger_no=21, class_path="m.x:Young", since=NOON),
        replace(TRIGGER, trigger_no=22, class_path="m.y:Other", since=NOON),
    ]
    await store.commit(batch(2, new_triggers=more))

    async def numbers(**wanted):
        return [row.trigger_no for row in await store.browse_triggers(after=10, **wanted)]

    async def waiting(**wanted):
        return await store.browse_trigger_nos(state=TriggerState.WAITING, after=10, **wanted)

    for wanted in (
        {},
        {"prefixes": ["m.x:"]},
        {"dag_id": "etl", "limit": 2},
        {"paths": ["m.y:Other"]},
    ):
        assert await waiting(**wanted) == await numbers(**wanted)
    assert await store.browse_trigger_nos(state=TriggerState.ENDING) == []
    found = await store.find_triggers([22, 7_000_000, 20, 22])
    assert [(row.trigger_no, row.class_path) for row in found] == [
        (20, "m.x:Old"),
        (22, "m.y:Other"),
    ]
    assert await store.find_triggers([]) == []
    assert await numbers(prefixes=["m.x:"]) == [20, 21]
    assert await numbers(paths=["m.y:Other", "m.x:Old"]) == [20, 22]
    assert await numbers(prefixes=["m."], limit=1) == [20]
    assert await numbers(dag_id="etl") == [20, 21, 22]
    assert await numbers(dag_id="nobody") == []
    assert await numbers(state=TriggerState.FIRED) == []
    counts = {path: (since, ages) for path, since, ages in await store.count_waits(NOON + 1)}
    assert counts["m.x:Old"] == (NOON - 90 * _MINUTE, (0, 0, 0, 1, 0, 0))
    assert counts["m.x:Young"][1] == (1, 0, 0, 0, 0, 0)
    assert len(await store.find_waits_of_task(1, TRIGGER.task_no, limit=2)) == 2


async def test_an_event_is_found_by_its_number(store):
    event = NamedEventRow(event_no=7, name="done", key=None, data=b"\xc0", at=NOON)
    await store.commit(replace(first_batch(), named_events=[event]))

    assert (await store.find_named_event_no(event.event_no)).name == "done"
    assert await store.find_named_event_no(8) is None
    assert await store.list_started_by(["m:T", "m:U"], "7", limit=5) == []


async def test_a_node_says_what_it_is_and_whether_it_takes_work(store):
    claim = await store.claim(NodeFacts(started_at=NOON, version="1.2", pid=7, host="here"))
    await store.commit(replace(first_batch(), number=claim.commit_no + 1, drained=[(1, NOON)]))

    (node,) = await store.list_nodes()
    assert (node.is_drained, node.version, node.pid, node.host) == (True, "1.2", 7, "here")
    assert (node.started_at, node.seen_at, node.commit_no) == (NOON, NOON, 1)
    assert (await load(store)).drained == [1]
    assert await store.oldest_commit() == 1

    await store.commit(batch(2, drained=[(1, None), (1, NOON), (1, None)]))
    assert not (await store.list_nodes())[0].is_drained
    assert (await load(store)).drained == []


async def test_a_question_that_takes_too_long_is_given_up_and_the_next_is_answered(store):
    await store.commit(first_batch())
    await store.commit(batch(2, new_runs=[ended(n) for n in range(2, 3_000)]))
    patient, hasty = store.limited(60), store.limited(1e-9)

    with pytest.raises(StoreSlow, match="narrow"):
        await hasty.count_versions_of_dag("etl")

    assert await patient.count_versions_of_dag("etl") == [("ab12", 2_999)]
    assert len(await store.list_runs(limit=5_000)) == 2_999


ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(1000)",
}


class LimitClock:
    """A clock that exceeds SQLite's time limit for queries once the test sets ``is_over``."""

    is_over = False

    def __init__(self) -> None:
        self._at = itertools.count(step=60_000_000)

    def monotonic_us(self) -> int:
        return next(self._at) if self.is_over else 0


async def test_those_who_ask_much_take_no_reader_from_the_engine(store, store_url, monkeypatch):
    clock = LimitClock()
    monkeypatch.setattr("aioflow.store.sqlite.store._clock", clock)
    endless = ENDLESS[store_url.partition(":")[0]]
    asking, given_up = store.limited(2), []

    async def ask() -> None:
        with pytest.raises(StoreSlow):
            await asking._fetch([(endless, ())])
        given_up.append(True)

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        for _ in range(4):
            assert await store.list_runs() == []
        assert given_up == []
        clock.is_over = True

    assert len(given_up) == 6
    assert await asking.list_runs() == []


PLANS = {
    "failed runs": (
        "SELECT * FROM run WHERE state = 3 AND state > 2 ORDER BY run_no DESC LIMIT 10",
        "run_unsuccessful",
    ),
    "runs of a dag": (
        "SELECT * FROM run WHERE dag_id = 'd' ORDER BY run_no DESC LIMIT 20",
        "run_by_dag",
    ),
    "tasks of a range": (
        "SELECT task_index, count(*) FROM task WHERE task_no BETWEEN 1 AND 8 GROUP BY task_index",
        "PRIMARY KEY",
    ),
    "tries of a range": (
        'SELECT * FROM "try" WHERE task_no >= 1 AND task_no < 9',
        "PRIMARY KEY",
    ),
    "waits of a task": (
        "SELECT * FROM task_trigger WHERE run_no = 1 AND task_no = 2",
        "task_trigger_by_run",
    ),
    "runs an event started": (
        "SELECT e.run_no FROM dag_event e, dag_trigger t WHERE t.class_path = 'c' "  # noqa: ISC004
        "AND t.trigger_no = e.trigger_no AND e.key = 'k' AND e.run_no IS NOT NULL",
        "dag_event_by_key",
    ),
}


@pytest.mark.parametrize("name", PLANS)
async def test_a_question_for_a_part_does_not_read_the_whole(name, tmp_path):
    url = f"sqlite:///{tmp_path}/plans.db"
    async with open_store(url, VAULT):
        statement, wanted = PLANS[name]
        with closing(sqlite3.connect(str(make_url(url).database))) as raw:
            plan = " ".join(row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}"))

    assert wanted in plan
