"""The SELECT statements of the store, for both databases; ``changes.compiled`` compiles them."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Select,
    Table,
    Text,
    and_,
    bindparam,
    case,
    column,
    func,
    literal_column,
    null,
    or_,
    select,
)
from sqlalchemy import values as listed

from aioflow.model.states import RecordState, TaskState
from aioflow.protocol.outbox import ENGINE_KINDS
from aioflow.store import tables

__all__ = (
    "ALL_DAGS",
    "ALL_DAG_FILES",
    "ALL_DRAINED",
    "ALL_POOLS",
    "ALL_TRIGGERS",
    "CLEAR_BY_KEY",
    "EVENTS_OF_RUN",
    "EXPANSIONS",
    "FIRST_ENDED_RUN",
    "ITEMS_OF_RUN",
    "ITEMS_OF_TASK",
    "JOURNAL",
    "LABELS_BETWEEN",
    "LIVE_EVENTS",
    "LIVE_EXPANSIONS",
    "LIVE_ITEMS",
    "LIVE_PROGRESS",
    "LIVE_RUNS",
    "LIVE_TASKS",
    "LIVE_WIDTHS",
    "NAMED_EVENTS_PAGE",
    "NAMED_EVENT_BY_REQUEST",
    "NEEDED_VERSIONS",
    "NEEDED_VERSION_NAMES",
    "OUTBOX_COUNTS",
    "OUTBOX_IN_MEMORY",
    "OUTBOX_PAGE",
    "PROGRESS_OF_RUN",
    "RECORDS_OF_TASK",
    "RESULTS_BETWEEN",
    "RUN_BEFORE",
    "RUN_BY_ID",
    "RUN_BY_KEY",
    "RUN_BY_NO",
    "STATE_COUNTS",
    "TASKS_BETWEEN",
    "TASKS_OF_RUN",
    "TRIES",
    "TRIGGERS_OF_RUN",
    "TRIGGERS_PAGE",
    "TRY_WORKERS",
    "VALUE",
    "VALUES_OF_KIND",
    "VERSION",
    "WIDTHS_OF_RUN",
    "expansions_of",
    "latest_named_events",
    "latest_of_names",
    "literal",
    "number",
    "runs_by_date",
    "runs_by_id",
    "runs_by_ids",
    "runs_by_keys",
    "runs_page",
    "tasks_by_no",
    "text",
    "whole",
)

_run, _task, _result = tables.run, tables.task, tables.result
_label = tables.map_label
_trigger, _expansion, _version = tables.task_trigger, tables.expansion, tables.version


def number(name: str) -> BindParameter[int]:
    """Return a parameter for a number or a timestamp."""
    return bindparam(name, type_=BigInteger())


def text(name: str) -> BindParameter[str]:
    """Return a parameter for a text."""
    return bindparam(name, type_=tables.run.c.run_id.type)


def literal(number: int) -> ColumnElement[int]:
    """Return a number as literal SQL.

    With a parameter, the planner would ignore partial indexes.
    """
    return literal_column(str(int(number)))


@cache
def whole(table: Table) -> Select[Any]:
    """Return the statement for a whole table in the order of its key."""
    return select(table).order_by(*table.primary_key)


# ── unfinished work ─────────────────────────────────────────────────────────────────────

# Spelled like the condition of the partial index. Otherwise the planner does not use that index.
_is_live = _run.c.ended_at.is_(None)

ALL_DAGS = whole(tables.dag)
ALL_DAG_FILES = whole(tables.dag_file)
ALL_POOLS = whole(tables.pool)
ALL_DRAINED = whole(tables.drained)
_outbox = tables.outbox
_is_in_memory = _outbox.c.kind.in_([literal_column(f"'{kind}'") for kind in sorted(ENGINE_KINDS)])
OUTBOX_IN_MEMORY = select(_outbox).where(_is_in_memory).order_by(_outbox.c.outbox_no)
OUTBOX_COUNTS = (
    select(_outbox.c.kind, func.count(), func.min(_outbox.c.outbox_no))
    .where(~_is_in_memory)
    .group_by(_outbox.c.kind)
    .order_by(_outbox.c.kind)
)
OUTBOX_PAGE = (
    select(_outbox)
    .where(
        _outbox.c.outbox_no > number("after"),
        _outbox.c.kind == bindparam("kind", type_=_outbox.c.kind.type),
    )
    .order_by(_outbox.c.outbox_no)
    .limit(number("limit"))
)

LIVE_RUNS = select(_run).where(_is_live).order_by(_run.c.run_no)
# Not written as joins: SQLite would read the whole table instead of looking up each live run.
_live_numbers = select(_run.c.run_no).where(_is_live)

LIVE_TASKS = (
    select(_task).where(_task.c.run_no.in_(_live_numbers)).order_by(_task.c.run_no, _task.c.task_no)
)
LIVE_EXPANSIONS = (
    select(_expansion)
    .where(_expansion.c.run_no.in_(_live_numbers))
    .order_by(_expansion.c.run_no, _expansion.c.task_index)
)
LIVE_WIDTHS = (
    select(_result.c.run_no, _result.c.task_no, _result.c.width)
    .where(_result.c.run_no.in_(_live_numbers), _result.c.width.is_not(None))
    .order_by(_result.c.run_no, _result.c.task_no)
)
_record = tables.record
_is_failed = _record.c.state == literal(RecordState.FAILED)
_is_open = _record.c.state == literal(RecordState.OPEN)
_progress = select(
    _record.c.run_no,
    _record.c.task_no,
    func.count(),
    func.min(case((_is_failed, _record.c.ordinal))),
    func.max(case((_is_open, _record.c.kind))),
    func.max(case((_is_open, _record.c.name))),
).group_by(_record.c.run_no, _record.c.task_no)
_event = tables.event
LIVE_EVENTS = (
    select(_event)
    .where(_event.c.run_no.in_(_live_numbers))
    .order_by(_event.c.run_no, _event.c.trigger_no, _event.c.sequence)
)
_item = tables.stream_item
_counted_items = select(_item.c.run_no, _item.c.task_no, func.count()).group_by(
    _item.c.run_no, _item.c.task_no
)
# Without ORDER BY, PostgreSQL hashes the groups and returns them in any order.
LIVE_ITEMS = _counted_items.where(_item.c.run_no.in_(_live_numbers)).order_by(
    _item.c.run_no, _item.c.task_no
)
LIVE_PROGRESS = _progress.where(_record.c.run_no.in_(_live_numbers)).order_by(
    _record.c.run_no, _record.c.task_no
)
ALL_TRIGGERS = select(_trigger).order_by(_trigger.c.run_no, _trigger.c.trigger_no)

# Sources are large. They are not read, because a restart finds them in the snapshot folders.
_without_sources = select(
    _version.c.version,
    _version.c.file,
    _version.c.dags,
    null().label("sources"),
    _version.c.created_at,
)
_is_needed = or_(
    _version.c.version.in_(select(tables.dag.c.version)),
    _version.c.version.in_(select(tables.dag_file.c.version)),
    _version.c.version.in_(select(_run.c.version).where(_is_live)),
)
NEEDED_VERSIONS = _without_sources.where(_is_needed).order_by(
    _version.c.created_at, _version.c.version
)
NEEDED_VERSION_NAMES = select(_version.c.version).where(_is_needed).order_by(_version.c.version)

# ── runs ────────────────────────────────────────────────────────────────────────────────

RUN_BY_NO = select(_run).where(_run.c.run_no == number("run_no"))
RUN_BY_ID = select(_run).where(_run.c.run_id == text("run_id"), tables.not_deleted)
RUN_BY_KEY = select(_run).where(
    _run.c.dag_id == text("dag_id"), _run.c.key == text("key"), tables.not_deleted
)
FIRST_ENDED_RUN = (
    select(_run)
    .where(_run.c.dag_id == text("dag_id"), _run.c.ended_at >= number("since"), tables.not_deleted)
    .order_by(_run.c.ended_at, _run.c.run_no)
    .limit(literal_column("1"))
)


@cache
def runs_by_id(width: int) -> Select[Any]:
    """Return the statement for runs with these ids: ``id_0``, ``id_1`` and so on."""
    ids = [text(f"id_{n}") for n in range(width)]
    return select(_run).where(_run.c.run_id.in_(ids), tables.not_deleted)


_is_going = _run.c.run_no.in_(select(tables.deletion.c.run_no)).label("is_going")


@cache
def runs_by_ids(width: int) -> Select[Any]:
    """Return the statement for runs with these ids, with a flag for runs being deleted.

    Its parameters are ``id_0`` and so on.
    """
    return select(_run, _is_going).where(_run.c.run_id.in_([text(f"id_{n}") for n in range(width)]))


@cache
def runs_by_keys(width: int) -> Select[Any]:
    """Return the statement for runs of a DAG with these idempotency keys; see ``runs_by_ids``.

    Its parameters are ``key_0`` and so on.
    """
    keys = [text(f"key_{n}") for n in range(width)]
    return select(_run, _is_going).where(_run.c.dag_id == text("dag_id"), _run.c.key.in_(keys))


@cache
def runs_by_date(width: int) -> Select[Any]:
    """Return the statement for the newest run of a DAG at each logical date.

    Its parameters are ``date_0`` and so on.
    """
    dates = [number(f"date_{n}") for n in range(width)]
    newest = (
        select(func.max(_run.c.run_no))
        .where(_run.c.dag_id == text("dag_id"), _run.c.logical_date.in_(dates), tables.not_deleted)
        .group_by(_run.c.logical_date)
    )
    return select(_run).where(_run.c.run_no.in_(newest))


RUN_BEFORE = (
    select(_run)
    .where(
        _run.c.dag_id == text("dag_id"),
        tables.not_deleted,
        _run.c.logical_date.is_not(None),
        _run.c.logical_date <= number("date"),
        or_(_run.c.logical_date < number("date"), _run.c.run_no < number("run_no")),
    )
    .order_by(_run.c.logical_date.desc(), _run.c.run_no.desc())
    .limit(literal_column("1"))
)


@cache
def tasks_by_no(width: int) -> Select[Any]:
    """Return the statement for tasks with these numbers: ``no_0``, ``no_1`` and so on."""
    return select(_task).where(_task.c.task_no.in_([number(f"no_{n}") for n in range(width)]))


@cache
def runs_page(
    *, of_dag: bool, in_state: bool, live: bool, before: bool, unsuccessful: bool = False
) -> Select[Any]:
    """Return the statement for a page of runs with these filters, the newest first."""
    page = (
        select(_run).where(tables.not_deleted).order_by(_run.c.run_no.desc()).limit(number("limit"))
    )
    if of_dag:
        page = page.where(_run.c.dag_id == text("dag_id"))
    if in_state:
        page = page.where(_run.c.state == bindparam("state", type_=_run.c.state.type))
    if live:
        page = page.where(_is_live)  # redundant, but makes the planner use the partial index
    if unsuccessful and not of_dag:
        page = page.where(tables.unsuccessful)  # redundant, for the same reason
    if before:
        page = page.where(_run.c.run_no < number("before"))
    return page


# ── one run ─────────────────────────────────────────────────────────────────────────────

CLEAR_BY_KEY = select(tables.clear_request).where(
    tables.clear_request.c.run_no == number("run_no"),
    tables.clear_request.c.key == text("key"),
)
TASKS_OF_RUN = select(_task).where(_task.c.run_no == number("run_no")).order_by(_task.c.task_no)
TASKS_BETWEEN = (
    select(_task)
    .where(and_(_task.c.task_no >= number("first"), _task.c.task_no < number("end")))
    .order_by(_task.c.task_no)
    .limit(number("limit"))
)
STATE_COUNTS = (
    select(_task.c.task_index, _task.c.state, func.count())
    .where(
        _task.c.run_no == number("run_no"),
        _task.c.state != literal(TaskState.REMOVED),
    )
    .group_by(_task.c.task_index, _task.c.state)
    .order_by(_task.c.task_index, _task.c.state)
)
EXPANSIONS = (
    select(_expansion)
    .where(_expansion.c.run_no == number("run_no"))
    .order_by(_expansion.c.task_index)
)


@cache
def expansions_of(width: int) -> Select[Any]:
    """Return the statement for expansions of these runs: ``run_no_0``, ``run_no_1`` and so on."""
    run_nos = [number(f"run_no_{n}") for n in range(width)]
    return select(_expansion).where(_expansion.c.run_no.in_(run_nos))


WIDTHS_OF_RUN = (
    select(_result.c.run_no, _result.c.task_no, _result.c.width)
    .where(_result.c.run_no == number("run_no"), _result.c.width.is_not(None))
    .order_by(_result.c.task_no)
)
TRIGGERS_OF_RUN = (
    select(_trigger).where(_trigger.c.run_no == number("run_no")).order_by(_trigger.c.trigger_no)
)
EVENTS_OF_RUN = (
    select(_event)
    .where(_event.c.run_no == number("run_no"))
    .order_by(_event.c.trigger_no, _event.c.sequence)
)
ITEMS_OF_RUN = _counted_items.where(_item.c.run_no == number("run_no"))
ITEMS_OF_TASK = (
    select(_item)
    .where(_item.c.task_no == number("task_no"), _item.c.item_index > number("after"))
    .order_by(_item.c.item_index)
    .limit(number("limit"))
)
PROGRESS_OF_RUN = _progress.where(_record.c.run_no == number("run_no"))
RECORDS_OF_TASK = (
    select(_record)
    .where(_record.c.task_no == number("task_no"), _record.c.ordinal > number("after"))
    .order_by(_record.c.ordinal)
    .limit(number("limit"))
)
LABELS_BETWEEN = (
    select(_label.c.task_no, _label.c.label)
    .where(and_(_label.c.task_no >= number("first"), _label.c.task_no < number("end")))
    .order_by(_label.c.task_no)
    .limit(number("limit"))
)
RESULTS_BETWEEN = (
    select(_result)
    .where(and_(_result.c.task_no >= number("first"), _result.c.task_no < number("end")))
    .order_by(_result.c.task_no)
    .limit(number("limit"))
)
TRIES = (
    select(tables.try_)
    .where(tables.try_.c.task_no == number("task_no"))
    .order_by(tables.try_.c.start_no)
)
TRY_WORKERS = (
    select(tables.try_worker)
    .where(tables.try_worker.c.task_no == number("task_no"))
    .order_by(tables.try_worker.c.start_no)
)

# ── named events ────────────────────────────────────────────────────────────────────────

_named = tables.named_event
NAMED_EVENTS_PAGE = (
    select(_named)
    .where(_named.c.name == text("name"), _named.c.event_no > number("after"))
    .order_by(_named.c.event_no)
    .limit(number("limit"))
)
NAMED_EVENT_BY_REQUEST = select(_named).where(
    _named.c.name == text("name"),
    _named.c.request == text("request"),
)


@cache
def latest_named_events(*, of_name: bool, before: bool) -> Select[Any]:
    """Return the statement for a page of named events with these filters, the newest first."""
    page = select(_named).order_by(_named.c.event_no.desc()).limit(number("limit"))
    if of_name:
        page = page.where(_named.c.name == text("name"))
    if before:
        page = page.where(_named.c.event_no < number("before"))
    return page


@cache
def latest_of_names(width: int) -> Select[Any]:
    """Return the statement for the newest event of each of ``width`` names, without its data.

    Its parameters are ``name_0``, ``name_1`` and so on. If a name is passed twice, it is returned
    once.
    """
    # One index lookup per name, however many events the name has.
    asked = (
        listed(column("name", Text), name="asked")
        .data([(text(f"name_{n}"),) for n in range(width)])
        .cte("asked")
    )
    other = _named.alias("other")
    newest = (
        select(func.max(other.c.event_no)).where(other.c.name == asked.c.name).scalar_subquery()
    )
    return select(_named.c.event_no, _named.c.name, _named.c.at, _named.c.run_no).where(
        _named.c.event_no.in_(select(newest).select_from(asked))
    )


# ── everything else ─────────────────────────────────────────────────────────────────────

VALUE = select(tables.named_value).where(
    tables.named_value.c.kind == text("kind"),
    tables.named_value.c.name == text("name"),
)
VALUES_OF_KIND = (
    select(tables.named_value)
    .where(tables.named_value.c.kind == text("kind"))
    .order_by(tables.named_value.c.name)
)
TRIGGERS_PAGE = (
    whole(_trigger).where(_trigger.c.trigger_no > number("after")).limit(number("limit"))
)
VERSION = select(_version).where(_version.c.version == text("version"))
JOURNAL = (
    whole(tables.journal)
    .where(tables.journal.c.seq > number("after"), tables.has_place)
    .limit(number("limit"))
)
