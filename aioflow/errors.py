"""Every error aioflow raises on purpose.

::

    AioflowError
    ├── DagError                  the author's DAG is wrong; raised before it runs
    │   ├── CycleError
    │   ├── DuplicateDag
    │   ├── DuplicateTask
    │   ├── UnknownParent
    │   ├── EdgeMisfit
    │   ├── ReferenceMisused
    │   └── BadSchedule
    ├── Unserializable            a value cannot travel; raised where it was written
    │   └── WrongField
    ├── RequestError              the caller asked for what cannot be done
    │   ├── UnknownDag
    │   ├── UnknownRun
    │   ├── UnknownTask
    │   ├── RunExists
    │   ├── BadConf
    │   ├── BadEvent
    │   ├── BadPool
    │   └── DagBroken
    ├── StoreError                the database failed us
    │   ├── StoreUnavailable      nothing was written, or the same batch may be repeated
    │   ├── BatchRefused          the content of a batch; repeating it cannot help
    │   ├── Fenced                this node was declared dead
    │   └── StrangeDatabase       not the database we knew; never written to again
    │       ├── SchemaMismatch
    │       └── ForeignDatabase
    ├── HomeBusy                  another daemon serves this home
    ├── PortInUse
    ├── DaemonAway                no daemon answers for this home
    ├── SettingsError             a setting is wrong
    ├── LinkClosed                the other end of a link is gone
    └── TaskError                 user code went wrong; ends one try, not the daemon
        ├── TaskTimeout
        ├── StepFailed
        ├── CallCutShort
        ├── CallMismatch
        ├── DagRunFailed
        └── FanOutCapped

``DagError``, ``SchemaMismatch`` and ``Unserializable`` are permanent: retrying cannot
help. A change that finds its row already moved is no error at all in ``core`` (it is late);
in the store it is ``BatchRefused``. Flow control is not an error either: see
``aioflow.author.signals``.
"""

from __future__ import annotations

import reprlib
from typing import ClassVar

__all__ = (
    "AioflowError",
    "BadConf",
    "BadEvent",
    "BadPool",
    "BadSchedule",
    "BatchRefused",
    "CallCutShort",
    "CallMismatch",
    "CycleError",
    "DaemonAway",
    "DagBroken",
    "DagError",
    "DagRunFailed",
    "DuplicateDag",
    "DuplicateTask",
    "EdgeMisfit",
    "FanOutCapped",
    "Fenced",
    "ForeignDatabase",
    "HomeBusy",
    "LinkClosed",
    "PortInUse",
    "ReferenceMisused",
    "RequestError",
    "RunExists",
    "SchemaMismatch",
    "SettingsError",
    "StepFailed",
    "StoreError",
    "StoreUnavailable",
    "StrangeDatabase",
    "TaskError",
    "TaskTimeout",
    "UnknownDag",
    "UnknownParent",
    "UnknownRun",
    "UnknownTask",
    "Unserializable",
    "WrongField",
)


class AioflowError(Exception):
    """Base of everything aioflow raises on purpose.

    Attributes:
        code: Stable identifier for logs, the JSON API and exit messages. It never changes
            once released, unlike the message text.
    """

    code: ClassVar[str] = "error"


class DagError(AioflowError):
    """The DAG cannot run as written."""

    code = "dag"


class CycleError(DagError):
    """Tasks depend on each other in a circle.

    Attributes:
        path: Task names along the cycle; the first name is repeated at the end.
    """

    code = "dag.cycle"

    def __init__(self, path: tuple[str, ...]) -> None:
        super().__init__(f"tasks form a cycle: {' -> '.join(path)}; remove one of these edges")
        self.path = path


class DuplicateDag(DagError):
    """Two DAGs carry one name.

    Attributes:
        dag_id: The name.
        first: Where it was seen first: a file, or ``file:line``.
    """

    code = "dag.duplicate_dag"

    def __init__(self, dag_id: str, first: str) -> None:
        super().__init__(f"DAG {dag_id!r} is defined in {first} already; rename one of them")
        self.dag_id = dag_id
        self.first = first


class DuplicateTask(DagError):
    """Two tasks of one DAG carry one name."""

    code = "dag.duplicate_task"

    def __init__(self, dag_id: str, task_id: str) -> None:
        super().__init__(
            f"DAG {dag_id!r} has two tasks named {task_id!r}; "
            "give one another name with .override(task_id=...)"
        )
        self.dag_id = dag_id
        self.task_id = task_id


