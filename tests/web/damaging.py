"""A home with a row in every table, and hostile values for single columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from sqlalchemy import Table

from aioflow.author.person import PersonTrigger
from aioflow.clock import SystemClock
from aioflow.core.scheduling.remote_workers import RemoteWorkers
from aioflow.model.access import Actor, Role
from aioflow.model.dag import Body, DagSpec, RetryPolicy, ScheduleSpec, TaskSpec
from aioflow.model.decisions import PERSON
from aioflow.model.states import Failure
from aioflow.model.triggers import DagTriggerSpec
from aioflow.model.workers import WorkerLocation, WorkerSpec
from aioflow.protocol.effects import StartTry
from aioflow.protocol.inputs import WorkerUp
from aioflow.protocol.reports import (
    CallAnswered,
    Deferred,
    Failed,
    ItemYielded,
    Labelled,
    StreamOpened,
    Succeeded,
    TaskStarted,
    TriggerFired,
)
from aioflow.protocol.requests import PoolSample, RecordPoolUsage
from aioflow.storage.results import DatabaseResults, pack_result
from aioflow.store import tables
from tests.turns import until
from tests.web.node import CHAIN, FAN, STREAM, Node, node

__all__ = (
    "DRAINED",
    "HEALTHY",
    "HOSTILE",
    "NO_TEXT",
    "TABLES",
    "Case",
    "Written",
    "add_remote_worker",
    "cases",
    "key_of",
    "make_home",
    "ordered",
    "spared",
)

TABLES: tuple[Table, ...] = tuple(tables.metadata.sorted_tables)
assert tables.audit in TABLES

NO_TEXT = object()
"""Represents the bytes ff 41, which are not valid UTF-8, in place of a text."""

HOSTILE: dict[str, object] = {
    "null": None,
    "negative": -1,
    "very negative": -(2**62),
    "out of range": 77,
    "huge": 2**62,
    "largest": 2**63 - 1,
    "a text": "no number",
    "a number as text": "9",
    "an empty text": "",
    "a long text": "x" * 100_000,
    "a text with a NUL": "a\0b",
    "no text": NO_TEXT,
    "garbage": b"\xc1\xff garbage",
    "nested": b"\x91" * 5_000 + b"\xc0",
    "another shape": b"\x81\xa1a\x01",
    "a fraction": 1.5,
    "infinite": float("inf"),
}
"""The values to write. Each kind of database converts them to the column's type."""

WAITS = DagSpec(
    dag_id="waits", file="waits.py", tasks=(TaskSpec(task_id="coroutine", body=Body.COROUTINE),)
)
DEFERRED = DagSpec(
    dag_id="deferred",
    file="deferred.py",
    tasks=(TaskSpec(task_id="waits", retry=RetryPolicy(tries=2)),),
    deadline_us=86_400_000_000,
)
TIMED = DagSpec(
    dag_id="timed",
    file="timed.py",
    tasks=(TaskSpec(task_id="only"),),
    schedule=ScheduleSpec(every_us=86_400_000_000),
)
STARTED = DagSpec(
    dag_id="started",
    file="started.py",
    tasks=(TaskSpec(task_id="t"),),
    trigger=DagTriggerSpec(class_path="m:Ticks", kwargs=b"\x80", name="Ticks"),
)
LASTING = DagSpec(dag_id="lasting", file="lasting.py", tasks=(TaskSpec(task_id="waits"),))
ASKS = DagSpec(
    dag_id="asks",
    file="asks.py",
    tasks=(TaskSpec(task_id="answered"), TaskSpec(task_id="open", parents=(0,))),
)
REMOTE = DagSpec(
    dag_id="remote", file="remote.py", tasks=(TaskSpec(task_id="only", executor="dask"),)
)
DEFINED = (CHAIN, FAN, STREAM, WAITS, DEFERRED, TIMED, STARTED, LASTING, ASKS, REMOTE)
HEALTHY = ("healthy", "healthy-waits")
"""Runs that are never damaged: one with an active task, and one that waits."""

