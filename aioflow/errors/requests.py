"""Errors in a request: the caller asked for something that cannot be done."""

from __future__ import annotations

from aioflow.errors.root import AioflowError

__all__ = (
    "AccountExists",
    "AccountRefused",
    "BackfillRefused",
    "BadConf",
    "BadEvent",
    "BadPool",
    "BadValue",
    "DagBroken",
    "DagPresent",
    "DagRunning",
    "Forbidden",
    "KeyNotTaken",
    "LoginFailed",
    "NoSuchValue",
    "OutOfScope",
    "RequestError",
    "RunBeingDeleted",
    "RunExists",
    "RunQuarantined",
    "TimetableAway",
    "TimetableFailed",
    "TimetableSilent",
    "TokenExists",
    "TooManyLogins",
    "UnknownAccount",
    "UnknownBackfill",
    "UnknownClass",
    "UnknownDag",
    "UnknownEvent",
    "UnknownLogin",
    "UnknownNode",
    "UnknownRound",
    "UnknownRun",
    "UnknownTask",
    "UnknownToken",
    "UnknownTrigger",
    "UnknownVersion",
    "VersionDiffers",
    "WrongPassword",
)


class RequestError(AioflowError):
    """The caller asked for something that cannot be done."""

    code = "request"


class UnknownDag(RequestError):
    """No DAG with this id has been parsed."""

    code = "request.unknown_dag"

    def __init__(self, dag_id: str, *, is_reading: bool = False) -> None:
        """Make the error for a DAG.

        Args:
            is_reading: Whether DAG files that may define it are still being parsed.
        """
        reason = "the DAG files are still being read" if is_reading else "see `aioflow dags list`"
        super().__init__(f"there is no DAG {dag_id!r}; {reason}")
        self.dag_id = dag_id


class BackfillRefused(RequestError):
    """The requested backfill cannot be created now."""

    code = "request.backfill"


class UnknownBackfill(RequestError):
    """No active backfill has this number."""

    code = "request.unknown_backfill"

    def __init__(self, backfill_no: int) -> None:
        super().__init__(f"there is no backfill {backfill_no}; see `aioflow backfills list`")
        self.backfill_no = backfill_no


class UnknownEvent(RequestError):
    """No stored event has this number."""

    code = "request.unknown_event"

    def __init__(self, event_no: int) -> None:
        super().__init__(f"there is no event {event_no}; see `aioflow events list`")
        self.event_no = event_no


class UnknownNode(RequestError):
    """This daemon runs no node with this number."""

    code = "request.unknown_node"

    def __init__(self, node_no: int) -> None:
        super().__init__(f"there is no node {node_no} here; see `aioflow nodes list`")
        self.node_no = node_no


class UnknownTrigger(RequestError):
    """No waiting trigger has this number; it may have fired."""

    code = "request.unknown_trigger"

    def __init__(self, trigger_no: int) -> None:
        super().__init__(
            f"there is no trigger {trigger_no} that waits; see `aioflow triggers list`"
        )
        self.trigger_no = trigger_no


class UnknownClass(RequestError):
    """No trigger of this class has blocked its process since the daemon started."""

    code = "request.unknown_class"

    def __init__(self, class_path: str) -> None:
        super().__init__(
            f"no trigger of class {class_path!r} has held up its host; see `aioflow triggers slow`"
        )
        self.class_path = class_path


class UnknownVersion(RequestError):
    """The DAG has no such version, or the version was deleted."""

    code = "request.unknown_version"

    def __init__(self, dag_id: str, version: str) -> None:
        super().__init__(f"DAG {dag_id!r} has no version {version!r}")
        self.dag_id = dag_id
        self.version = version


class UnknownRun(RequestError):
    """No run has this id."""

    code = "request.unknown_run"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}; see `aioflow runs list`")
        self.run_id = run_id


class UnknownTask(RequestError):
    """The run has no such task, or the task has no such child or round."""

    code = "request.unknown_task"

    def __init__(self, run_id: str, task_id: str, map_index: int = -1) -> None:
        what = f"run {run_id!r} has no task {task_id!r}"
        if map_index >= 0:
            what = f"task {task_id!r} of run {run_id!r} has no child or iteration {map_index}"
        super().__init__(f"{what}; see `aioflow runs show {run_id}`")
        self.run_id = run_id
        self.task_id = task_id
        self.map_index = map_index


