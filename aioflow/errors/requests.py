"""Errors in a request: the caller requested something that is impossible or not allowed."""

from __future__ import annotations

from aioflow.errors.root import AioflowError, MessageTemplate

__all__ = (
    "AccountExists",
    "AccountRefused",
    "AlreadyVoted",
    "BackfillRefused",
    "BadAnswer",
    "BadConf",
    "BadEvent",
    "BadLink",
    "BadPattern",
    "BadPool",
    "BadValue",
    "DagBroken",
    "DagPresent",
    "DagRunning",
    "DecisionEnded",
    "Forbidden",
    "KeyNotTaken",
    "LoginFailed",
    "NoSuchValue",
    "NotAssigned",
    "OutOfScope",
    "RequestError",
    "RunBeingDeleted",
    "RunExists",
    "RunQuarantined",
    "TimetableAway",
    "TimetableFailed",
    "TimetableSilent",
    "TokenExists",
    "TooManyAnswers",
    "TooManyLogins",
    "UnknownAccount",
    "UnknownAsset",
    "UnknownAuditEntry",
    "UnknownBackfill",
    "UnknownClass",
    "UnknownDag",
    "UnknownDecision",
    "UnknownEvent",
    "UnknownNode",
    "UnknownRound",
    "UnknownRun",
    "UnknownSession",
    "UnknownTask",
    "UnknownToken",
    "UnknownTrigger",
    "UnknownVersion",
    "VersionDiffers",
    "WrongPassword",
)


class RequestError(AioflowError):
    """The caller requested something that is impossible or not allowed."""

    code = "request"


class UnknownDag(RequestError):
    """No DAG with this id has been parsed."""

    code = "request.unknown_dag"

    def __init__(self, dag_id: str, *, is_reading: bool = False) -> None:
        """Create the error for a DAG.

        Args:
            is_reading: Whether DAG files that may define the DAG are still being parsed.
        """
        reason = "the DAG files are still being read" if is_reading else "see `aioflow dags list`"
        super().__init__(f"there is no DAG {dag_id!r}; {reason}")
        self.dag_id = dag_id


class BackfillRefused(RequestError):
    """The requested backfill cannot be created now."""

    code = "request.backfill"


class UnknownBackfill(RequestError, MessageTemplate):
    """No active backfill has this number."""

    code = "request.unknown_backfill"
    message = "there is no backfill {backfill_no}; see `aioflow backfills list`"
    backfill_no: int


class UnknownEvent(RequestError, MessageTemplate):
    """No stored event has this number."""

    code = "request.unknown_event"
    message = "there is no event {event_no}; see `aioflow events list`"
    event_no: int


class UnknownAsset(RequestError, MessageTemplate):
    """No DAG updates this asset or waits for it."""

    code = "request.unknown_asset"
    message = "no DAG updates the asset {asset!r}, or waits for it; see `aioflow assets list`"
    asset: str


class UnknownNode(RequestError, MessageTemplate):
    """This daemon runs no node with this number."""

    code = "request.unknown_node"
    message = "there is no node {node_no} here; see `aioflow nodes list`"
    node_no: int


class UnknownTrigger(RequestError, MessageTemplate):
    """No waiting trigger has this number; it may have fired."""

    code = "request.unknown_trigger"
    message = "there is no trigger {trigger_no} that waits; see `aioflow triggers list`"
    trigger_no: int


class UnknownDecision(RequestError, MessageTemplate):
    """No decision has this number."""

    code = "request.unknown_decision"
    message = "there is no decision {decision_no}; see `aioflow decisions list`"
    decision_no: int


class DecisionEnded(RequestError):
    """The decision has ended: it was answered, or its task does not wait for it any more.

    Attributes:
        answer: msgpack of the answer; ``None`` for none.
    """

    code = "request.decision_ended"

    def __init__(self, decision_no: int, outcome: str, answer: bytes | None) -> None:
        """Create the error for a decision.

        Args:
            outcome: How it ended.
        """
        how = {
            "answered": "was answered already",
            "default": "was answered by its default, after its timeout",
            "timeout": "has timed out",
        }
        ended = how.get(outcome, "was withdrawn: its task does not wait for it any more")
        super().__init__(f"decision {decision_no} {ended}")
        self.outcome = outcome
        self.answer = answer


