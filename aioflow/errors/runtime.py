"""Errors at run time: in user code, in the database, and in a daemon that cannot serve.

An error in user code ends one try, not the daemon.
"""

from __future__ import annotations

from aioflow.errors.root import AioflowError, MessageTemplate

__all__ = (
    "BatchRefused",
    "CallCutShort",
    "CallMismatch",
    "DaemonAway",
    "DaemonStopping",
    "DagRunFailed",
    "FanOutCapped",
    "Fenced",
    "ForeignDatabase",
    "HomeBusy",
    "HomeUnusable",
    "InterpreterUnusable",
    "LinkClosed",
    "NoActiveNode",
    "NodeBehind",
    "NotificationFailed",
    "ObjectMissing",
    "PortInUse",
    "ResultDamaged",
    "ResultMissing",
    "ResultNotStored",
    "SchemaMismatch",
    "SettingsError",
    "StepFailed",
    "StorageUnavailable",
    "StoreError",
    "StoreSlow",
    "StoreUnavailable",
    "StrangeDatabase",
    "SyncFailed",
    "TaskError",
    "TaskTimeout",
    "UnknownContextKey",
    "UnknownValue",
)

ANOTHER_HOME = "use --home for a second one"
ANOTHER_DATABASE = "use --db for a database of its own, or --take-over to end that one"


class HomeBusy(AioflowError):
    """Another daemon serves this home or this database.

    Args:
        otherwise: The alternative to stopping the other daemon, for the message.
        is_draining: Whether the other daemon is draining and will exit.
    """

    code = "home.busy"

    def __init__(
        self, path: str, holder: str, otherwise: str = ANOTHER_HOME, *, is_draining: bool = False
    ) -> None:
        state, first = "serves", "stop it first"
        if is_draining:
            state, first = "is draining, and still serves", "start again when it has ended"
        super().__init__(f"another daemon ({holder}) {state} {path}; {first}, or {otherwise}")
        self.path = path
        self.holder = holder


class HomeUnusable(AioflowError):
    """A folder of the home cannot be created, or a file that the home needs cannot be used."""

    code = "home.unusable"

    def __init__(self, path: str, why: str, problem: str = "the folder {} cannot be made") -> None:
        super().__init__(f"{problem.format(path)}: {why}; choose another with --home")
        self.path = path
        self.why = why


class PortInUse(AioflowError, MessageTemplate):
    """The address of the web server is already in use."""

    code = "web.port_in_use"
    message = "{host}:{port} is in use; choose another with --port (0 = any)"
    host: str
    port: int


class DaemonAway(AioflowError):
    """No daemon is running for this home."""

    code = "daemon.away"

    def __init__(self, home: str, database: str = "") -> None:
        """Create the error for a home.

        Args:
            database: The database that was tried instead but does not exist.
        """
        instead = f", and there is no database {database}" if database else ""
        super().__init__(f"no daemon runs for {home}{instead}; start it with `aioflow up`")
        self.home = home


class DaemonStopping(AioflowError, MessageTemplate):
    """The daemon is shutting down and executes no more requests.

    The last request may have been executed or not.
    """

    code = "daemon.stopping"
    message = "the daemon is stopping; retry when it runs, with the same key or run id"


class NoActiveNode(AioflowError):
    """This node is a standby, and no active node has answered a request in time."""

    code = "node.no_active"

    def __init__(self, *, is_sent: bool) -> None:
        """Create the error.

        Args:
            is_sent: Whether the request was sent to an active node, which may have executed it.
        """
        if is_sent:
            text = (
                "the active node has not answered; it may have executed the request: retry with "
                "the same key or run id"
            )
        else:
            text = "no node is active just now; a standby takes over within seconds: retry"
        super().__init__(text)


class NodeBehind(AioflowError, MessageTemplate):
    """This standby has not read the latest commits, so it may not know of revoked tokens."""

    code = "node.behind"
    message = "this standby is more than {seconds:g} s behind the active node; retry"
    seconds: float


class SettingsError(AioflowError):
    """A setting is unknown or has an invalid value."""

    code = "settings"


class InterpreterUnusable(AioflowError, MessageTemplate):
    """An interpreter of the settings cannot run child processes of this daemon.

    Attributes:
        interpreter: Its name in the settings.
        path: Its path.
        problem: Why it is unusable, and how to fix it.
    """

    code = "python.unusable"
    message = "python {interpreter!r} ({path}) cannot be used: {problem}"
    interpreter: str
    path: str
    problem: str


class LinkClosed(AioflowError):
    """The connection to another process was closed, or carried invalid data."""

    code = "link.closed"


class StoreError(AioflowError):
    """A database operation failed."""

    code = "store"


class StoreUnavailable(StoreError):
    """The database cannot be reached, or stays locked.

    Either nothing was written, or the outcome is unknown. The same batch may be committed again,
    because the fence detects a batch that was already written.

    Attributes:
        may_pass: Whether the database may become reachable without a change to its
            configuration or to aioflow's.
    """

    code = "store.unavailable"

    may_pass = True


class SyncFailed(StoreError):
    """Syncing the database to disk failed, so data written since the last sync may be lost.

    Until the machine stops, the operating system may return that data from memory without ever
    writing it to disk. So the process exits, and the next one writes the data again.
    """

    code = "store.sync"