BROKEN = Failure(type="ValueError", message="no", reason="raised")
ADMIN = Actor(name="admin", role=Role.ADMIN, address="")


class Written(NamedTuple):
    """A value that was written into a row.

    Attributes:
        key: The key of the row before the change.
        complaint: The database's own error about the value, if any.
    """

    key: str
    complaint: str | None


class Case(NamedTuple):
    """A hostile value for one column of one table."""

    table: str
    column: str
    value: str

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}-{self.value}".replace(" ", "_")


def cases() -> list[Case]:
    """Return a case for each column of each table with each hostile value."""
    return [
        Case(table.name, column.name, value)
        for table in TABLES
        for column in table.columns
        for value in HOSTILE
    ]


async def make_home(home: Path, url: str | None = None) -> None:
    """Create a home with active runs of several kinds, and a row in each table but ``drained``."""
    async with node(home, url=url, cpu_slots=8) as n:
        n.define(*DEFINED)
        for spec in DEFINED:
            await n.api.set_paused(spec.dag_id, paused=spec is TIMED)
        await _let_in(n)
        await n.api.set_pool("tight", 3)
        await n.api.values.set("variable", "name", "value")  # type: ignore[arg-type]
        await n.api.emit("named", key="k", data={"a": 1})
        await _end_some(n)
        await _begin_some(n)
        await _ask_people(n)
        await _start_remotely(n)
        await _annotate(n)
        await n.engine.ask(RecordPoolUsage(pools=(PoolSample("tight", 3, 1, 0),), expired=()))
        one = n.engine.memory.dag_triggers.of("started")
        assert one is not None
        n.engine.report([TriggerFired(one.row.trigger_no, one.assignment_id, 0, 1, b"\xc0", "key")])
        await n.api.backfills.start("timed", first="2026-01-01", last="2026-01-03")
        await n.api.set_paused("chain", paused=False)


DRAINED = "INSERT INTO drained VALUES (7, 1700000000000000)"
"""The statement that creates a row in the table ``drained``."""


async def _let_in(n: Node) -> None:
    access = n.api.access
    await access.create_user(ADMIN, "ann", "a long password", "viewer")
    await access.create_token(ADMIN, "ci", role="viewer", scopes=["chain"])
    await access.log_in("ann", "a long password", address="127.0.0.1", cookie="c")


async def _end_some(n: Node) -> None:
    """Create an ended run that was cleared with a key, and a run that is being deleted."""
    for run_id in ("cleared", "deleted"):
        await n.api.trigger("deferred", run_id=run_id)
        await n.succeed("x")
    await n.api.clear("cleared", key="once")
    await n.succeed("y")
    await n.api.delete_run("deleted")


async def _begin_some(n: Node) -> None:
    for dag_id in ("chain", "fan", "stream", "waits", "deferred"):
        await n.api.trigger(
            dag_id, run_id=f"{dag_id}-1", conf={"n": 1} if dag_id == "chain" else None
        )
    await n.api.trigger("chain", run_id="healthy")
    await n.api.trigger("lasting", run_id="healthy-waits")
    starts = [await n.effects.next_start() for _ in range(7)]
    for effect in starts:
        n.engine.report(_reports(effect))
    children = [await n.effects.next_start() for _ in range(4)]
    for effect in children:
        if effect.start.map_index == 0:
            at, now = (effect.start.task_no, effect.start.start_no), SystemClock().now()
            n.engine.report([Labelled(*at, "first"), Failed(*at, now, now, BROKEN)])
    await n.api.set_paused("chain", paused=False)
    for wait in list(n.engine.memory.waits.objects.values()):
        if wait.stream is not None:
            n.engine.report(
                [TriggerFired(wait.row.trigger_no, wait.assignment_id, 0, 1, b"\xc0", "e")]
            )


