"""What people ask of the engine, through the API; each request is answered."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from aioflow.model.access import AuditEntry, Role
from aioflow.model.backfill import Reprocess
from aioflow.model.dag import ValueKind
from aioflow.model.ids import RunNo, TriggerNo
from aioflow.model.states import TaskState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "AUDIT",
    "DAG_EVENTS",
    "EVENTS",
    "JOURNAL",
    "OF_RUN",
    "AccessRequest",
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
    "EndLogin",
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
    "OpenLogin",
    "Request",
    "Reseal",
    "Resealed",
    "RevokeToken",
    "SetAccount",
    "SetPaused",
    "SetPool",
    "SetValue",
    "ShowHolders",
    "ShowPools",
    "StartBackfill",
    "Unquarantine",
)


OF_RUN = "@run"
"""Where a task is named: none of them, but the run itself."""

EVENTS = "named_event"
JOURNAL = "journal"
DAG_EVENTS = "dag_event"
AUDIT = "audit"


class CreateRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Start a run. Answered with ``(run_id, created)``.

    Asking again with the same ``key`` (or ``run_id`` and conf) answers with the same run.
    """

    dag_id: str
    run_id: str | None = None
    conf: bytes | None = None
    logical_date: Timestamp | None = None
    key: str | None = None


class StartBackfill(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make runs for the slots of a range. Answered with its number, and whether it is new.

    Attributes:
        first, last: Both inclusive.
        max_active: How many runs of it at once; 0 for the DAG's ``max_active_runs``.
        key: Its idempotency key; with the same it is the backfill begun then, even if that is over.
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
    """End a backfill now, and its runs that go on."""

    backfill_no: int


class CancelRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a run now. Answered with its state; cancelling an ended run changes nothing."""

    run_id: str


class ClearTasks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Have tasks of a run begin anew. Answered with how many those are, and the run's state.

    The run goes on when all have been cleared. The same ``key`` again gives the same answer.

    Attributes:
        tasks: Their ids; empty for all.
        map_index: Of a mapped task: which child; -1 for all.
        downstream: Whatever comes after them, too.
        failed: Only those that failed, or could not run because others had, or were cancelled.
        round: Of tasks in loops: the round their loops go back to; -1 for the beginning.
        latest: Move the run to the newest version of its DAG, or refuse.
    """

    run_id: str
    tasks: tuple[str, ...] = ()
    map_index: int = -1
    downstream: bool = False
    failed: bool = False
    key: str | None = None
    round: int = -1
    latest: bool = False


class Mark(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Say how tasks of a run have ended, or the run. Answered as ``ClearTasks`` is.

    The run goes on, or is over, when all of them have been marked. What stands so already is left
    as it is, so asking again changes nothing.

    Attributes:
        state: ``SUCCESS`` or ``FAILED``.
        tasks: Their ids; empty for the run itself.
        map_index: Of a mapped task: which child; -1 for all.
    """

    run_id: str
    state: TaskState
    tasks: tuple[str, ...] = ()
    map_index: int = -1


class DeleteRun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Have nobody see an ended run any more; its rows and files go afterwards."""

    run_id: str


class DeleteDag(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Forget a DAG whose file is gone, and of which no run goes on. Answered ``None``.

    Attributes:
        only_asks: Whether that could be done, is the question; nothing happens.
    """

    dag_id: str
    only_asks: bool = False


class EraseRows(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete rows of a run that is being deleted; what is gone already is. Answered ``None``."""

    run_no: RunNo
    table: str
    keys: list[tuple[Any, ...]]


class EraseOld(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete rows that belong to no run and have been kept for long enough. Answered ``None``.

    Attributes:
        table: ``EVENTS``, ``DAG_EVENTS``, ``JOURNAL`` or ``AUDIT``.
        numbers: The keys of the rows.
    """

    table: str
    numbers: list[int]


class EraseVersions(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete versions that nothing refers to any more. Answered with how many those are.

    Whoever asks has seen that no run of the database has one of them.
    """

    versions: list[str]


class SetPaused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Pause or resume a DAG: a paused one starts no scheduled run. Answered with the flag."""

    dag_id: str
    paused: bool


class Explain(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask what tasks of a live run wait for. Answered with ``{(position, index): Wait}``.

    Attributes:
        task_nos: Which ones; empty for the run itself, answered under ``(-1, -1)``.
    """

    run_id: str
    tasks: tuple[tuple[int, int], ...] = ()


class ExplainChildren(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask what children of a task wait for. Answered with ``[ChildrenCause]``, or ``None``."""

    run_id: str
    position: int


class CountTasks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask how the tasks of runs stand. Answered with ``{run_id: [(position, state, count)]}``.

    Those that are not live are left out.
    """

    run_ids: tuple[str, ...]


class SetPool(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Limit a pool, or lift its limit. Answered with whether that changed anything.

    Attributes:
        slots: Weights that may run at once; ``None`` for no limit.
        include_deferred: Whether tasks weigh on it while they are deferred, too.
    """

    name: str
    slots: int | None
    include_deferred: bool = False


class ShowPools(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask for the limited pools. Answered with ``[(PoolRow, slots in use)]`` by name."""


class DrainNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Have a node take no more work, or take some again. Answered with whether that is new."""

    node_no: int
    is_drained: bool


class ShowHolders(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Ask who has a pool. Answered with ``[Holder]``, at most ``limit``."""

    name: str
    limit: int = 100


class Holder(msgspec.Struct, frozen=True):
    """A task that has a part of a pool.

    Attributes:
        weight: How much of it.
        is_waiting: It keeps that while it is deferred.
    """

    run_id: str
    dag_id: str
    position: int
    map_index: int
    weight: int
    since: Timestamp | None
    is_waiting: bool


class Unquarantine(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let the triggers of a class live with the others again. Answered with whether that is new."""

    class_path: str


class FireTrigger(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give a waiting task the event its trigger has not. Answered with ``(run, task, index)``.

    Attributes:
        payload: msgpack.
        key: As of an event that the trigger yields.
    """

    trigger_no: TriggerNo
    payload: bytes
    key: str | None = None


class EmitEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Store a named event. Answered with ``(event_no, created)``.

    Asking again with the same ``request`` answers with the same event.

    Attributes:
        data: msgpack.
    """

    name: str
    key: str | None
    data: bytes
    request: str | None = None


class SetValue(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Keep a secret, a connection or a variable, in place of what it was. Answered with ``None``.

    Attributes:
        value: msgpack; ``None`` to have it gone.
    """

    kind: ValueKind
    name: str
    value: bytes | None

    def __repr__(self) -> str:
        return f"SetValue({self.kind} {self.name!r})"  # it may come to stand in a log


class Reseal(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Seal anew what is sealed, with the key that seals now. Answered with a ``Resealed``.

    Attributes:
        after: Which trigger was the last; ``None`` for the values, which come first.
    """

    after: TriggerNo | None = None


class Resealed(msgspec.Struct, frozen=True):
    """A page of what is sealed.

    Attributes:
        count: Sealed anew.
        unopened: Left as they are, since no key at hand opens them.
        after: For the next page; ``None`` behind the last one.
    """

    count: int
    unopened: int
    after: TriggerNo | None


class CreateAccount(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let a person log in. Answered with the ``AccountRow``.

    Attributes:
        secret: Argon2's text.
    """

    name: str
    secret: bytes
    role: Role

    def __repr__(self) -> str:
        return f"CreateAccount({self.name!r})"  # it may come to stand in a log


class SetAccount(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Change an account, which ends its sessions. Answered with the ``AccountRow``.

    One that is disabled has no tokens any more, and one with a smaller role none with a larger.

    Attributes:
        secret, role, is_disabled: ``None`` for what stays.
        seen: The ``secret`` that a password was compared with, which must still be that.
        keeps: The session that goes on.
    """

    name: str
    secret: bytes | None = None
    role: Role | None = None
    is_disabled: bool | None = None
    seen: bytes | None = None
    keeps: int | None = None

    def __repr__(self) -> str:
        return f"SetAccount({self.name!r})"


class DeleteAccount(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete an account, which ends its sessions. Answered with how many tokens that revoked."""

    name: str


class OpenLogin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Begin a session. Answered with the ``LoginRow``.

    Attributes:
        name: Of the account, or ``HOME``.
        seen: The ``secret`` that the password was compared with, which must still be that.
        digest: Of what the cookie holds.
        replaces: The digest of the session that this one comes in place of.
    """

    name: str
    seen: bytes | None
    digest: bytes
    expires_at: Timestamp
    address: str
    replaces: bytes | None = None

    def __repr__(self) -> str:
        return f"OpenLogin({self.name!r})"


class EndLogin(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a session. Answered ``None``."""

    login_no: int


class CreateToken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let a program in. Answered with the ``TokenRow``."""

    name: str
    digest: bytes
    role: Role
    scopes: tuple[str, ...] | None
    created_by: str
    expires_at: Timestamp | None = None

    def __repr__(self) -> str:
        return f"CreateToken({self.name!r})"


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Have a token be good for nothing. Answered with the ``TokenRow``; again it stays so."""

    token_no: int


class NoteUse(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Say when tokens were used last. Answered ``None``.

    Attributes:
        uses: ``(token_no, instant)``.
    """

    uses: tuple[tuple[int, Timestamp], ...]


class Note(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Put lines into the audit that no other request puts there. Answered ``None``."""

    lines: tuple[AuditEntry, ...]


AccessRequest: TypeAlias = (
    CreateAccount
    | SetAccount
    | DeleteAccount
    | OpenLogin
    | EndLogin
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
    | DeleteDag
    | DeleteRun
    | EraseRows
    | EraseOld
    | EraseVersions
    | SetPaused
    | SetPool
    | ShowPools
    | ShowHolders
    | DrainNode
    | Explain
    | ExplainChildren
    | CountTasks
    | Unquarantine
    | FireTrigger
    | EmitEvent
    | SetValue
    | Reseal
    | AccessRequest
)
