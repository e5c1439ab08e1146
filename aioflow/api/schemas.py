"""JSON schemas of the responses that scripts rely on, including waits and their causes.

Timestamps are encoded as ISO 8601 in UTC with a ``Z``, states as their lower-case names, and values
that JSON does not have as the closest JSON value. If a row is damaged, ``damaged`` or
``unreadable`` is shown instead of its value.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import msgspec

from aioflow.author.codec import DEPTH_LIMIT, decode
from aioflow.core.state.crash_attribution import LoopBlocker
from aioflow.errors import RequestError
from aioflow.model.notes import NoteRow
from aioflow.model.rows import DAMAGED, Damage, RunRow, TaskRow, is_damage
from aioflow.model.states import Failure, RunState, TaskState, Wait, WaitKind
from aioflow.model.timestamps import Timestamp, to_datetime, to_timestamp

__all__ = (
    "CauseView",
    "ChainView",
    "DagDetailView",
    "DagView",
    "DamageView",
    "ErrorView",
    "HealthView",
    "NoteView",
    "PolledWait",
    "RunSummary",
    "RunView",
    "ShareView",
    "TargetView",
    "TaskSpecView",
    "TaskView",
    "TriggerView",
    "Triggered",
    "WaitView",
    "damage_view",
    "error_view",
    "instant",
    "iso",
    "plain",
    "plain_bytes",
    "plain_fields",
    "quarantine_reason",
    "run_state_name",
    "shown_state",
    "slow_view",
    "summary",
    "task_state_name",
    "unreadable",
    "wait_view",
)

_SLOT_WAITS = frozenset({WaitKind.SLOT, WaitKind.LIMIT, WaitKind.HOST})


class TargetView(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a wait, with the ids for a link to it.

    Attributes:
        type: ``pool``, ``file``, ``event``, ``run``, ``dag``, ``time``, ``url``, ``object``,
            ``executor``, ``decision`` or ``trigger``.
        name: The name of the pool, the path of the file, the id of the run ...
        dag_id, run_id, task_id: The DAG, run and task to which the target belongs, if any.
        key: The key of an event.
        used, all: The used slots and all slots of a pool, or the ended tasks and all tasks of a
            run.
        state: The state of a run.
    """

    type: str
    name: str
    dag_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    key: str | None = None
    used: int | None = None
    all: int | None = None
    state: str | None = None