class AlreadyVoted(RequestError, MessageTemplate):
    """The person has already voted on this decision. Each person has one vote."""

    code = "request.already_voted"
    message = "{person} has voted on decision {decision_no} already; another person must"
    decision_no: int
    person: str


class NotAssigned(RequestError, MessageTemplate):
    """The caller may not answer this decision."""

    code = "request.not_assigned"
    message = "decision {decision_no} is not yours to answer: {reason}"
    decision_no: int
    reason: str


class BadAnswer(RequestError):
    """An answer does not fit the form of its decision.

    Attributes:
        fields: What is wrong, by field; the name ``""`` stands for the whole answer.
    """

    code = "request.bad_answer"

    def __init__(self, fields: dict[str, str]) -> None:
        """Create the error from what is wrong with each field."""
        super().__init__(
            "; ".join(f"{name}: {why}" if name else why for name, why in fields.items())
        )
        self.fields = fields


class BadLink(RequestError, MessageTemplate):
    """A signed link is invalid, or has expired."""

    code = "request.bad_link"
    message = "this link is not valid, or has expired; log in to answer"


class UnknownClass(RequestError, MessageTemplate):
    """No trigger of this class has blocked its event loop since the daemon started."""

    code = "request.unknown_class"
    message = "no trigger of class {class_path!r} has held up its host; see `aioflow triggers slow`"
    class_path: str


class UnknownVersion(RequestError, MessageTemplate):
    """The DAG has no such version, or the version was deleted."""

    code = "request.unknown_version"
    message = "DAG {dag_id!r} has no version {version!r}"
    dag_id: str
    version: str


class UnknownRun(RequestError, MessageTemplate):
    """No run has this id."""

    code = "request.unknown_run"
    message = "there is no run {run_id!r}; see `aioflow runs list`"
    run_id: str


class UnknownTask(RequestError):
    """The run has no such task, or the task has no such mapped child or loop iteration."""

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
    """The loop of a task has not started this iteration yet."""

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


class RunQuarantined(RequestError, MessageTemplate):
    """The run is quarantined: its rows are damaged, or the engine fails when it processes them."""

    code = "request.run_quarantined"
    message = "run {run_id!r} is in quarantine: {reason}"
    run_id: str
    reason: str


class RunExists(RequestError, MessageTemplate):
    """A run with this id already exists and was created by a different request."""

    code = "request.run_exists"
    message = "run {run_id!r} exists already; choose another --run-id"
    run_id: str


class RunBeingDeleted(RequestError):
    """The run with this id or idempotency key is being deleted, and some of its rows still exist.

    Attributes:
        key: The idempotency key that is still in use; empty if the id is in use.
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


class BadPattern(RequestError):
    """A pattern is not a valid regular expression, or searching for it takes too long."""

    code = "request.pattern"


class BadPool(RequestError):
    """The definition of a pool is invalid."""

    code = "request.pool"


class BadValue(RequestError):
    """A secret, connection or variable is invalid and was not stored."""

    code = "request.value"


class NoSuchValue(RequestError, MessageTemplate):
    """No secret, connection or variable with this name is stored."""

    code = "request.unknown_value"
    message = "there is no {kind} {name!r}; see `aioflow {kind}s list`"
    kind: str
    name: str


class DagPresent(RequestError, MessageTemplate):
    """A DAG cannot be deleted while a file defines it."""

    code = "request.dag_present"
    message = "DAG {dag_id!r} is defined in {file}; delete it, or take the DAG out of it, first"
    dag_id: str
    file: str


class DagRunning(RequestError, MessageTemplate):
    """A DAG cannot be deleted while runs of it are active."""

    code = "request.dag_running"
    message = (
        "{runs} active runs of DAG {dag_id!r}; cancel them, or wait until they have ended: "
        "`aioflow runs list --dag {dag_id}`"
    )
    dag_id: str
    runs: int


class DagBroken(RequestError, MessageTemplate):
    """The DAG's file cannot be imported, and no earlier working version is stored."""

    code = "request.dag_broken"
    message = "DAG {dag_id!r} cannot run: {reason}; fix its file, or restore it"
    dag_id: str
    reason: str


