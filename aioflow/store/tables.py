"""The tables, as every statement sees them; ``migrations`` is how a database gets them.

The columns of a row table stand in the order of its Struct in ``model``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    literal_column,
)

__all__ = (
    "backfill",
    "clear_request",
    "dag",
    "dag_event",
    "dag_file",
    "dag_trigger",
    "deletion",
    "drained",
    "event",
    "expansion",
    "journal",
    "map_label",
    "meta",
    "metadata",
    "named_event",
    "named_value",
    "node",
    "number_lease",
    "outbox",
    "pool",
    "record",
    "result",
    "run",
    "stream_item",
    "task",
    "trigger_wait",
    "try_",
    "unsuccessful",
    "version",
)

metadata = MetaData()

# A strict table of SQLite knows one integer type only.
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_SMALL = SmallInteger().with_variant(Integer(), "sqlite")


def _key(name: str) -> Column[int]:
    return Column(name, _NUMBER, primary_key=True, autoincrement=False)


def _number(
    name: str, *more: Any, null: bool = False, server_default: str | None = None
) -> Column[int]:
    return Column(name, _NUMBER, *more, nullable=null, server_default=server_default)


def _text(
    name: str, *more: Any, null: bool = False, server_default: str | None = None
) -> Column[str]:
    return Column(name, Text(), *more, nullable=null, server_default=server_default)


def _name(name: str, limit: int) -> Column[str]:
    """A text that is a key; PostgreSQL cannot index one of more than some 2,700 bytes."""
    return Column(name, Text(), CheckConstraint(f"length({name}) <= {limit}"), primary_key=True)


def _blob(name: str, *, null: bool = False) -> Column[bytes]:
    return Column(name, LargeBinary(), nullable=null)


def _flag(name: str, *, server_default: str | None = None) -> Column[int]:
    check = CheckConstraint(f"{name} BETWEEN 0 AND 1")
    return Column(name, _SMALL, check, nullable=False, server_default=server_default)


def _state(last: int, name: str = "state") -> Column[int]:
    return Column(name, _SMALL, CheckConstraint(f"{name} BETWEEN 0 AND {last}"), nullable=False)


def _only(where: ColumnElement[bool]) -> dict[str, Any]:
    """Have an index know some of the rows."""
    return {"sqlite_where": where, "postgresql_where": where}


meta = Table("meta", metadata, _name("name", 100), _text("value"), sqlite_strict=True)

node = Table(
    "node",
    metadata,
    _key("node_no"),
    _number("epoch"),
    _number("commit_no"),
    _number("started_at", null=True),
    _number("seen_at", null=True),
    _text("version", null=True),
    _number("pid", null=True),
    _text("host", null=True),
    sqlite_strict=True,
)

drained = Table("drained", metadata, _key("node_no"), _number("at"), sqlite_strict=True)

number_lease = Table(
    "number_lease", metadata, _name("name", 100), _number("next_no"), sqlite_strict=True
)

version = Table(
    "version",
    metadata,
    _name("version", 128),
    _text("file"),
    _blob("dags"),
    _blob("sources"),
    _number("created_at"),
    sqlite_strict=True,
)

dag_file = Table(
    "dag_file",
    metadata,
    _name("file", 600),
    _text("version", ForeignKey("version.version"), null=True),
    _text("reason", null=True),
    _text("message", null=True),
    _number("parsed_at"),
    sqlite_strict=True,
)

dag = Table(
    "dag",
    metadata,
    _name("dag_id", 250),
    _text("file"),
    _text("version", ForeignKey("version.version")),
    _flag("paused"),
    _number("next_run_at", null=True),
    _flag("gone"),
    _number("last_slot", null=True),
    _number("told_late", null=True),
    sqlite_strict=True,
)

run = Table(
    "run",
    metadata,
    _key("run_no"),
    _text("run_id", CheckConstraint("length(run_id) <= 500")),
    _text("dag_id", CheckConstraint("length(dag_id) <= 250")),
    _text("version", ForeignKey("version.version")),
    _state(5),
    _text("cause"),
    _number("first_task_no"),
    _number("logical_date", null=True),
    _blob("conf", null=True),
    _text("key", CheckConstraint("length(key) <= 250"), null=True),
    _number("created_at"),
    _number("started_at", null=True),
    _number("ended_at", null=True),
    _text("quarantine", null=True),
    _number("caller", null=True),
    _number("backfill", null=True),
    sqlite_strict=True,
)
Index("run_by_id", run.c.run_id, unique=True)
Index("run_by_version", run.c.version)
Index("run_by_dag", run.c.dag_id, run.c.run_no)
Index("run_by_key", run.c.dag_id, run.c.key, unique=True)
_dated = run.c.logical_date.is_not(None)
Index("run_by_date", run.c.dag_id, run.c.logical_date, **_only(_dated))
_scheduled = run.c.cause == "schedule"
Index(
    "run_by_slot",
    run.c.dag_id,
    run.c.logical_date,
    unique=True,
    sqlite_where=_scheduled,
    postgresql_where=_scheduled,
)
Index("run_live", run.c.run_no, **_only(run.c.ended_at.is_(None)))
Index("run_ended", run.c.dag_id, run.c.ended_at, **_only(run.c.ended_at.is_not(None)))

unsuccessful = run.c.state > literal_column("2")
"""Ended, and not well: there are few, and people look for them."""
Index("run_unsuccessful", run.c.state, run.c.run_no, **_only(unsuccessful))
Index("run_by_backfill", run.c.backfill, run.c.run_no, **_only(run.c.backfill.is_not(None)))

# No index on the state: nothing asks for it, and it would halve the rate of transitions.
task = Table(
    "task",
    metadata,
    _key("task_no"),
    _number("run_no", ForeignKey("run.run_no")),
    _number("position"),
    _number("map_index"),
    _state(11),
    _number("try_number"),
    _number("start_no"),
    _number("interruptions"),
    _number("due_at", null=True),
    _number("deadline_at", null=True),
    _number("queued_at", null=True),
    _number("started_at", null=True),
    _number("ended_at", null=True),
    _blob("failure", null=True),
    sqlite_strict=True,
)
Index("task_by_run", task.c.run_no)

expansion = Table(
    "expansion",
    metadata,
    _number("run_no", ForeignKey("run.run_no")),
    _number("position"),
    _number("width"),
    _number("first_task_no"),
    _flag("is_open", server_default="0"),
    PrimaryKeyConstraint("run_no", "position"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

stream_item = Table(
    "stream_item",
    metadata,
    _number("task_no"),
    _number("item_index"),
    _number("run_no"),
    _blob("payload"),
    PrimaryKeyConstraint("task_no", "item_index"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("stream_item_by_run", stream_item.c.run_no, stream_item.c.task_no)

try_ = Table(
    "try",
    metadata,
    _number("task_no", ForeignKey("task.task_no")),
    _number("start_no"),
    _number("run_no"),
    _number("try_number"),
    _state(11),
    _number("started_at", null=True),
    _number("ended_at"),
    _blob("failure", null=True),
    PrimaryKeyConstraint("task_no", "start_no"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

result = Table(
    "result",
    metadata,
    Column("task_no", _NUMBER, ForeignKey("task.task_no"), primary_key=True, autoincrement=False),
    _number("run_no"),
    _number("start_no"),
    _blob("body", null=True),
    _number("size"),
    _number("width", null=True),
    sqlite_strict=True,
)
_wide = result.c.width.is_not(None)
Index("result_wide", result.c.run_no, sqlite_where=_wide, postgresql_where=_wide)

map_label = Table(
    "map_label",
    metadata,
    Column("task_no", _NUMBER, ForeignKey("task.task_no"), primary_key=True, autoincrement=False),
    _number("run_no"),
    _text("label"),
    sqlite_strict=True,
)

trigger_wait = Table(
    "trigger_wait",
    metadata,
    _key("trigger_no"),
    _number("task_no"),
    _number("run_no", ForeignKey("run.run_no")),
    _state(2),
    _text("class_path"),
    _blob("kwargs", null=True),
    _number("since"),
    _number("deadline_at", null=True),
    _text("next_method"),
    _blob("next_kwargs", null=True),
    _blob("event", null=True),
    _text("event_key", null=True),
    _number("ordinal", server_default="-1"),
    _number("branch", server_default="0"),
    _number("window", server_default="0"),
    _blob("failure", null=True),
    _text("timeout_method", server_default=""),
    sqlite_strict=True,
)
Index("trigger_wait_by_run", trigger_wait.c.run_no)

event = Table(
    "event",
    metadata,
    _number("trigger_no"),
    _number("sequence"),
    _number("run_no"),
    _text("key", null=True),
    _blob("payload", null=True),
    PrimaryKeyConstraint("trigger_no", "sequence"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("event_by_run", event.c.run_no)

named_event = Table(
    "named_event",
    metadata,
    _key("event_no"),
    _text("name", CheckConstraint("length(name) <= 250")),
    _text("key", CheckConstraint("length(key) <= 250"), null=True),
    _blob("data"),
    _number("at"),
    _number("run_no", null=True),
    _text("request", CheckConstraint("length(request) <= 250"), null=True),
    sqlite_strict=True,
)
Index("named_event_by_name", named_event.c.name, named_event.c.event_no)
_requested = named_event.c.request.is_not(None)
Index(
    "named_event_by_request",
    named_event.c.name,
    named_event.c.request,
    unique=True,
    sqlite_where=_requested,
    postgresql_where=_requested,
)

record = Table(
    "record",
    metadata,
    _number("task_no", ForeignKey("task.task_no")),
    _number("ordinal"),
    _number("run_no"),
    _state(2),
    _text("kind"),
    _text("name"),
    _text("place"),
    _blob("answer", null=True),
    _blob("failure", null=True),
    PrimaryKeyConstraint("task_no", "ordinal"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("record_by_run", record.c.run_no)

pool = Table(
    "pool",
    metadata,
    _name("name", 250),
    _number("slots"),
    _flag("include_deferred"),
    sqlite_strict=True,
)

named_value = Table(
    "named_value",
    metadata,
    _text("kind", CheckConstraint("kind IN ('secret', 'connection', 'variable')")),
    _text("name", CheckConstraint("length(name) <= 250")),
    _number("value_no"),
    _number("at"),
    _blob("sealed"),
    PrimaryKeyConstraint("kind", "name"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

backfill = Table(
    "backfill",
    metadata,
    _key("backfill_no"),
    _text("dag_id", CheckConstraint("length(dag_id) <= 250")),
    _number("first"),
    _number("last"),
    _text("reprocess"),
    _number("max_active"),
    _number("is_reverse"),
    _text("state"),
    _blob("conf", null=True),
    _number("next_at", null=True),
    _number("made"),
    _number("skipped"),
    _number("created_at"),
    _number("ended_at", null=True),
    _text("failure", null=True),
    sqlite_strict=True,
)
_running = backfill.c.state == "running"
Index(
    "backfill_running",
    backfill.c.dag_id,
    unique=True,
    sqlite_where=_running,
    postgresql_where=_running,
)

deletion = Table("deletion", metadata, _key("run_no"), _number("at"), sqlite_strict=True)
clear_request = Table(
    "clear_request",
    metadata,
    _number("run_no", ForeignKey("run.run_no")),
    _text("key", CheckConstraint("length(key) <= 250")),
    _number("cleared"),
    PrimaryKeyConstraint("run_no", "key"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

dag_trigger = Table(
    "dag_trigger",
    metadata,
    _key("trigger_no"),
    _text("dag_id", CheckConstraint("length(dag_id) <= 250")),
    _text("class_path"),
    _blob("kwargs"),
    _number("since"),
    _number("sequence"),
    _blob("event", null=True),
    _text("event_key", null=True),
    _blob("held", null=True),
    _number("run_no", null=True),
    sqlite_strict=True,
)
Index("dag_trigger_by_dag", dag_trigger.c.dag_id, unique=True)

dag_event = Table(
    "dag_event",
    metadata,
    _key("event_no"),
    _number("trigger_no", ForeignKey("dag_trigger.trigger_no")),
    _number("sequence"),
    _text("key", null=True),
    _number("at"),
    _state(4, "fate"),
    _number("run_no", null=True),
    _text("reason", null=True),
    _text("asset", null=True),
    _blob("data", null=True),
    sqlite_strict=True,
)
_held = dag_event.c.fate == literal_column("1")
Index("dag_event_held", dag_event.c.event_no, sqlite_where=_held, postgresql_where=_held)
Index("dag_event_by_place", dag_event.c.trigger_no, dag_event.c.sequence, unique=True)
_keyed = dag_event.c.key.is_not(None)
Index(
    "dag_event_by_key",
    dag_event.c.trigger_no,
    dag_event.c.key,
    unique=True,
    sqlite_where=_keyed,
    postgresql_where=_keyed,
)

outbox = Table(
    "outbox", metadata, _key("outbox_no"), _text("kind"), _blob("body"), sqlite_strict=True
)

journal = Table(
    "journal", metadata, _key("commit_no"), _number("at"), _blob("body"), sqlite_strict=True
)
