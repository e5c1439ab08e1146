"""Requests of the API to the engine. Each request gets a response."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from aioflow.model.access import AuditEntry, Role
from aioflow.model.dag import Reprocess, ValueKind
from aioflow.model.history import HistoryRow
from aioflow.model.ids import RunNo, TriggerNo
from aioflow.model.notes import OF_WHOLE_RUN
from aioflow.model.pool_usage import PoolUsageKey
from aioflow.model.states import RunState, TaskState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "AUDIT",
    "DAG_EVENTS",
    "EVENTS",
    "HISTORY",
    "JOURNAL",
    "OF_RUN",
    "POOL_USAGE",
    "AccessRequest",
    "AnswerDecision",
    "Answered",
    "CancelBackfill",
    "CancelRun",
    "ClearTasks",
    "CountTasks",
    "CreateAccount",
    "CreateRun",
    "CreateToken",
    "DeleteAccount",
    "DeleteDag",
    "DeleteRun",
    "DrainNode",
    "EmitEvent",
    "EndOtherSessions",
    "EndSession",
    "EraseHistory",
    "EraseOld",
    "EraseRows",
    "EraseVersions",
    "Explain",
    "ExplainChildren",
    "FireTrigger",
    "Holder",
    "Mark",
    "Note",
    "NoteUse",
    "OpenSession",
    "PoolSample",
    "Preview",
    "RecordPoolUsage",
    "Reencrypt",
    "Reencrypted",
    "Request",
    "RevokeToken",
    "SetAccount",
    "SetNote",
    "SetPaused",
    "SetPool",
    "SetValue",
    "Share",
    "ShowHolders",
    "ShowPools",
    "ShowShares",
    "ShowWaiters",
    "StartBackfill",
    "TouchedTask",
    "Unquarantine",
    "Waiter",
)


OF_RUN = "@run"
"""Stands for the run itself in places that otherwise name a task."""

EVENTS = "named_event"
JOURNAL = "journal"
DAG_EVENTS = "dag_event"
AUDIT = "audit"
HISTORY = "history"
POOL_USAGE = "pool_usage"


class CreateRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Create a run. Answered with ``(run_id, created)``.

    A repeated request with the same ``key`` (or ``run_id`` and conf) is answered with the same run.
    """

    dag_id: str
    run_id: str | None = None
    conf: bytes | None = None
    logical_date: Timestamp | None = None
    key: str | None = None


class StartBackfill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Create runs for the fire times of a range. Answered with ``(backfill_no, created)``.

    Attributes:
        first, last: The range of fire times, both inclusive.
        max_active: Maximum number of its live runs; 0 for the DAG's ``max_active_runs``.
        key: Its idempotency key. The same key returns the same backfill, even if that has ended.
    """

    dag_id: str
    first: Timestamp
    last: Timestamp
    reprocess: Reprocess = "none"
    max_active: int = 0
    is_reverse: bool = False
    conf: bytes | None = None
    key: str | None = None


class CancelBackfill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Cancel a backfill and its live runs."""

    backfill_no: int


class CancelRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Cancel a run. Answered with its state. Cancelling an ended run changes nothing."""

    run_id: str


class ClearTasks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Clear tasks of a run. Answered with the number of cleared tasks, and the run's state.

    The run resumes when all tasks have been cleared. The same ``key`` returns the same response.

    Attributes:
        tasks: Their ids; empty for all.
        map_index: The child of a mapped task; -1 for all.
        map_indexes: Several children of the one mapped task in ``tasks``; empty for all.
        downstream: Whether to clear all tasks downstream of them as well.
        failed: Whether to clear only tasks that failed, were ``upstream_failed``, or were
            cancelled.
        latest: Whether to move the run to the newest version of its DAG. If that is impossible, the
            request is refused.
        dry_run: Whether to change nothing, and answer with a ``Preview``. The request then has no
            ``key``.
    """

    run_id: str
    tasks: tuple[str, ...] = ()
    map_index: int = -1
    downstream: bool = False
    failed: bool = False
    key: str | None = None
    latest: bool = False
    dry_run: bool = False
    map_indexes: tuple[int, ...] = ()