async def _ask_people(n: Node) -> None:
    """Create a decision that was answered, and one that has a vote and needs another."""
    await n.api.trigger("asks", run_id="asks-1")
    _, kwargs = PersonTrigger("Release the payment?").serialize()
    await n.defer(PERSON, kwargs)
    await _vote(n)
    await n.succeed()
    _, kwargs = PersonTrigger("Delete the data?", approvals=2).serialize()
    await n.defer(PERSON, kwargs)
    await _vote(n)


async def _vote(n: Node) -> None:
    """Answer the open decision as soon as there is one."""
    await until(n.engine, lambda: n.store.list_decisions(is_open=True))
    (found,) = await n.store.list_decisions(is_open=True)
    await n.api.by(ADMIN).decisions.answer(found.decision_no, True)


def add_remote_worker(n: Node) -> None:
    """Add a worker of another executor to the node."""
    n.engine.slots.remote = RemoteWorkers({"dask": 1})
    n.engine.report([WorkerUp(100, WorkerSpec("dask"), WorkerLocation("node-7", "process 4711"))])


async def _start_remotely(n: Node) -> None:
    """Start a task in a worker of another executor."""
    add_remote_worker(n)
    await n.api.trigger("remote", run_id="remote-1")
    start = (await n.effects.next_start()).start
    n.engine.report([TaskStarted(start.task_no, start.start_no, SystemClock().now())])


async def _annotate(n: Node) -> None:
    """Write notes on runs and a task, and store a large result in the database."""
    notes = n.api.by(ADMIN).notes
    await notes.set("chain-1", "the bank was called")
    await notes.set("chain-1", "the file came late", task_id="first")
    await notes.set("fan-1", "this child fails every month", task_id="each", map_index=0)
    run = await n.store.find_run("fan-1")
    assert run is not None
    key = (run.first_task_no, 1)
    results = DatabaseResults(n.store, SystemClock())
    await results.put(key, pack_result(key, bytearray(b"[1, 2, 3]")))


def _reports(effect: StartTry) -> list[Any]:
    start, now = effect.start, SystemClock().now()
    at = (start.task_no, start.start_no)
    assert effect.info is not None
    match effect.info.run_id:
        case "fan-1":
            return [Succeeded(*at, now, now, None, 30, 3)]
        case "stream-1":
            return [ItemYielded(*at, 0, b"\x01")]
        case "waits-1":
            return [
                CallAnswered(*at, 0, "step", "s", "f.py:2", b"\x01"),
                StreamOpened(*at, 1, "stream", "T", "f.py:3", "m:T", b"\x80", 4),
            ]
        case "deferred-1" | "healthy-waits":
            return [Deferred(*at, now, now, "m:Deferred", b"\x80", "resume", b"\x80")]
        case _:
            return []


_OTHERS = f"run_id NOT IN {(*HEALTHY, 'deleted')}"
_SPARED = {
    "run": _OTHERS,
    "dag": "dag_id NOT IN ('chain', 'lasting')",
    "version": "version NOT IN ('v-chain', 'v-lasting')",
    "dag_file": "file NOT IN ('chain.py', 'lasting.py')",
}
_OF_OTHERS = f"run_no IN (SELECT run_no FROM run WHERE {_OTHERS})"


def spared(table: Table) -> str:
    """Return a condition for rows that the healthy runs do not need."""
    if "run_no" in table.columns and table.name not in {"run", "deletion", "named_event"}:
        return _OF_OTHERS
    return _SPARED.get(table.name, "1 = 1")


def ordered(table: Table, case: Case, found: int) -> str:
    """Return the clause that chooses one of the ``found`` rows, varying from case to case."""
    order = ", ".join(f'"{key.name}"' for key in table.primary_key)
    return f"ORDER BY {order} LIMIT 1 OFFSET {crc32(case.name.encode()) % found}"


def key_of(table: Table, row: Any) -> str:
    """Return the key of a row in the form used in damage reports."""
    return ", ".join(
        f"{key.name}={value!r}" for key, value in zip(table.primary_key, row, strict=True)
    )
