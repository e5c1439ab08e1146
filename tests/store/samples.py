"""Rows and batches to store, and access to the database that bypasses the store."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import asyncpg
import msgspec
from sqlalchemy.engine import make_url

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.dag import DagSpec, TaskSpec
from aioflow.model.decisions import DecisionRow
from aioflow.model.history import HistoryRow, Measure, hour_of
from aioflow.model.notes import NoteRow
from aioflow.model.pool_usage import PoolUsageRow, minute_of
from aioflow.model.rows import (
    DagFileRow,
    DagRow,
    ExpansionRow,
    OutboxRow,
    PoolRow,
    ResultRow,
    RunRow,
    TaskChange,
    TaskRow,
    TriggerRow,
    TryRow,
    TryWorkerRow,
    VersionRow,
)
from aioflow.model.states import Failure, RunState, TaskState, TriggerState
from aioflow.protocol.outbox import Alert

VAULT = Vault([b"k" * 32])
NOON = 1_700_000_000_000_000
FAILURE = Failure(type="ValueError", message="no \0 such ☃ thing", reason="raised")

VERSION = VersionRow(
    version="ab12",
    file="etl.py",
    dags=(DagSpec(dag_id="etl", file="etl.py", tasks=(TaskSpec(task_id="a"),)),),
    sources={"etl.py": b"import aioflow\n", "lib/more.py": b"\0\xff"},
    created_at=NOON,
)
DAG = DagRow(
    dag_id="etl",
    file="etl.py",
    version="ab12",
    next_run_at=NOON,
    last_fire_time=NOON - 1,
    late_alert_for=NOON - 2,
)
DAG_FILE = DagFileRow(file="etl.py", version="ab12", parsed_at=NOON)
RUN = RunRow(
    run_no=1,
    run_id="etl-1",
    dag_id="etl",
    version="ab12",
    state=RunState.RUNNING,
    cause="manual",
    first_task_no=10,
    logical_date=NOON,
    conf=b"\x80",
    key="once",
    created_at=NOON,
    started_at=NOON + 1,
)
TASK = TaskRow(
    task_no=10,
    run_no=1,
    task_index=0,
    map_index=-1,
    state=TaskState.RUNNING,
    try_number=1,
    start_no=1,
    queued_at=NOON,
    started_at=NOON + 1,
)
EXPANSION = ExpansionRow(run_no=1, task_index=1, width=3, first_task_no=100)
TRY = TryRow(
    task_no=10,
    start_no=1,
    run_no=1,
    try_number=1,
    state=TaskState.FAILED,
    started_at=None,
    ended_at=NOON,
    failure=FAILURE,
)
TRY_WORKER = TryWorkerRow(
    task_no=10, start_no=1, run_no=1, executor="dask", host="node-7", worker="process 4711"
)
RESULT = ResultRow(task_no=10, run_no=1, start_no=1, body=b"\x93\x01\x02\x03", size=4, width=3)
TRIGGER = TriggerRow(
    trigger_no=7,
    task_no=10,
    run_no=1,
    state=TriggerState.WAITING,
    class_path="files:FileTrigger",
    kwargs=b"\x81\xa4path\xa4/tmp",
    since=NOON,
    deadline_at=NOON + 5,
    next_method="resume",
    next_kwargs=b"\x80",
)
DECISION = DecisionRow(
    decision_no=7,
    run_no=1,
    task_no=10,
    question=b"\x81\xa8question\xa7Release",
    asked_at=NOON,
    deadline_at=NOON + 5,
)
NOTE = NoteRow(
    run_no=1, task_index=-1, map_index=-1, at=NOON, author="anna", body="bank called ☎".encode()
)
HISTORY = HistoryRow("shop", "b", int(Measure.DURATION), hour_of(NOON), 7, 2, 30)
POOL = PoolRow(name="db", slots=4, include_deferred=True)
POOL_USAGE = PoolUsageRow("db", minute_of(NOON), 4, 3, 7)
ALERT = Alert(reason="sensor_timeout", dag_id="d", run_id="r", task_id="t", message="late")
OUTBOX = OutboxRow(outbox_no=3, kind="alert", body=msgspec.msgpack.encode(ALERT))


def first_batch(number: int = 1) -> Batch:
    """Return a batch with one row of each kind."""
    return Batch(
        number=number,
        at=NOON,
        new_versions=[VERSION],
        dags=[DAG],
        dag_files=[DAG_FILE],
        pools=[POOL],
        new_runs=[RUN],
        new_tasks=[TASK],
        new_expansions=[EXPANSION],
        new_tries=[TRY],
        try_workers=[TRY_WORKER],
        labels=[(10, 1, "merchant 7")],
        results=[RESULT],
        new_triggers=[TRIGGER],
        new_decisions=[DECISION],
        notes=[NOTE],
        new_outbox=[OUTBOX],
        history=[HISTORY],
        pool_usage=[POOL_USAGE],
    )


def batch(number: int, **changes: Any) -> Batch:
    return Batch(number=number, at=NOON + number, **changes)


def moved(row: TaskRow, state: TaskState, **values: Any) -> TaskChange:
    """Return the change that moves a row to another state."""
    new = msgspec.structs.replace(row, state=state, **values)
    return change(row, new)


def change(old: TaskRow, new: TaskRow) -> TaskChange:
    return TaskChange(
        old.task_no,
        old.state,
        old.start_no,
        new.state,
        new.try_number,
        new.start_no,
        new.interruptions,
        new.due_at,
        new.deadline_at,
        new.queued_at,
        new.started_at,
        new.ended_at,
        new.failure,
    )


def execute(url: str, statement: str) -> None:
    """Run a statement on a connection that is unknown to the store."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(parsed.database), isolation_level=None)) as raw:
            raw.execute(statement)
        return
    with ThreadPoolExecutor(1) as thread:  # the test's own thread has a loop already
        thread.submit(asyncio.run, _execute_postgres(url, statement)).result()


async def _execute_postgres(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