class UnknownParent(DagError):
    """A task names a parent that its DAG does not have."""

    code = "dag.unknown_parent"

    def __init__(self, task_id: str, parent: str) -> None:
        super().__init__(
            f"task {task_id!r} depends on {parent!r}, which its DAG does not have; "
            "call the parent inside the same @dag body"
        )
        self.task_id = task_id
        self.parent = parent


class EdgeMisfit(DagError):
    """A task takes what its parent can never give it."""

    code = "dag.edge"

    def __init__(self, task_id: str, name: str, wanted: str, parent: str, given: str) -> None:
        super().__init__(
            f"task {task_id!r} takes {name}: {wanted}, but {parent!r} gives it {given}; mend "
            "one of the annotations, or what is passed"
        )
        self.task_id = task_id


class ReferenceMisused(DagError):
    """A reference to a future result was used as if it were the result."""

    code = "dag.reference"

    def __init__(self, task_id: str, operation: str, where: str = "") -> None:
        place = f" ({where})" if where else ""
        super().__init__(
            f"the value of {task_id!r} does not exist while the DAG is written, so it cannot "
            f"be used for {operation}; pass it to a task instead{place}"
        )
        self.task_id = task_id
        self.operation = operation
        self.where = where


class BadSchedule(DagError):
    """A schedule, time zone or duration cannot be understood."""

    code = "dag.schedule"


class Unserializable(AioflowError):
    """A value cannot travel between processes.

    Attributes:
        where: The field or argument that holds it, such as ``FileTrigger.path``.
    """

    code = "unserializable"

    def __init__(self, where: str, value_type: str, why: str = "") -> None:
        detail = f" ({why})" if why else ""
        super().__init__(
            f"{where} holds a {value_type}, which cannot be stored{detail}; "
            "pass plain data (JSON types, dates, Decimal, bytes, dataclasses) instead"
        )
        self.where = where
        self.value_type = value_type


class WrongField(Unserializable):
    """A field of a trigger is not what it is annotated with.

    Attributes:
        wanted: The annotation.
    """

    code = "unserializable.field"

    def __init__(self, where: str, value: object, wanted: str) -> None:
        AioflowError.__init__(self, f"{where} is to be {wanted}, not {reprlib.repr(value)}")
        self.where = where
        self.value_type = type(value).__name__
        self.wanted = wanted


class RequestError(AioflowError):
    """The caller asked for something that cannot be done."""

    code = "request"


class UnknownDag(RequestError):
    """No DAG of that name has been parsed."""

    code = "request.unknown_dag"

    def __init__(self, dag_id: str) -> None:
        super().__init__(f"there is no DAG {dag_id!r}; see `aioflow dags list`")
        self.dag_id = dag_id


class UnknownRun(RequestError):
    """No run of that id exists."""

    code = "request.unknown_run"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"there is no run {run_id!r}; see `aioflow runs list`")
        self.run_id = run_id


class UnknownTask(RequestError):
    """The run's DAG has no such task, or the task has no such map index."""

    code = "request.unknown_task"

    def __init__(self, run_id: str, task_id: str, map_index: int = -1) -> None:
        index = "" if map_index < 0 else f"[{map_index}]"
        super().__init__(
            f"run {run_id!r} has no task {task_id + index!r}; see `aioflow runs show {run_id}`"
        )
        self.run_id = run_id
        self.task_id = task_id
        self.map_index = map_index


class RunExists(RequestError):
    """A run of that id exists, made from another request."""

    code = "request.run_exists"

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id!r} exists already; choose another --run-id")
        self.run_id = run_id


class BadConf(RequestError):
    """The conf of a run does not fit the DAG's parameters."""

    code = "request.conf"


class BadEvent(RequestError):
    """A named event cannot be stored like that."""

    code = "request.event"


class BadPool(RequestError):
    """A pool cannot be made like that."""

    code = "request.pool"


class DagBroken(RequestError):
    """The DAG is known by name, but its file does not import and no good version is kept."""

    code = "request.dag_broken"

    def __init__(self, dag_id: str, reason: str) -> None:
        super().__init__(f"DAG {dag_id!r} cannot run: {reason}; mend its file, or put it back")
        self.dag_id = dag_id
        self.reason = reason