class StoreSlow(StoreError, MessageTemplate):
    """A query exceeded its time limit and was abandoned.

    Attributes:
        seconds: The time limit.
    """

    code = "store.slow"
    message = (
        "the database did not answer within {seconds:g} s; narrow the query: "
        "name a DAG or a run, or ask for a smaller page"
    )
    seconds: float


class BatchRefused(StoreError):
    """The database rejected the content of a batch. Nothing of the batch was written."""

    code = "store.refused"


class Fenced(StoreError):
    """Another node declared this node dead and took over its work."""

    code = "store.fenced"


class StrangeDatabase(StoreError):
    """The database is not the one this daemon expects. Nothing is written to it."""

    code = "store.strange"


class SchemaMismatch(StrangeDatabase):
    """The database schema is newer than this version of aioflow, or only partly migrated."""

    code = "store.schema"


class ForeignDatabase(StrangeDatabase):
    """The file or database exists, but was not created by aioflow, or is damaged."""

    code = "store.foreign"


class TaskError(AioflowError):
    """User code failed. The error ends one try, not the daemon."""

    code = "task"


class TaskTimeout(TaskError):
    """A try, a wait or a sensor exceeded its timeout."""

    code = "task.timeout"


class StepFailed(TaskError):
    """A recorded step failed with an exception that cannot be recreated in this process.

    Attributes:
        type: The name of the original exception's class.
    """

    code = "task.step_failed"

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(f"the recorded step raised {type_name}: {message}")
        self.type = type_name


class CallCutShort(TaskError, MessageTemplate):
    """A task cancelled one of its durable calls, or ended while a durable call was in flight.

    Attributes:
        called: The call, with its source location.
    """

    code = "task.call_cut_short"
    message = (
        "{called} was cut short by the task itself; when the task runs again that would come "
        "out differently: give wait() a timeout=, and await the call in the task's own body"
    )
    called: str


class CallMismatch(TaskError, MessageTemplate):
    """A re-run of a task made a different durable call than the one recorded at this position.

    Attributes:
        recorded: The recorded call, with its source location.
        called: The call that was made in the re-run.
    """

    code = "task.call_mismatch"
    message = (
        "durable call {ordinal} was {recorded} and is {called} now; a task that waits must "
        "make the same calls in the same order each time: put what may differ into step()"
    )
    ordinal: int
    recorded: str
    called: str


class DagRunFailed(TaskError, MessageTemplate):
    """A run started by ``run_dag`` has failed or was cancelled.

    Attributes:
        dag_id: The DAG of the run.
        run_id: The run.
        state: ``failed`` or ``cancelled``.
    """

    code = "task.dag_run_failed"
    message = "run {run_id!r} of DAG {dag_id!r} ended {state}"
    dag_id: str
    run_id: str
    state: str


class StorageUnavailable(AioflowError):
    """The object store or the shared folder is unavailable."""

    code = "storage.unavailable"


class ObjectMissing(AioflowError):
    """The object store has no object with this name."""

    code = "storage.missing"


class ResultMissing(TaskError, MessageTemplate):
    """A stored result that a task needs is neither on this machine nor in the object store."""

    code = "result.missing"
    message = (
        "the result of task number {task_no}, start {start_no}, is missing where results are "
        "stored; clear the task that returned it"
    )
    task_no: int
    start_no: int


class ResultDamaged(TaskError, MessageTemplate):
    """A stored result that a task needs differs from what was originally stored."""

    code = "result.damaged"
    message = (
        "the stored result of task number {task_no}, start {start_no}, is damaged: {why}; "
        "clear the task that returned it"
    )
    task_no: int
    start_no: int
    why: str


class ResultNotStored(TaskError, MessageTemplate):
    """A try has returned a result that could not be stored."""

    code = "result.not_stored"
    message = "the result could not be stored within {seconds:g} s: {why}"
    seconds: float
    why: str


class UnknownValue(TaskError):
    """A secret, connection or variable is missing, undeclared, or cannot be decrypted.

    It must be declared on the task. Decryption fails if no available key matches.
    """

    code = "task.value"


class NotificationFailed(TaskError):
    """A webhook or an e-mail was not accepted.

    Attributes:
        may_pass: Whether a retry may succeed.
    """

    code = "task.notification"

    def __init__(self, message: str, *, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class FanOutCapped(TaskError):
    """A list has more items than the mapped task that expands over it allows.

    Attributes:
        count: The number of items in the list, if known. For a source that is counted one item at
            a time, such as a generator: the number of the first item above the limit.
        limit: The ``map_limit`` of the mapped task.
        is_whole: Whether ``count`` is the total number of items.
    """

    code = "task.fanout_cap"

    def __init__(self, count: int, limit: int, *, is_whole: bool = True) -> None:
        items = f"{count} items" if is_whole else f"more than {limit} items, without a known end"
        super().__init__(
            f"the result has {items}, but the task that expands over it is limited to "
            f"{limit}; raise its map_limit if that many are meant"
        )
        self.count = count
        self.limit = limit
        self.is_whole = is_whole


class UnknownContextKey(TaskError, KeyError):
    """A task read a key that its context does not have.

    Attributes:
        key: The missing key.
    """

    code = "task.context"

    def __init__(self, key: object, hint: str) -> None:
        super().__init__(f"the context has no {key!r}{hint}")
        self.key = key

    def __str__(self) -> str:
        return str(self.args[0])
