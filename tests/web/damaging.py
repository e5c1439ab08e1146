"""A home with a row in every table, and hostile values in single columns of it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from sqlalchemy import Column, Table

from aioflow.access import Actor, Role
from aioflow.clock import SystemClock
from aioflow.dag_triggers import DagTriggerSpec
from aioflow.effects import StartTry
from aioflow.messages import (
    CallAnswered,
    Deferred,
    Failed,
    Fired,
    Item,
    Labelled,
    StreamOpened,
    Succeeded,
)
from aioflow.model import Body, DagSpec, Failure, RetryPolicy, TaskSpec
from aioflow.schedules import ScheduleSpec
from aioflow.store import access_tables, tables
from tests.web.node import CHAIN, FAN, STREAM, Node, node

__all__ = ("TABLES", "Case", "cases", "make_home", "storable")

TABLES: tuple[Table, ...] = tuple(tables.metadata.sorted_tables)
assert access_tables.audit in TABLES

_NO_TEXT = "CAST(x'ff41' AS TEXT)"
_HOSTILE: dict[str, object] = {
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
    "no text": _NO_TEXT,
    "garbage": b"\xc1\xff garbage",
    "nested": b"\x91" * 5_000 + b"\xc0",
    "a fraction": 1.5,
    "infinite": float("inf"),
}
"""What is written; each column keeps what SQLite makes of it where it is not strict."""

WAITS = DagSpec(
    dag_id="waits", file="waits.py", tasks=(TaskSpec(task_id="coroutine", body=Body.COROUTINE),)
)
PARKED = DagSpec(
    dag_id="parked",
    file="parked.py",
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
BROKEN = Failure(type="ValueError", message="no", reason="raised")
ADMIN = Actor(name="admin", role=Role.ADMIN, address="")


class Case(NamedTuple):
    """A value in a column of one row."""

    table: str
    column: str
    value: str

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}-{self.value}".replace(" ", "_")


def cases() -> list[Case]:
    """Return every column of every table with every hostile value."""
    return [
        Case(table.name, column.name, value)
        for table in TABLES
        for column in table.columns
        for value in _HOSTILE
    ]


async def make_home(home: Path) -> None:
    """Have a home in which runs of several kinds go on, and every table has a row."""
    async with node(home, cpu_slots=8) as n:
        n.define(CHAIN, FAN, STREAM, WAITS, PARKED, TIMED, STARTED)
        for spec in (CHAIN, FAN, STREAM, WAITS, PARKED, TIMED, STARTED):
            await n.api.set_paused(spec.dag_id, paused=spec is TIMED)
        await _let_in(n)
        await n.api.set_pool("tight", 3)
        await n.api.values.set("variable", "name", "value")  # type: ignore[arg-type]
        await n.api.emit("named", key="k", data={"a": 1})
        await _end_some(n)
        await _begin_some(n)
        one = n.engine.memory.standing.of("started")
        assert one is not None
        n.engine.report([Fired(one.row.trigger_no, one.hosting, 0, 1, b"\xc0", "key")])
        await n.api.backfills.start("timed", first="2026-01-01", last="2026-01-03")
        await n.api.set_paused("chain", paused=False)
    with closing(sqlite3.connect(home / "aioflow.db")) as raw, raw:
        raw.execute("INSERT INTO drained VALUES (7, 1700000000000000)")


async def _let_in(n: Node) -> None:
    access = n.api.access
    await access.create_user(ADMIN, "ann", "a long password", "viewer")
    await access.create_token(ADMIN, "ci", role="viewer", scopes=["chain"])
    await access.log_in("ann", "a long password", address="127.0.0.1", cookie="c")


async def _end_some(n: Node) -> None:
    """One run that has ended and was cleared with a key, and one that is being deleted."""
    for run_id in ("cleared", "deleted"):
        await n.api.trigger("parked", run_id=run_id)
        await n.succeed("x")
    await n.api.clear("cleared", key="once")
    await n.succeed("y")
    await n.api.delete_run("deleted")


async def _begin_some(n: Node) -> None:
    for dag_id in ("chain", "fan", "stream", "waits", "parked"):
        await n.api.trigger(
            dag_id, run_id=f"{dag_id}-1", conf={"n": 1} if dag_id == "chain" else None
        )
    await n.api.trigger("chain", run_id="healthy")
    starts = [await n.outlets.next_start() for _ in range(6)]
    for effect in starts:
        n.engine.report(_reports(effect))
    children = [await n.outlets.next_start() for _ in range(4)]
    for effect in children:
        if effect.start.map_index == 0:
            at, now = (effect.start.task_no, effect.start.start_no), SystemClock().now()
            n.engine.report([Labelled(*at, "first"), Failed(*at, now, now, BROKEN)])
    await n.api.set_paused("chain", paused=False)
    for wait in list(n.engine.memory.waits.objects.values()):
        if wait.stream is not None:
            n.engine.report([Fired(wait.row.trigger_no, wait.hosting, 0, 1, b"\xc0", "e")])


def _reports(effect: StartTry) -> list[Any]:
    start, now = effect.start, SystemClock().now()
    at = (start.task_no, start.start_no)
    assert effect.info is not None
    match effect.info.run_id:
        case "fan-1":
            return [Succeeded(*at, now, now, None, 30, 3)]
        case "stream-1":
            return [Item(*at, 0, b"\x01")]
        case "waits-1":
            return [
                CallAnswered(*at, 0, "step", "s", "f.py:2", b"\x01"),
                StreamOpened(*at, 1, "stream", "T", "f.py:3", "m:T", b"\x80", 4),
            ]
        case "parked-1":
            return [Deferred(*at, now, now, "m:Parked", b"\x80", "resume", b"\x80")]
        case _:
            return []


def storable(home: Path, case: Case) -> str | None:
    """Write the value into one row, whatever its table allows, and return the row's key.

    ``None`` if SQLite cannot hold it there, or holds the same as before.
    """
    table = tables.metadata.tables[case.table]
    column = table.columns[case.column]
    with closing(sqlite3.connect(home / "aioflow.db", isolation_level=None)) as raw:
        raw.execute("PRAGMA foreign_keys = OFF")
        with _Loosened(raw, case.table):
            return _write(raw, table, column, case)


def _write(raw: sqlite3.Connection, table: Table, column: Column[Any], case: Case) -> str | None:
    value = _HOSTILE[case.value]
    keys = [one.name for one in table.primary_key]
    named = ", ".join(f'"{key}"' for key in keys)
    row = raw.execute(f'SELECT {named} FROM "{table.name}" {_victim(raw, table, case)}').fetchone()
    assert row is not None, f"the home has no row in {table.name}"
    where = " AND ".join(f'"{key}" = ?' for key in keys)
    shown = f'typeof("{column.name}") || quote(CAST("{column.name}" AS BLOB))'
    before = raw.execute(f'SELECT {shown} FROM "{table.name}" WHERE {where}', row)
    (was,) = before.fetchone()
    wanted, given = ("?", (value,)) if value is not _NO_TEXT else (_NO_TEXT, ())
    try:
        raw.execute(
            f'UPDATE "{table.name}" SET "{column.name}" = {wanted} WHERE {where}', (*given, *row)
        )
    except (sqlite3.IntegrityError, sqlite3.OperationalError):
        return None
    changed = f'SELECT {shown} FROM "{table.name}" WHERE {where}'
    (now,) = raw.execute(changed, row).fetchone() or ("its key",)
    return None if was == now else ", ".join(f"{k}={v!r}" for k, v in zip(keys, row, strict=True))


_SPARED = {
    "run": "run_id NOT IN ('healthy', 'deleted')",
    "dag": "dag_id <> 'chain'",
    "version": "version <> 'v-chain'",
    "dag_file": "file <> 'chain.py'",
}
_OF_OTHERS = "run_no IN (SELECT run_no FROM run WHERE run_id NOT IN ('healthy', 'deleted'))"


def _victim(raw: sqlite3.Connection, table: Table, case: Case) -> str:
    """Choose one of the rows that the healthy run does not stand on, another for each case."""
    where = _SPARED.get(table.name, "1")
    if "run_no" in table.columns and table.name not in {"run", "deletion", "named_event"}:
        where = _OF_OTHERS
    (found,) = raw.execute(f'SELECT count(*) FROM "{table.name}" WHERE {where}').fetchone()
    if not found:
        where, found = "1", 1
    order = ", ".join(f'"{key.name}"' for key in table.primary_key)
    at = crc32(case.name.encode()) % found
    return f"WHERE {where} ORDER BY {order} LIMIT 1 OFFSET {at}"


class _Loosened:
    """Have a table take whatever it is given, for as long as the block lasts."""

    def __init__(self, raw: sqlite3.Connection, table: str) -> None:
        self._raw = raw
        self._table = table

    def __enter__(self) -> None:
        ask = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?"
        (self._strict,) = self._raw.execute(ask, (self._table,)).fetchone()
        self._raw.execute("PRAGMA ignore_check_constraints = ON")
        loose = re.sub(r",?\s*STRICT\s*$", "", self._strict)
        loose = re.sub(r"\bNOT NULL\b", "", loose)
        self._declare(loose)

    def __exit__(self, *_: object) -> None:
        self._declare(self._strict)

    def _declare(self, sql: str) -> None:
        (version,) = self._raw.execute("PRAGMA schema_version").fetchone()
        self._raw.execute("PRAGMA writable_schema = ON")
        self._raw.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, self._table))
        self._raw.execute(f"PRAGMA schema_version = {version + 1}")
        self._raw.execute("PRAGMA writable_schema = RESET")


def complaint(home: Path, case: Case) -> str | None:
    """Return what SQLite's own check says of a column, if it says anything."""
    with closing(sqlite3.connect(home / "aioflow.db")) as raw:
        found = [str(line) for (line,) in raw.execute("PRAGMA integrity_check")]
    of_value = re.compile(rf"(non-\w+|NULL|TEXT|NUMERIC) value in {case.table}.{case.column}$")
    column = tables.metadata.tables[case.table].columns[case.column]
    is_bounded = "range" in column.info and f"CHECK constraint failed in {case.table}" in found
    told = [line for line in found if of_value.search(line)]
    return told[0] if told else (found[0] if is_bounded else None)