class StoreError(AioflowError):
    """The database failed us."""

    code = "store"


class StoreUnavailable(StoreError):
    """The database cannot be reached, or stays locked.

    Nothing was written, or it cannot be known whether it was: the same batch may be
    committed again, the fence tells the two apart.
    """

    code = "store.unavailable"


class BatchRefused(StoreError):
    """The database refused a batch for its content. Nothing of it was written."""

    code = "store.refused"


class Fenced(StoreError):
    """Another node declared this one dead and took its work over."""

    code = "store.fenced"


class StrangeDatabase(StoreError):
    """The database is not the one this daemon knows. Nothing is written to it."""

    code = "store.strange"


class SchemaMismatch(StrangeDatabase):
    """The schema is newer than this program, or half migrated."""

    code = "store.schema"


class ForeignDatabase(StrangeDatabase):
    """The file or database exists, but aioflow did not make it, or it is damaged."""

    code = "store.foreign"


class HomeBusy(AioflowError):
    """Another daemon holds the lock of this database file or home."""

    code = "home.busy"

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"another daemon ({holder}) serves {path}; stop it first, "
            "or use --home for a second one"
        )
        self.path = path
        self.holder = holder


class PortInUse(AioflowError):
    """The address of the web server is taken."""

    code = "web.port_in_use"

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} is in use; choose another with --port (0 = any)")
        self.host = host
        self.port = port


class DaemonAway(AioflowError):
    """No daemon answers for this home."""

    code = "daemon.away"

    def __init__(self, home: str) -> None:
        super().__init__(f"no daemon runs for {home}; start it with `aioflow up`")
        self.home = home


class SettingsError(AioflowError):
    """A setting is unknown or has a wrong value."""

    code = "settings"


class LinkClosed(AioflowError):
    """The process at the other end of a link is gone."""

    code = "link.closed"


class TaskError(AioflowError):
    """User code went wrong. Ends one try, not the daemon."""

    code = "task"


class TaskTimeout(TaskError):
    """A try, a wait or a sensor took longer than it was allowed to."""

    code = "task.timeout"


class StepFailed(TaskError):
    """A recorded step had raised something that cannot be made again here.

    Attributes:
        type: The name of what it raised.
    """

    code = "task.step_failed"

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(f"the recorded step raised {type_name}: {message}")
        self.type = type_name


class CallCutShort(TaskError):
    """A task cancelled a durable call of its own, or ended while one was under way.

    Attributes:
        called: The call, with its place.
    """

    code = "task.call_cut_short"

    def __init__(self, called: str) -> None:
        super().__init__(
            f"{called} was cut short by the task itself; when the task runs again that would come "
            "out differently: give wait() a timeout=, and await the call in the task's own body"
        )
        self.called = called


class CallMismatch(TaskError):
    """A task that runs again makes another durable call than the one its record has.

    Attributes:
        recorded: What was called then, with its place.
        called: What is called now.
    """

    code = "task.call_mismatch"

    def __init__(self, ordinal: int, recorded: str, called: str) -> None:
        super().__init__(
            f"durable call {ordinal} was {recorded} and is {called} now; a task that waits must "
            "make the same calls in the same order each time: put what may differ into step()"
        )
        self.recorded = recorded
        self.called = called


class DagRunFailed(TaskError):
    """A run that ``run_dag`` started has failed or was cancelled.

    Attributes:
        dag_id: Of which DAG.
        run_id: Which run.
        state: ``failed`` or ``cancelled``.
    """

    code = "task.dag_run_failed"

    def __init__(self, dag_id: str, run_id: str, state: str) -> None:
        super().__init__(f"run {run_id!r} of DAG {dag_id!r} ended {state}")
        self.dag_id = dag_id
        self.run_id = run_id
        self.state = state


class FanOutCapped(TaskError):
    """A list is wider than the task it feeds may be mapped.

    Attributes:
        count: Items in the list; for a generator the cap + 1 that were taken from it.
        limit: The ``map_limit`` of the mapped task.
    """

    code = "task.fanout_cap"

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(
            f"the result has {count} items, but the task that expands over it is limited to "
            f"{limit}; raise its map_limit if that many are meant"
        )
        self.count = count
        self.limit = limit