class Mark(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Set the final state of tasks of a run, or of the run. Answered like ``ClearTasks``.

    The run resumes or ends when all tasks have been marked. Tasks that are already in that state
    are not changed, so the request is idempotent.

    Attributes:
        state: ``SUCCESS`` or ``FAILED``.
        tasks: Their ids; empty for the run itself.
        map_index: The child of a mapped task; -1 for all.
        dry_run: Whether to change nothing, and answer with a ``Preview``.
    """

    run_id: str
    state: TaskState
    tasks: tuple[str, ...] = ()
    map_index: int = -1
    dry_run: bool = False


class TouchedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of which some instances would be cleared or marked.

    Attributes:
        states: Number of these instances by current state. A task that is not mapped has one
            instance.
        is_marked: Whether they get the state of the mark; otherwise they are cleared.
    """

    task_id: str
    states: dict[TaskState, int]
    is_marked: bool = False


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a clear or mark with ``dry_run``.

    Attributes:
        state: The current state of the run.
        tasks: The tasks that would be cleared or marked, in the order of the DAG.
        upstream_failed: Downstream tasks that would stay ``upstream_failed``.
    """

    state: RunState
    tasks: list[TouchedTask]
    upstream_failed: list[str]


class SetNote(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Set or delete the note on a run or one of its tasks. Answered with the ``NoteRow``, if any.

    Attributes:
        task: The name of the task instance, for the audit log; empty for the run.
        task_index, map_index: The indexes of the task instance; both -1 for the run.
        text: ``None`` to delete the note.
    """

    run_id: str
    task: str = ""
    task_index: int = OF_WHOLE_RUN
    map_index: int = -1
    text: str | None = None


class DeleteRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Hide an ended run. Its rows and files are deleted afterwards."""

    run_id: str


class DeleteDag(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete a DAG whose file was deleted and that has no live run. Answered with ``None``.

    Attributes:
        only_asks: Whether to only check that the DAG could be deleted.
    """

    dag_id: str
    only_asks: bool = False


class EraseRows(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete rows of a run that is being deleted. Idempotent. Answered with ``None``."""

    run_no: RunNo
    table: str
    keys: list[tuple[Any, ...]]


class EraseOld(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete rows that belong to no run and are older than their retention. Answered with ``None``.

    Attributes:
        table: ``EVENTS``, ``DAG_EVENTS``, ``JOURNAL`` or ``AUDIT``.
        numbers: The keys of the rows.
    """

    table: str
    numbers: list[int]


class EraseHistory(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete rows of the history. Answered with ``None``.

    Attributes:
        is_merged: Whether the counts of the rows are first added to the daily rows.
    """

    rows: list[HistoryRow]
    is_merged: bool = False


class EraseVersions(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete versions that nothing refers to any more. Answered with the number of deletions.

    The caller has checked that no run in the database uses any of them.
    """

    versions: list[str]


class SetPaused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Pause or resume a DAG. A paused DAG starts no scheduled runs. Answered with ``paused``."""

    dag_id: str
    paused: bool


class Explain(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Explain what tasks of a live run wait for. Answered with ``{(task_index, index): Wait}``.

    The run itself is always included, under ``(-1, -1)``.

    Attributes:
        tasks: Task index and map index of each; empty for the run alone.
    """

    run_id: str
    tasks: tuple[tuple[int, int], ...] = ()


class ExplainChildren(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Explain what children of a task wait for. Answered with ``[ChildrenCause]``, or ``None``."""

    run_id: str
    task_index: int


class CountTasks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Count tasks of runs by state. Answered with ``{run_id: [(task_index, state, count)]}``.

    Runs that are not live are omitted.
    """

    run_ids: tuple[str, ...]


class SetPool(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Limit a pool, or remove its limit. Answered with whether anything changed.

    Attributes:
        slots: Number of slots; ``None`` for no limit.
        include_deferred: Whether deferred tasks use slots of the pool as well.
    """

    name: str
    slots: int | None
    include_deferred: bool = False


class PoolSample(NamedTuple):
    """The current usage of a pool."""

    pool: str
    slots: int
    used: int
    queued: int


class RecordPoolUsage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Store the usage of pools in this minute. Answered with ``None``.

    Attributes:
        expired: Keys of samples to delete.
    """

    pools: tuple[PoolSample, ...]
    expired: tuple[PoolUsageKey, ...] = ()


class ShowPools(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Return the limited pools. Answered with ``[(PoolRow, slots in use)]`` by name."""


class DrainNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Drain or undrain a node. Answered with whether its state changed."""

    node_no: int
    is_drained: bool


class ShowHolders(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Return the tasks that use a pool. Answered with ``[Holder]``, at most ``limit``."""

    name: str
    limit: int = 100


class ShowShares(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Return how many slots of a pool the tasks of each run use.

    Answered with ``[Share]``, largest first, from a bounded sample of the tasks.
    """

    name: str


class Share(msgspec.Struct, frozen=True):
    """The number of slots of a pool that the tasks of one run use."""

    run_id: str
    dag_id: str
    slots: int


class Holder(msgspec.Struct, frozen=True):
    """A task that uses slots of a pool.

    Attributes:
        weight: The number of slots.
        is_waiting: Whether the task is deferred now, and keeps the slots while it waits.
    """

    run_id: str
    dag_id: str
    task_index: int
    map_index: int
    weight: int
    since: Timestamp | None
    is_waiting: bool


class ShowWaiters(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Return the entries that wait for slots of a pool, in order. Answered with ``[Waiter]``."""

    name: str
    limit: int = 100


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """A task, or the remaining children of a mapped task, waiting for slots of a pool.

    Attributes:
        children: Number of waiting children of a mapped task; 0 for a single task.
        weight: The number of slots that each task needs.
        since: Since when it has waited; ``None`` for a mapped task.
    """

    run_id: str
    dag_id: str
    task_index: int
    map_index: int
    children: int
    weight: int
    priority: int
    since: Timestamp | None


class Unquarantine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Move a class's triggers out of quarantine. Answered with whether it was in quarantine."""

    class_path: str


class FireTrigger(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Send an event to a waiting task in place of its trigger.

    Answered with ``(run_id, task_id, map_index)``.

    Attributes:
        payload: msgpack.
        key: The key of the event, as a trigger may yield it; optional.
    """

    trigger_no: TriggerNo
    payload: bytes
    key: str | None = None


class AnswerDecision(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Vote on a decision that a task waits for. Answered with an ``Answered``.

    Attributes:
        answer: msgpack of plain JSON types that fit the form; for an approval, of a bool.
        link_account: The account for which a signed link was made; ``None`` for a group, or if the
            caller has no link.
        comment: Why, in the words of the person; one line.
    """

    decision_no: TriggerNo
    answer: bytes
    link_account: int | None = None
    comment: str = ""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a decision after a vote.

    Attributes:
        is_yes: Whether the vote approves, or fills in the form.
        votes, approvals: How many people have voted, and how many must approve.
        is_over: Whether the vote has settled the decision.
        link: The assignee whose signed link was used; empty for none.
        comment: What the person said about the vote.
    """

    decision_no: TriggerNo
    run_id: str
    task_id: str
    is_yes: bool
    has_form: bool
    votes: int
    approvals: int
    is_over: bool
    link: str = ""
    comment: str = ""


class EmitEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Store a named event. Answered with ``(event_no, created)``.

    A repeated request with the same ``request`` is answered with the same event.

    Attributes:
        data: msgpack.
    """

    name: str
    key: str | None
    data: bytes
    request: str | None = None


class SetValue(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Set or replace a secret, a connection or a variable. Answered with ``None``.

    Attributes:
        value: msgpack; ``None`` to delete it.
    """

    kind: ValueKind
    name: str
    value: bytes | None

    def __repr__(self) -> str:
        return f"SetValue({self.kind} {self.name!r})"  # it may be logged


Encrypted: TypeAlias = Literal["value", "trigger", "decision"]
"""The kinds of encrypted rows, in the order in which a key rotation processes them."""


class Reencrypt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Re-encrypt stored values with the current key, one page. Answered with a ``Reencrypted``.

    The values come first, then the triggers by number, then the decisions, newest first.

    Attributes:
        of: The kind of the rows in the page.
        after: The last trigger or decision of the previous page; ``None`` for the first page.
    """

    of: Encrypted = "value"
    after: TriggerNo | None = None


class Reencrypted(msgspec.Struct, frozen=True):
    """The result of re-encrypting one page of values.

    Attributes:
        count: Number of re-encrypted values.
        unopened: Number of values left unchanged, because no available key decrypts them.
        next: The request for the next page; ``None`` after the last one.
    """

    count: int
    unopened: int
    next: Reencrypt | None


class CreateAccount(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Create an account. Answered with the ``AccountRow``.

    Attributes:
        secret: The encoded Argon2 hash.
    """

    name: str
    secret: bytes
    role: Role
    groups: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"CreateAccount({self.name!r})"  # it may be logged


class SetAccount(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Change an account and end its sessions. Answered with the ``AccountRow``.

    If the account is disabled, its tokens are revoked. If its role is lowered, tokens with a higher
    role are limited to it.

    Attributes:
        secret, role, is_disabled, groups: ``None`` to leave the value unchanged.
        seen: The ``secret`` against which a password was verified. It must not have changed since.
        keeps: The session that does not end.
    """

    name: str
    secret: bytes | None = None
    role: Role | None = None
    is_disabled: bool | None = None
    groups: tuple[str, ...] | None = None
    seen: bytes | None = None
    keeps: int | None = None

    def __repr__(self) -> str:
        return f"SetAccount({self.name!r})"


class DeleteAccount(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete an account and end its sessions. Answered with the number of revoked tokens."""

    name: str


class OpenSession(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Open a session. Answered with the ``SessionRow``.

    Attributes:
        name: The name of the account, or ``HOME``.
        seen: The ``secret`` against which the password was verified. It must not have changed
            since.
        digest: The digest of the cookie's secret.
        replaces: The digest of the session that this one replaces.
        agent: The browser's description of itself.
        replaces_unused_since: End the sessions with the same name, address and browser that were
            last used before this timestamp; ``None`` for none.
    """

    name: str
    seen: bytes | None
    digest: bytes
    expires_at: Timestamp
    address: str
    replaces: bytes | None = None
    agent: str = ""
    replaces_unused_since: Timestamp | None = None

    def __repr__(self) -> str:
        return f"OpenLogin({self.name!r})"


class EndSession(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a session. Answered with the ``SessionRow``."""

    session_no: int


class EndOtherSessions(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End all sessions of an account except one. Answered with the number of ended sessions."""

    name: str
    keeps: int | None = None


class CreateToken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Create an API token. Answered with the ``TokenRow``."""

    name: str
    digest: bytes
    role: Role
    scopes: tuple[str, ...] | None
    created_by: str
    expires_at: Timestamp | None = None

    def __repr__(self) -> str:
        return f"CreateToken({self.name!r})"


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Revoke a token. Answered with the ``TokenRow``. Idempotent."""

    token_no: int


class NoteUse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Record when tokens and sessions were last used. Answered with ``None``.

    Attributes:
        uses: ``(token_no, timestamp)``.
        session_uses: ``(session_no, timestamp)``.
    """

    uses: tuple[tuple[int, Timestamp], ...]
    session_uses: tuple[tuple[int, Timestamp], ...] = ()


class Note(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Add audit entries for actions for which no other request is sent. Answered with ``None``."""

    lines: tuple[AuditEntry, ...]


AccessRequest: TypeAlias = (
    CreateAccount
    | SetAccount
    | DeleteAccount
    | OpenSession
    | EndSession
    | EndOtherSessions
    | CreateToken
    | RevokeToken
    | NoteUse
    | Note
)


Request: TypeAlias = (
    CreateRun
    | StartBackfill
    | CancelBackfill
    | CancelRun
    | ClearTasks
    | Mark
    | SetNote
    | DeleteDag
    | DeleteRun
    | EraseRows
    | EraseOld
    | EraseHistory
    | EraseVersions
    | SetPaused
    | SetPool
    | RecordPoolUsage
    | ShowPools
    | ShowHolders
    | ShowWaiters
    | ShowShares
    | DrainNode
    | Explain
    | ExplainChildren
    | CountTasks
    | Unquarantine
    | FireTrigger
    | AnswerDecision
    | EmitEvent
    | SetValue
    | Reencrypt
    | AccessRequest
)