class UnknownRound(RequestError):
    """The loop of a task has not started this round yet."""

    code = "request.unknown_round"

    def __init__(self, run_id: str, task_id: str, number: int, begun: int) -> None:
        super().__init__(
            f"the loop of task {task_id!r} of run {run_id!r} has not begun round {number}; "
            f"its last one is {begun - 1}"
        )
        self.run_id = run_id
        self.task_id = task_id
        self.number = number
        self.begun = begun


class RunQuarantined(RequestError):
    """The run is quarantined: its rows are damaged, or the engine fails when it processes them."""

    code = "request.run_quarantined"

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id!r} is in quarantine: {reason}")
        self.run_id = run_id


class RunExists(RequestError):
    """A run with this id already exists, and was created by a different request."""

    code = "request.run_exists"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id!r} exists already; choose another --run-id")
        self.run_id = run_id


class RunBeingDeleted(RequestError):
    """The run with this id or idempotency key is being deleted, and some of its rows still exist.

    Attributes:
        key: The idempotency key that is still in use; empty if the id is.
    """

    code = "request.run_being_deleted"

    def __init__(self, run_id: str, key: str = "") -> None:
        what, other = ("id", "--run-id") if not key else (f"key {key!r}", "key")
        super().__init__(
            f"run {run_id!r} is being deleted, and its {what} is not free yet; "
            f"retry later, or choose another {other}"
        )
        self.run_id = run_id
        self.key = key


class BadConf(RequestError):
    """The conf of a run does not match the DAG's parameters."""

    code = "request.conf"


class BadEvent(RequestError):
    """The name, key or data of a named event is invalid."""

    code = "request.event"


class BadPool(RequestError):
    """The definition of a pool is invalid."""

    code = "request.pool"


class BadValue(RequestError):
    """A secret, connection or variable is invalid and was not stored."""

    code = "request.value"


class NoSuchValue(RequestError):
    """No secret, connection or variable of this name is stored."""

    code = "request.unknown_value"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name!r}; see `aioflow {kind}s list`")
        self.kind = kind
        self.name = name


class DagPresent(RequestError):
    """A DAG cannot be deleted while a file defines it."""

    code = "request.dag_present"

    def __init__(self, dag_id: str, file: str) -> None:
        super().__init__(
            f"DAG {dag_id!r} is defined in {file}; delete it, or take the DAG out of it, first"
        )
        self.dag_id = dag_id
        self.file = file


class DagRunning(RequestError):
    """A DAG cannot be deleted while runs of it are active."""

    code = "request.dag_running"

    def __init__(self, dag_id: str, runs: int) -> None:
        super().__init__(
            f"{runs} active runs of DAG {dag_id!r}; cancel them, or wait until they have ended: "
            f"`aioflow runs list --dag {dag_id}`"
        )
        self.dag_id = dag_id
        self.runs = runs


class DagBroken(RequestError):
    """The DAG's file fails to import, and no earlier working version is stored."""

    code = "request.dag_broken"

    def __init__(self, dag_id: str, reason: str) -> None:
        super().__init__(f"DAG {dag_id!r} cannot run: {reason}; fix its file, or restore it")
        self.dag_id = dag_id
        self.reason = reason


class VersionDiffers(RequestError):
    """The run cannot be moved to the DAG's newest version, because that differs too much.

    Attributes:
        version: The newest version.
    """

    code = "request.version_differs"

    def __init__(self, run_id: str, version: str, reason: str, *, hint: str = "") -> None:
        remedy = hint or "clear without --latest, or start a new run"
        super().__init__(
            f"run {run_id!r} cannot be moved to the newest version of its DAG, {version[:12]}: "
            f"{reason}; {remedy}"
        )
        self.version = version