class ShareView(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of a pool that the tasks of one run use."""

    run_id: str
    dag_id: str
    slots: int


class PolledWait(Wait, frozen=True, kw_only=True):
    """A wait for something that is polled.

    Attributes:
        last_check_at, next_check_at: Times of the last and the next poll, if known.
        last_answer: What the last poll found, if reported.
        label: What the wait is for, in its author's words.
        target: What the trigger checks; only for a trigger of the catalogue.
        fires_at: The time at which the wait ends, if it is a wait for a time.
    """

    last_check_at: Timestamp | None = None
    next_check_at: Timestamp | None = None
    last_answer: str | None = None
    fires_at: Timestamp | None = None
    label: str | None = None
    target: TargetView | None = None


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """The wait of a task or run; see ``model.Wait``.

    Attributes:
        trigger_id: The trigger that the task waits for, if any.
        last_check_at, next_check_at: Times of the last and the next check, if known.
        last_answer: What the last check found, such as ``not met`` or an error, if known.
        every_seconds: How often a sensor checks, if always at the same interval.
        label: What the wait is for, in the words of the task's author.
        fires_at: The time at which the wait ends, if it is a wait for a time. ``until`` is the
            deadline.
    """

    kind: str
    detail: str
    since: str | None
    until: str | None
    label: str | None = None
    trigger_id: int | None = None
    last_check_at: str | None = None
    next_check_at: str | None = None
    last_answer: str | None = None
    every_seconds: float | None = None
    fires_at: str | None = None


class ErrorView(msgspec.Struct, frozen=True, kw_only=True):
    """The error of a failed try; see ``model.Failure``."""

    type: str
    message: str
    reason: str


class CauseView(msgspec.Struct, frozen=True, kw_only=True):
    """A link in a chain of causes: a task, and what it waits for or why it failed.

    Attributes:
        depth: Distance from the start of the chain. The links that follow with a depth greater by
            one are what the task waits for, or why it never ran.
        run_id: The run of the task. The links of a chain have different runs if a task waits for a
            task of the previous run.
        waiting_on: ``None`` for a task that is not waiting now.
        count: Number of children that this link represents, in the same state for the same cause.
        error: The error of a task that failed itself.
        text: The cause as one sentence, without times.
        total: Number of all children of the mapped task; ``None`` for a task without children.
        target: What the task waits for, in a form that can be linked to; ``None`` if that has no
            name.
        shares: The runs that use the pool for which the task waits, the largest share first.
        actions: What a person may do about it; see ``waits.sentences.actions``.
        usual_seconds: The median of such waits of the task in the last 30 days, if known.
    """

    depth: int
    run_id: str
    task_id: str
    map_index: int
    round: int
    map_label: str | None = None
    state: str
    waiting_on: WaitView | None
    count: int = 1
    error: ErrorView | None = None
    text: str = ""
    total: int | None = None
    target: TargetView | None = None
    shares: list[ShareView] = []
    actions: list[str] = []
    usual_seconds: float | None = None


class ChainView(msgspec.Struct, frozen=True, kw_only=True):
    """The chain of causes that prevent a run, or one of its tasks, from continuing.

    Attributes:
        text: The answer in one sentence, without times.
        timezone: The time zone of the DAG.
        more: Number of omitted links.
    """

    run_id: str
    dag_id: str
    state: str
    text: str
    timezone: str
    causes: list[CauseView]
    more: int


def shown_state(state: TaskState, run_state: RunState, wait: Wait | None) -> TaskState:
    """Return the state of a task; ``QUEUED`` for a pending child that only waits for a slot."""
    is_waiting = state is TaskState.PENDING and run_state is RunState.RUNNING
    if is_waiting and wait is not None and wait.kind in _SLOT_WAITS:
        return TaskState.QUEUED
    return state


def iso(at: Timestamp | None) -> str | None:
    """Format a timestamp as ISO 8601 in UTC; ``None`` if it is out of the calendar's range."""
    if at is None:
        return None
    try:
        moment = to_datetime(at)
    except OverflowError:
        return None
    return moment.replace(tzinfo=None).isoformat() + "Z"


def error_view(failure: Failure | None) -> ErrorView | None:
    """Return the JSON form of the error of a try."""
    if failure is None:
        return None
    return ErrorView(type=failure.type, message=failure.message, reason=failure.reason)


def wait_view(wait: Wait | None, state: TaskState | None = None) -> WaitView | None:
    """Return the JSON form of a wait.

    Args:
        state: The state of the waiting task. For a running task, a wait for the database is
            omitted, because it only means that the engine did not respond.
    """
    is_unknown = wait is not None and wait.kind is WaitKind.DATABASE
    if wait is None or (state is TaskState.RUNNING and is_unknown):
        return None
    polled = wait if isinstance(wait, PolledWait) else PolledWait(kind=wait.kind)
    return WaitView(
        kind=wait.kind.value,
        detail=wait.detail,
        since=iso(wait.since),
        until=iso(wait.until),
        label=polled.label,
        trigger_id=None if wait.kind is WaitKind.INTERVAL else wait.checked_by,
        last_check_at=iso(polled.last_check_at),
        next_check_at=iso(polled.next_check_at),
        last_answer=polled.last_answer,
        every_seconds=None if wait.interval_us is None else wait.interval_us / 1_000_000,
        fires_at=iso(polled.fires_at),
    )


class DamageView(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the database that cannot be read.

    Attributes:
        row: Its key.
        run_id, dag_id: The run and the DAG to which the row belongs, as far as they can be read.
    """

    table: str
    row: str
    column: str
    reason: str
    run_id: str | None
    dag_id: str | None


def damage_view(damage: Damage, run: RunRow | None) -> DamageView:
    """Return the JSON form of a damaged row."""
    return DamageView(
        table=damage.table,
        row=damage.key,
        column=damage.column,
        reason=damage.reason,
        run_id=None if run is None else run.run_id,
        dag_id=damage.dag_id if run is None else run.dag_id,
    )


def run_state_name(run: RunRow) -> str:
    """Return the name of a run's state; ``damaged`` if its row is damaged."""
    return DAMAGED if is_damage(run.quarantine) else run.state.label


def task_state_name(row: TaskRow) -> str:
    """Return the name of a task's state; ``damaged`` if its row is damaged."""
    is_damaged = row.failure is not None and row.failure.reason == DAMAGED
    return DAMAGED if is_damaged else row.state.label


def quarantine_reason(run: RunRow, damage: Damage | None) -> str | None:
    """Return the reason why a run starts no more tasks; ``None`` if the run is healthy."""
    return str(damage) if run.quarantine is None and damage is not None else run.quarantine


_EXACT = 1 << 53
"""Limit beyond which JSON parsers do not agree on the value of an integer."""

_LEVELS = DEPTH_LIMIT + 8
"""Maximum nesting depth of values that are shown."""

_REASON_LENGTH = 500
"""Maximum length of the reason why a value cannot be shown."""


class DagView(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG, or a file that defines no DAG and so has no id, version and timezone."""

    dag_id: str | None
    file: str
    version: str | None
    paused: bool
    schedule: str | None
    timezone: str | None
    next_run_at: str | None
    import_error: str | None
    tags: tuple[str, ...] = ()


class TaskSpecView(msgspec.Struct, frozen=True, kw_only=True):
    """A task as its DAG file defines it."""

    task_id: str
    body: str
    parents: tuple[str, ...]
    trigger_rule: str
    is_mapped: bool
    is_sensor: bool
    max_tries: int
    pool: str
    doc: str
    line: int


class DagDetailView(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG with all properties of its newest version."""

    dag_id: str
    file: str
    version: str
    paused: bool
    schedule: str | None
    trigger: TriggerView | None
    timezone: str
    next_run_at: str | None
    import_error: str | None
    catchup: bool
    missed: str
    max_active_runs: int
    isolated: tuple[str, ...]
    python: str
    parameters: tuple[str, ...]
    required: tuple[str, ...]
    params: dict[str, dict[str, Any]]
    tags: tuple[str, ...]
    doc: str
    tasks: list[TaskSpecView]


class Triggered(msgspec.Struct, frozen=True, kw_only=True):
    """The created run. If an earlier request created it, ``created`` is false."""

    run_id: str
    dag_id: str
    state: str
    created: bool


class EmittedView(msgspec.Struct, frozen=True, kw_only=True):
    """The stored event. If an earlier request stored it, ``created`` is false."""

    event_id: int
    name: str
    key: str | None
    at: str
    created: bool


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """A named event.

    Attributes:
        run_id: The run whose task emitted the event; ``None`` if there is no such run, or if it was
            deleted.
        data: The value if it takes at most 4 KiB, else ``{"size_bytes": n}``.
    """

    event_id: int
    name: str
    key: str | None
    at: str
    run_id: str | None
    data: Any


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list.

    Attributes:
        state: ``damaged`` if the row of the run cannot be read.
        quarantine: Why the run starts no more tasks; ``None`` for a healthy run.
        note: The text of the note on the run, if it has one.
        started_by: The person, the backfill or the calling run that started it; ``None`` if its
            schedule or an event did.
        is_waiting: Whether the run is in progress but only waits: none of its tasks is running or
            queued, and every started task is waiting. Only the active node knows this; other nodes
            return false.
    """

    run_id: str
    dag_id: str
    state: str
    cause: str
    logical_date: str | None
    created_at: str | None
    started_at: str | None
    ended_at: str | None
    version: str
    quarantine: str | None
    note: str | None = None
    started_by: str | None = None
    is_waiting: bool = False


class NoteView(msgspec.Struct, frozen=True, kw_only=True):
    """A note on a run, or on a task of the run.

    Attributes:
        task_id: ``None`` for the note on the run.
        map_index: -1 if it is not on a mapped child.
        round: The loop's iteration; 0 outside of loops.
        text: Plain text, possibly with several lines.
        author: Who last changed the note.
        at: When the note was last changed.
    """

    run_id: str
    task_id: str | None
    map_index: int
    round: int
    text: str
    author: str
    at: str


class TaskView(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a run.

    Attributes:
        map_index: -1 if it is not a mapped child.
        round: The loop's iteration, counted from 0; 0 outside of loops.
        map_label: A label set by the task's author; ``None`` until its body has started.
        state: ``damaged`` if its row cannot be read; ``error`` then contains the reason.
        try_number: 0 before the first try.
        result: The value if it takes at most 4 KiB, else ``{"size_bytes": n}``.
    """

    task_id: str
    map_index: int
    round: int
    map_label: str | None
    state: str
    try_number: int
    max_tries: int
    interruptions: int
    started_at: str | None
    ended_at: str | None
    waiting_on: WaitView | None
    error: ErrorView | None
    result: Any


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run with one page of its tasks; ``counts`` covers all of them.

    Attributes:
        state, quarantine: As in ``RunSummary``.
    """

    run_id: str
    dag_id: str
    state: str
    logical_date: str | None
    started_at: str | None
    ended_at: str | None
    conf: Any
    version: str
    quarantine: str | None
    counts: dict[str, int]
    tasks: list[TaskView]


class TriggerView(msgspec.Struct, frozen=True, kw_only=True):
    """The trigger of a deferred task, or a DAG trigger, which starts runs and has no run or task.

    Attributes:
        kind: ``time``, ``file``, ``run``, ``event``, ``http`` or ``object`` for the standard
            catalogue, ``timetable`` for a custom timetable, otherwise the name of the class.
        node: The node that hosts it; ``None`` if it is not hosted now.
        state: ``waiting``, ``fired``, ``ending``; ``trigger_capacity`` while all hosts are full;
            ``stopped`` while its DAG is paused and has ``if_paused="stop"``. For a trigger that
            starts runs, ``waiting`` or the reason why it does not run, such as ``paused``.
        events: Number of events so far, for a trigger that starts runs.
        shared_with: Number of other triggers that share its watch; ``None`` if unknown.
        next_check_at: Time of its next check, if known.
        last_check_at: Time of its last check, if known.
        fires_at: When a trigger for a point in time or a duration fires; ``null`` for others.
        label: What the wait is for, in the words of the task's author.
        map_label: The label of the waiting child.
        text: What the trigger waits for, in words, such as ``for the file /data/in/bank.csv``.
        payload: The fields of its event as JSON schemas, where known. Only for a single trigger.
    """

    trigger_id: int
    kind: str
    dag_id: str
    run_id: str | None
    task_id: str | None
    map_index: int
    round: int
    label: str | None = None
    map_label: str | None = None
    text: str | None = None
    payload: dict[str, dict[str, Any]] | None = None
    since: str
    deadline: str | None
    node: int | None
    shared_with: int | None
    next_check_at: str | None
    last_check_at: str | None
    fires_at: str | None = None
    state: str
    events: int | None
    detail: str


class SlowView(msgspec.Struct, frozen=True, kw_only=True):
    """Code that has blocked a shared event loop since the daemon was started.

    Attributes:
        kind: ``trigger`` for a class of triggers, ``task`` for an ``async def`` body.
        name: The class path, or ``DAG.TASK``.
        stalls: How often the code has blocked an event loop.
        longest_ms, total_ms: Duration of the longest stall, and of all stalls together.
        source_location: File, line and function of the last stall.
        run_id, task_id: The run and the task of the last stall.
        trigger_id: The trigger of the last stall; ``None`` for a task.
        quarantined: Whether the triggers of this class run in a separate host.
    """

    kind: str
    name: str
    stalls: int
    longest_ms: int
    total_ms: int
    source_location: str
    last_at: str | None
    run_id: str
    task_id: str
    trigger_id: int | None
    quarantined: bool


class HealthView(msgspec.Struct, frozen=True, kw_only=True):
    """The health of the daemon.

    Attributes:
        reason: The error if the database cannot be written to, or else the disk that is full; empty
            if there is no such problem.
        owed: Number of callbacks and alerts in the outbox.
    """

    status: str
    checks: dict[str, bool]
    reason: str
    owed: dict[str, int]


class CleanedView(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of expired data that was deleted, or that a dry run would delete.

    Attributes:
        runs: Runs. They are hidden now, and their rows, results and logs are deleted in the
            background.
        events: Named events.
        journal: Rows of the journal.
        logs: Runs whose logs were deleted.
        versions: Versions of DAG files that are no longer referenced.
        audit: Audit entries.
        history: Rows of the history.
        more: Whether more expired data is left.
    """

    runs: int = 0
    events: int = 0
    journal: int = 0
    logs: int = 0
    versions: int = 0
    audit: int = 0
    history: int = 0
    more: bool = False


def instant(text: str, what: str) -> Timestamp:
    """Parse an ISO 8601 timestamp. Without an offset, it is in UTC.

    Raises:
        RequestError: If it is not valid.
    """
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise RequestError(
            f"{what} {text!r} is not a timestamp; write it as 2026-01-31 or 2026-01-31T03:00:00Z"
        ) from exc
    return to_timestamp(moment)


def plain_bytes(body: bytes | None) -> Any:
    """Convert a stored value to JSON. A damaged value becomes ``unreadable`` with the reason."""
    if body is None:
        return None
    try:
        return plain(decode(body, where="the stored value"))
    except Exception as exc:  # noqa: BLE001 - damaged bytes let anything raise anything
        return unreadable(exc)


def plain_fields(body: bytes | None) -> dict[str, Any]:
    """Convert stored fields to JSON. Damaged fields become ``unreadable`` with the reason."""
    shown = {} if body is None else plain_bytes(body)
    if isinstance(shown, dict):
        return shown
    return {"unreadable": f"{type(shown).__name__} instead of named values"}


def unreadable(problem: Exception) -> dict[str, str]:
    """Return a placeholder for a damaged value. It contains the reason, cut to a maximum length."""
    message = _text(str(problem)) or type(problem).__name__
    return {"unreadable": message[:_REASON_LENGTH]}


def plain(value: Any, levels: int = _LEVELS) -> Any:
    """Return the closest JSON form of a value that is passed between tasks.

    Raises:
        ValueError: If it is nested more deeply than a value can be.
    """
    if not levels:
        raise ValueError(f"nested deeper than {_LEVELS}")
    match value:
        case None | bool():
            return value
        case str():
            return _text(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case int():
            return value if -_EXACT <= value <= _EXACT else _digits(value)
        case Mapping():
            return {_key(key): plain(item, levels - 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item, levels - 1) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case _:
            return _text(str(value))


def _key(key: Any) -> str:
    return str(plain(key))


def _digits(value: int) -> str:
    try:
        return str(value)
    except ValueError:  # more digits than Python converts, which would take too long
        return hex(value)


def _text(value: str) -> str:
    """Escape characters that are not valid text, such as undecodable bytes of a file name."""
    return value.encode(errors="backslashreplace").decode()


def slow_view(known: LoopBlocker) -> SlowView:
    """Return the JSON form of code that has blocked a shared event loop."""
    return SlowView(
        kind=known.kind,
        name=known.name,
        stalls=known.count,
        longest_ms=known.longest_ms,
        total_ms=known.total_ms,
        source_location=known.source_location,
        last_at=iso(known.last_at),
        run_id=known.run_id,
        task_id=known.task_id,
        trigger_id=known.number if known.kind == "trigger" else None,
        quarantined=known.is_quarantined,
    )


def summary(
    run: RunRow,
    damage: Damage | None = None,
    note: NoteRow | None = None,
    *,
    is_waiting: bool = False,
) -> RunSummary:
    """Return the list entry of a run.

    Args:
        damage: Known damage to another row of the run.
        note: The note on the run.
        is_waiting: Whether the run only waits.
    """
    return RunSummary(
        run_id=run.run_id,
        dag_id=run.dag_id,
        state=run_state_name(run),
        cause=run.cause,
        logical_date=iso(run.logical_date),
        created_at=iso(run.created_at),
        started_at=iso(run.started_at),
        ended_at=iso(run.ended_at),
        version=run.version,
        quarantine=quarantine_reason(run, damage),
        note=None if note is None else note.text,
        started_by=run.started_by,
        is_waiting=is_waiting,
    )
