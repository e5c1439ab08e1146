"""The tables as all statements use them, and the check and migration of their schema.

The columns of a table have the order of the fields of its Struct in ``model``.

``migrations`` creates the tables in a database. Alembic is imported only if there is something to
migrate. Each revision has a script, ``migrations/<revision>.<dialect>.sql``. For an empty SQLite
file, all scripts are executed together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import compress

import sqlalchemy
from sqlalchemy import (
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    literal_column,
    select,
)

from aioflow.errors import ForeignDatabase, SchemaMismatch
from aioflow.store.columns import (
    NUMBER,
    blob,
    count,
    flag,
    in_range,
    index,
    instant,
    key,
    name,
    number,
    small,
    state,
    text,
)

__all__ = (
    "HEAD_REVISION",
    "LAST_SEQ",
    "PRODUCT",
    "REVISION_TABLE",
    "account",
    "all_statements",
    "api_token",
    "audit",
    "audit_head",
    "backfill",
    "check_revision",
    "clear_request",
    "dag",
    "dag_event",
    "dag_file",
    "dag_trigger",
    "decision",
    "deletion",
    "drained",
    "event",
    "execute_script",
    "expansion",
    "has_place",
    "history",
    "is_active",
    "is_daily",
    "is_hourly",
    "journal",
    "map_label",
    "meta",
    "metadata",
    "named_event",
    "named_value",
    "node",
    "not_deleted",
    "note",
    "number_lease",
    "outbox",
    "pool",
    "pool_usage",
    "record",
    "result",
    "result_chunk",
    "run",
    "session",
    "sqlite_schema_script",
    "statements",
    "stream_item",
    "task",
    "task_trigger",
    "try_",
    "try_worker",
    "unsuccessful",
    "upgrade_schema",
    "version",
)

metadata = MetaData()


def _only(where: ColumnElement[bool]) -> dict[str, Any]:
    """Return the options of a partial index."""
    return {"sqlite_where": where, "postgresql_where": where}


meta = Table("meta", metadata, name("name", 100), text("value"), sqlite_strict=True)

node = Table(
    "node",
    metadata,
    key("node_no"),
    number("epoch"),
    number("commit_no"),
    instant("started_at", null=True),
    instant("seen_at", null=True),
    text("version", null=True),
    number("pid", null=True),
    text("host", null=True),
    instant("steady_at", null=True),
    text("home", null=True),
    text("name", null=True),
    state(3, server_default="2"),
    count("heartbeat", server_default="0"),
    count("heartbeat_ms", server_default="0"),
    instant("heartbeat_at", null=True),
    sqlite_strict=True,
)
Index("node_by_home", node.c.home, unique=True)
is_active = node.c.state == literal_column("1")
"""Condition for the node that may commit. An index ensures that at most one node is active."""
Index("node_active", node.c.state, unique=True, **_only(is_active))

drained = Table("drained", metadata, key("node_no"), instant("at"), sqlite_strict=True)

number_lease = Table(
    "number_lease", metadata, name("name", 100), number("next_no"), sqlite_strict=True
)

version = Table(
    "version",
    metadata,
    name("version", 128),
    text("file"),
    blob("dags", placeholder=b"\x90"),
    blob("sources", placeholder=compress(b"\x80")),
    instant("created_at"),
    sqlite_strict=True,
)

dag_file = Table(
    "dag_file",
    metadata,
    name("file", 600),
    text("version", ForeignKey("version.version"), null=True),
    text("reason", null=True),
    text("message", null=True),
    instant("parsed_at"),
    sqlite_strict=True,
)

dag = Table(
    "dag",
    metadata,
    name("dag_id", 250),
    text("file"),
    text("version", ForeignKey("version.version")),
    flag("paused"),
    number("next_run_at", null=True),
    flag("gone"),
    number("last_fire_time", null=True),
    number("late_alert_for", null=True),
    sqlite_strict=True,
)

run = Table(
    "run",
    metadata,
    key("run_no"),
    text("run_id", CheckConstraint("length(run_id) <= 500")),
    text("dag_id", CheckConstraint("length(dag_id) <= 250")),
    text("version", ForeignKey("version.version")),
    state(5),
    text("cause"),
    number("first_task_no"),
    instant("logical_date", null=True),
    blob("conf", null=True),
    text("key", CheckConstraint("length(key) <= 250"), null=True),
    instant("created_at"),
    instant("started_at", null=True),
    instant("ended_at", null=True),
    text("quarantine", null=True),
    number("caller", null=True),
    number("backfill", null=True),
    text("started_by", null=True),
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
    "run_by_fire_time",
    run.c.dag_id,
    run.c.logical_date,
    unique=True,
    sqlite_where=_scheduled,
    postgresql_where=_scheduled,
)
Index("run_live", run.c.run_no, **_only(run.c.ended_at.is_(None)))
Index("run_ended", run.c.dag_id, run.c.ended_at, **_only(run.c.ended_at.is_not(None)))

unsuccessful = run.c.state > literal_column("2")
"""Condition for runs that ended without success. It has an index, because users search for them."""
Index("run_unsuccessful", run.c.state, run.c.run_no, **_only(unsuccessful))
Index("run_by_kind", run.c.dag_id, run.c.state, run.c.cause, run.c.created_at)
Index("run_by_backfill", run.c.backfill, run.c.run_no, **_only(run.c.backfill.is_not(None)))

# The state has no index, because no statement needs one. It would halve the transition rate.
task = Table(
    "task",
    metadata,
    key("task_no"),
    number("run_no", ForeignKey("run.run_no")),
    index("task_index"),
    index("map_index", least=-1),
    state(11),
    count("try_number"),
    count("start_no"),
    count("interruptions"),
    number("due_at", null=True),
    number("deadline_at", null=True),
    instant("queued_at", null=True),
    instant("started_at", null=True),
    instant("ended_at", null=True),
    blob("failure", null=True),
    sqlite_strict=True,
)
Index("task_by_run", task.c.run_no)

expansion = Table(
    "expansion",
    metadata,
    number("run_no", ForeignKey("run.run_no")),
    index("task_index"),
    index("width"),
    number("first_task_no"),
    flag("is_open", server_default="0"),
    PrimaryKeyConstraint("run_no", "task_index"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

stream_item = Table(
    "stream_item",
    metadata,
    number("task_no"),
    index("item_index"),
    number("run_no"),
    blob("payload"),
    PrimaryKeyConstraint("task_no", "item_index"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("stream_item_by_run", stream_item.c.run_no, stream_item.c.task_no)

try_ = Table(
    "try",
    metadata,
    number("task_no", ForeignKey("task.task_no")),
    count("start_no"),
    number("run_no"),
    count("try_number"),
    state(11),
    instant("started_at", null=True),
    instant("ended_at"),
    blob("failure", null=True),
    PrimaryKeyConstraint("task_no", "start_no"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

try_worker = Table(
    "try_worker",
    metadata,
    number("task_no", ForeignKey("task.task_no")),
    count("start_no"),
    number("run_no"),
    text("executor"),
    text("host"),
    text("worker"),
    PrimaryKeyConstraint("task_no", "start_no"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

result = Table(
    "result",
    metadata,
    Column("task_no", NUMBER, ForeignKey("task.task_no"), primary_key=True, autoincrement=False),
    number("run_no"),
    count("start_no"),
    blob("body", null=True),
    count("size"),
    index("width", null=True),
    sqlite_strict=True,
)
_wide = result.c.width.is_not(None)
Index("result_wide", result.c.run_no, sqlite_where=_wide, postgresql_where=_wide)

result_chunk = Table(
    "result_chunk",
    metadata,
    number("task_no"),
    count("start_no"),
    count("chunk_no"),
    instant("stored_at"),
    blob("body"),
    PrimaryKeyConstraint("task_no", "start_no", "chunk_no"),
    sqlite_strict=True,
)

map_label = Table(
    "map_label",
    metadata,
    Column("task_no", NUMBER, ForeignKey("task.task_no"), primary_key=True, autoincrement=False),
    number("run_no"),
    text("label"),
    sqlite_strict=True,
)

task_trigger = Table(
    "task_trigger",
    metadata,
    key("trigger_no"),
    number("task_no"),
    number("run_no", ForeignKey("run.run_no")),
    state(2),
    text("class_path"),
    blob("kwargs", null=True),
    instant("since"),
    number("deadline_at", null=True),
    text("next_method"),
    blob("next_kwargs", null=True),
    blob("event", null=True),
    text("event_key", null=True),
    index("ordinal", least=-2, server_default="-1"),
    index("branch", server_default="0"),
    count("window", server_default="0"),
    blob("failure", null=True),
    text("timeout_method", server_default=""),
    sqlite_strict=True,
)
Index("task_trigger_by_run", task_trigger.c.run_no)

event = Table(
    "event",
    metadata,
    number("trigger_no"),
    count("sequence"),
    number("run_no"),
    text("key", null=True),
    blob("payload", null=True),
    PrimaryKeyConstraint("trigger_no", "sequence"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("event_by_run", event.c.run_no)

named_event = Table(
    "named_event",
    metadata,
    key("event_no"),
    text("name", CheckConstraint("length(name) <= 250")),
    text("key", CheckConstraint("length(key) <= 250"), null=True),
    blob("data"),
    instant("at"),
    number("run_no", null=True),
    text("request", CheckConstraint("length(request) <= 250"), null=True),
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
    number("task_no", ForeignKey("task.task_no")),
    index("ordinal"),
    number("run_no"),
    state(2),
    text("kind"),
    text("name"),
    text("source_location"),
    blob("answer", null=True),
    blob("failure", null=True),
    text("label", null=True),
    PrimaryKeyConstraint("task_no", "ordinal"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("record_by_run", record.c.run_no)

decision = Table(
    "decision",
    metadata,
    key("decision_no"),
    number("run_no", ForeignKey("run.run_no")),
    number("task_no"),
    blob("question"),
    instant("asked_at"),
    number("deadline_at", null=True),
    count("vote_count"),
    blob("votes", placeholder=b"\x90"),
    text("outcome", null=True),
    blob("answer", null=True),
    instant("ended_at", null=True),
    sqlite_strict=True,
)
Index("decision_by_run", decision.c.run_no, decision.c.decision_no)
Index("decision_open", decision.c.decision_no, **_only(decision.c.ended_at.is_(None)))

note = Table(
    "note",
    metadata,
    number("run_no", ForeignKey("run.run_no")),
    index("task_index", least=-1),
    index("map_index", least=-1),
    instant("at"),
    text("author"),
    blob("body"),
    PrimaryKeyConstraint("run_no", "task_index", "map_index"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

pool = Table(
    "pool",
    metadata,
    name("name", 250),
    count("slots", placeholder=1),
    flag("include_deferred"),
    sqlite_strict=True,
)

named_value = Table(
    "named_value",
    metadata,
    text("kind", CheckConstraint("kind IN ('secret', 'connection', 'variable')")),
    text("name", CheckConstraint("length(name) <= 250")),
    number("value_no"),
    instant("at"),
    blob("encrypted"),
    PrimaryKeyConstraint("kind", "name"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

backfill = Table(
    "backfill",
    metadata,
    key("backfill_no"),
    text("dag_id", CheckConstraint("length(dag_id) <= 250")),
    number("first"),
    number("last"),
    text("reprocess"),
    count("max_active"),
    number("is_reverse"),
    text("state"),
    blob("conf", null=True),
    number("next_at", null=True),
    count("made"),
    count("skipped"),
    instant("created_at"),
    instant("ended_at", null=True),
    text("failure", null=True),
    text("key", null=True),
    text("started_by", null=True),
    sqlite_strict=True,
)
Index("backfill_by_key", backfill.c.dag_id, backfill.c.key, unique=True)
_running = backfill.c.state == "running"
Index(
    "backfill_running",
    backfill.c.dag_id,
    unique=True,
    sqlite_where=_running,
    postgresql_where=_running,
)

deletion = Table("deletion", metadata, key("run_no"), instant("at"), sqlite_strict=True)

not_deleted = run.c.run_no.not_in(select(deletion.c.run_no))
"""Condition for runs that are not being deleted."""

clear_request = Table(
    "clear_request",
    metadata,
    number("run_no", ForeignKey("run.run_no")),
    text("key", CheckConstraint("length(key) <= 250")),
    count("cleared"),
    PrimaryKeyConstraint("run_no", "key"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

dag_trigger = Table(
    "dag_trigger",
    metadata,
    key("trigger_no"),
    text("dag_id", CheckConstraint("length(dag_id) <= 250")),
    text("class_path"),
    blob("kwargs"),
    instant("since"),
    count("sequence"),
    blob("event", null=True),
    text("event_key", null=True),
    blob("held", null=True),
    number("run_no", null=True),
    sqlite_strict=True,
)
Index("dag_trigger_by_dag", dag_trigger.c.dag_id, unique=True)

dag_event = Table(
    "dag_event",
    metadata,
    key("event_no"),
    number("trigger_no", ForeignKey("dag_trigger.trigger_no")),
    count("sequence"),
    text("key", null=True),
    instant("at"),
    state(4, "outcome"),
    number("run_no", null=True),
    text("reason", null=True),
    text("asset", null=True),
    blob("data", null=True),
    sqlite_strict=True,
)
_held = dag_event.c.outcome == literal_column("1")
Index("dag_event_held", dag_event.c.event_no, sqlite_where=_held, postgresql_where=_held)
Index("dag_event_by_sequence", dag_event.c.trigger_no, dag_event.c.sequence, unique=True)
_keyed = dag_event.c.key.is_not(None)
Index(
    "dag_event_by_key",
    dag_event.c.trigger_no,
    dag_event.c.key,
    unique=True,
    sqlite_where=_keyed,
    postgresql_where=_keyed,
)

outbox = Table("outbox", metadata, key("outbox_no"), text("kind"), blob("body"), sqlite_strict=True)

LAST_SEQ = 2**53
"""The highest valid ``seq`` of a journal row.