class VersionDiffers(RequestError):
    """The run cannot be moved to the DAG's newest version, which differs too much from the run's.

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


class TimetableAway(RequestError, MessageTemplate):
    """The fire times depend on a custom timetable, and no process is available to evaluate it."""

    code = "request.timetable_away"
    message = (
        "the timetable of DAG {dag_id!r} cannot be evaluated now: its host is just being "
        "started; ask again in a moment"
    )
    dag_id: str


class TimetableFailed(RequestError, MessageTemplate):
    """A custom timetable raised an exception, or returned invalid fire times.

    Attributes:
        reason: What went wrong.
    """

    code = "request.timetable_failed"
    message = (
        "the timetable of DAG {dag_id!r} cannot compute its next fire time: {reason}; "
        "fix it in {file}, `aioflow dags next {dag_id}` evaluates its newest version"
    )
    dag_id: str
    reason: str
    file: str


class TimetableSilent(RequestError, MessageTemplate):
    """A custom timetable did not answer in time, or crashed the process that evaluated it.

    Attributes:
        reason: Which of the two happened.
    """

    code = "request.timetable_silent"
    message = (
        "the timetable of DAG {dag_id!r} did not compute its next fire time: {reason}; "
        "its `next_after` has to return at once, see `aioflow triggers slow`"
    )
    dag_id: str
    reason: str


class KeyNotTaken(RequestError, MessageTemplate):
    """The request has an idempotency key, but this endpoint does not accept one.

    The endpoint stores only a digest of a secret, so a repeated request could not get the same
    answer.
    """

    code = "request.key_not_taken"
    message = (
        "no Idempotency-Key is accepted here: only a digest of the secret is stored, so the "
        "same response cannot be repeated; omit it, a name in use is refused anyway"
    )


class AccountRefused(RequestError):
    """The name, password or another property of a user or token is invalid."""

    code = "request.account"


class AccountExists(RequestError, MessageTemplate):
    """A user with this name already exists."""

    code = "request.account_exists"
    message = "there is a user {name!r} already; see `aioflow users list`"
    name: str


class UnknownAccount(RequestError, MessageTemplate):
    """No user has this name."""

    code = "request.unknown_account"
    message = "there is no user {name!r}; see `aioflow users list`"
    name: str


class TokenExists(RequestError, MessageTemplate):
    """A valid token with this name already exists."""

    code = "request.token_exists"
    message = "there is a token {name!r} already; revoke it, or use another name"
    name: str


class UnknownToken(RequestError, MessageTemplate):
    """No token has this number."""

    code = "request.unknown_token"
    message = "there is no token {token_no}; see `aioflow tokens list`"
    token_no: int


class UnknownSession(RequestError, MessageTemplate):
    """No session has this number; it may have ended."""

    code = "request.unknown_session"
    message = "there is no session {session_no}; it may have ended"
    session_no: int


class UnknownAuditEntry(RequestError, MessageTemplate):
    """No audit entry has this number; retention may have deleted it."""

    code = "request.unknown_audit_entry"
    message = "there is no audit entry {audit_no}"
    audit_no: int


class LoginFailed(RequestError, MessageTemplate):
    """Login failed: wrong name or password, or a disabled user. The message does not say which."""

    code = "request.login"
    message = "the name or the password is wrong"


class WrongPassword(RequestError, MessageTemplate):
    """A password change failed: the current password is wrong, or there is no such user."""

    code = "request.password"
    message = "the name or the current password is wrong"


class TooManyLogins(RequestError, MessageTemplate):
    """Too many recent logins have failed, or too many logins are waiting to be checked.

    Attributes:
        again_seconds: How many seconds to wait before the next attempt.
    """

    code = "request.login_rate"
    message = "too many logins have failed; try again in {again_seconds} s"
    again_seconds: int


class TooManyAnswers(RequestError, MessageTemplate):
    """Signed links have been used too often from one address.

    Attributes:
        again_seconds: How many seconds to wait before the next attempt.
    """

    code = "request.link_rate"
    message = "links were used too often from this address; try again in {again_seconds} s"
    again_seconds: int


class Forbidden(RequestError, MessageTemplate):
    """The caller is authenticated, but its role does not allow the request."""

    code = "request.forbidden"
    message = "that needs the role {needed}; this is {role}"
    role: str
    needed: str


class OutOfScope(RequestError, MessageTemplate):
    """The scopes of the token do not cover the request.

    The same error is raised whether the requested object exists or not.
    """

    code = "request.scope"
    message = "this token does not permit that; its scopes name other DAGs"