class TimetableAway(RequestError):
    """Fire times come from a custom timetable, and no process is available to evaluate it."""

    code = "request.timetable_away"

    def __init__(self, dag_id: str) -> None:
        super().__init__(
            f"the timetable of DAG {dag_id!r} cannot be evaluated now: its host is just being "
            "started; ask again in a moment"
        )
        self.dag_id = dag_id


class TimetableFailed(RequestError):
    """A custom timetable raised an exception, or returned invalid fire times.

    Attributes:
        reason: What went wrong.
    """

    code = "request.timetable_failed"

    def __init__(self, dag_id: str, reason: str, file: str) -> None:
        super().__init__(
            f"the timetable of DAG {dag_id!r} cannot compute its next fire time: {reason}; "
            f"fix it in {file}, `aioflow dags next {dag_id}` evaluates its newest version"
        )
        self.dag_id = dag_id
        self.reason = reason


class TimetableSilent(RequestError):
    """A custom timetable did not answer in time, or crashed the process that evaluated it.

    Attributes:
        reason: Which of the two happened.
    """

    code = "request.timetable_silent"

    def __init__(self, dag_id: str, reason: str) -> None:
        super().__init__(
            f"the timetable of DAG {dag_id!r} did not compute its next fire time: {reason}; "
            "its `next_after` has to return at once, see `aioflow triggers slow`"
        )
        self.dag_id = dag_id
        self.reason = reason


class KeyNotTaken(RequestError):
    """The request has an idempotency key, but this endpoint accepts none.

    It stores only a digest of the secret, so a repeated request could not get the same answer.
    """

    code = "request.key_not_taken"

    def __init__(self) -> None:
        super().__init__(
            "no Idempotency-Key is accepted here: only a digest of the secret is stored, so the "
            "same response cannot be repeated; omit it, a name in use is refused anyway"
        )


class AccountRefused(RequestError):
    """The name, password or other property of a user or token is invalid."""

    code = "request.account"


class AccountExists(RequestError):
    """A user with this name already exists."""

    code = "request.account_exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is a user {name!r} already; see `aioflow users list`")
        self.name = name


class UnknownAccount(RequestError):
    """No user has this name."""

    code = "request.unknown_account"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no user {name!r}; see `aioflow users list`")
        self.name = name


class TokenExists(RequestError):
    """A valid token with this name already exists."""

    code = "request.token_exists"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is a token {name!r} already; revoke it, or use another name")
        self.name = name


class UnknownToken(RequestError):
    """No token has this number."""

    code = "request.unknown_token"

    def __init__(self, token_no: int) -> None:
        super().__init__(f"there is no token {token_no}; see `aioflow tokens list`")
        self.token_no = token_no


class UnknownLogin(RequestError):
    """No session has this number; it may have ended."""

    code = "request.unknown_session"

    def __init__(self, login_no: int) -> None:
        super().__init__(f"there is no session {login_no}; it may have ended")
        self.login_no = login_no


class LoginFailed(RequestError):
    """Login failed: wrong name or password, or a disabled user. The message does not say which."""

    code = "request.login"

    def __init__(self) -> None:
        super().__init__("the name or the password is wrong")


class WrongPassword(RequestError):
    """A password change failed: the current password is wrong, or there is no such user."""

    code = "request.password"

    def __init__(self) -> None:
        super().__init__("the name or the current password is wrong")


class TooManyLogins(RequestError):
    """Too many recent logins failed, or too many are waiting to be checked.

    Attributes:
        again_seconds: How many seconds to wait before the next attempt.
    """

    code = "request.login_rate"

    def __init__(self, again_seconds: int) -> None:
        super().__init__(f"too many logins have failed; try again in {again_seconds} s")
        self.again_seconds = again_seconds


class Forbidden(RequestError):
    """The caller is authenticated, but its role does not allow the request."""

    code = "request.forbidden"

    def __init__(self, role: str, needed: str) -> None:
        super().__init__(f"that needs the role {needed}; this is {role}")
        self.role = role
        self.needed = needed


class OutOfScope(RequestError):
    """The scopes of the token do not cover the request.

    The same error is raised whether the requested object exists or not.
    """

    code = "request.scope"

    def __init__(self) -> None:
        super().__init__("this token does not permit that; its scopes name other DAGs")