A row with a higher number is damaged, and the numbering does not continue from it.
"""

journal = Table(
    "journal",
    metadata,
    key("seq", most=LAST_SEQ),
    instant("at"),
    blob("body"),
    number("node_no", server_default="1"),
    number("commit_no", server_default="0"),
    sqlite_strict=True,
)
Index("journal_by_commit", journal.c.node_no, journal.c.commit_no, unique=True).ddl_if(
    dialect="postgresql"
)
"""Only where several nodes write: in a SQLite file it would be one more page of each commit."""
has_place = in_range(journal.c.seq)
"""Condition for journal rows whose ``seq`` is valid. All others have no place in the order."""


history = Table(
    "history",
    metadata,
    text("dag_id", CheckConstraint("length(dag_id) <= 250")),
    text("task_id", CheckConstraint("length(task_id) <= 250")),
    small("measure"),
    instant("start"),
    index("bucket"),
    count("occurrences"),
    count("total_ms"),
    PrimaryKeyConstraint("dag_id", "task_id", "measure", "start", "bucket"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
is_hourly = literal_column("start / 86400000000 * 86400000000") != literal_column("start")
"""Condition for rows whose hours can be merged into days. It has an index."""
Index("history_hourly", history.c.start, **_only(is_hourly))
is_daily = literal_column("start / 86400000000 * 86400000000") == literal_column("start")
"""Condition for rows of the first hour of a day, or of a whole day. It has an index."""
Index("history_daily", history.c.start, **_only(is_daily))


pool_usage = Table(
    "pool_usage",
    metadata,
    text("pool", CheckConstraint("length(pool) <= 250")),
    instant("start"),
    count("slots"),
    count("used"),
    count("queued"),
    PrimaryKeyConstraint("pool", "start"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
Index("pool_usage_by_start", pool_usage.c.start)


_LAST_ROLE = 2

account = Table(
    "account",
    metadata,
    key("account_no"),
    text("name", CheckConstraint("length(name) <= 250")),
    blob("secret"),
    state(_LAST_ROLE, "role"),
    small("is_disabled"),
    instant("created_at"),
    instant("changed_at"),
    blob("groups", null=True),
    sqlite_strict=True,
)
Index("account_by_name", account.c.name, unique=True)

api_token = Table(
    "api_token",
    metadata,
    key("token_no"),
    text("name", CheckConstraint("length(name) <= 250")),
    blob("digest"),
    state(_LAST_ROLE, "role"),
    blob("scopes", null=True),
    instant("created_at"),
    text("created_by"),
    number("expires_at", null=True),
    instant("revoked_at", null=True),
    instant("last_used_at", null=True),
    sqlite_strict=True,
)
Index("api_token_by_digest", api_token.c.digest, unique=True)

session = Table(
    "session",
    metadata,
    key("session_no"),
    text("name", CheckConstraint("length(name) <= 250")),
    blob("digest"),
    instant("created_at"),
    number("expires_at"),
    text("address"),
    text("agent", null=True),
    instant("last_used_at", null=True),
    sqlite_strict=True,
)
Index("session_by_digest", session.c.digest, unique=True)

audit = Table(
    "audit",
    metadata,
    key("audit_no"),
    instant("at"),
    text("actor"),
    text("role"),
    text("action"),
    text("target"),
    text("address"),
    small("is_refused"),
    text("code", null=True),
    text("before", null=True),
    text("after", null=True),
    blob("previous"),
    blob("digest"),
    sqlite_strict=True,
)

audit_head = Table(
    "audit_head",
    metadata,
    key("head_no"),
    blob("encrypted"),
    sqlite_strict=True,
)


HEAD_REVISION = "0011"
"""The revision that this version of aioflow needs. Revisions are numbered in order."""

PRODUCT = "aioflow"
"""The value of the row ``product`` in the table ``meta``."""

REVISION_TABLE = "alembic_version"

_MIGRATIONS = Path(__file__).parent / "migrations"


def check_revision(where: str, product: str | None, revision: str | None) -> bool:
    """Return whether the schema is current. If not, it is older and can be migrated.

    Args:
        where: The database, for messages.
        product: The value of the row ``product``, if it exists.
        revision: The revision recorded by Alembic, if any.

    Raises:
        ForeignDatabase: If aioflow did not create the database.
        SchemaMismatch: If the schema is newer than this version of aioflow.
    """
    if product != PRODUCT or revision is None:
        raise ForeignDatabase(f"{where} holds a database that aioflow did not make")
    if not revision.isdigit() or int(revision) > int(HEAD_REVISION):
        raise SchemaMismatch(
            f"{where} has schema {revision}, this aioflow knows {HEAD_REVISION} at most; "
            "use the newer version of aioflow that made it"
        )
    return revision == HEAD_REVISION


def statements(revision: str, dialect: str) -> list[str]:
    """Return the statements that turn the schema of the previous revision into that of a revision.

    Args:
        revision: A revision. The first one starts from an empty database.
        dialect: ``sqlite`` or ``postgresql``.
    """
    text = (_MIGRATIONS / f"{revision}.{dialect}.sql").read_text(encoding="utf-8")
    return [statement for part in text.split(";\n") if (statement := part.strip())]


def all_statements(dialect: str) -> list[str]:
    """Return the statements of all revisions, in order."""
    scripts = sorted(path.name for path in _MIGRATIONS.glob(f"*.{dialect}.sql"))
    revisions = [name.partition(".")[0] for name in scripts]
    return [statement for revision in revisions for statement in statements(revision, dialect)]


def execute_script(revision: str, connection: sqlalchemy.Connection) -> None:
    """Execute the statements of a revision in the open transaction."""
    for statement in statements(revision, connection.dialect.name):
        connection.exec_driver_sql(statement)


def sqlite_schema_script() -> str:
    """Return the script that creates schema ``HEAD_REVISION`` in an empty SQLite file.

    The script contains its own transaction. It also creates the table in which Alembic records the
    revision.
    """
    columns = f"version_num VARCHAR(32) NOT NULL, CONSTRAINT {REVISION_TABLE}_pkc PRIMARY KEY"
    recorded = (
        f"CREATE TABLE {REVISION_TABLE} ({columns} (version_num))",
        f"INSERT INTO {REVISION_TABLE} VALUES ('{HEAD_REVISION}')",
    )
    script = ("BEGIN", *recorded, *all_statements("sqlite"), "COMMIT")
    return "".join(f"{statement};\n" for statement in script)


def upgrade_schema(connection: sqlalchemy.Connection) -> None:
    """Migrate the schema to ``HEAD_REVISION`` in the open transaction."""
    import alembic.command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, HEAD_REVISION)
