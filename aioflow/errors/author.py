"""Errors in a DAG file, and values that cannot be serialized."""

from __future__ import annotations

import reprlib
from typing import Self

from aioflow.errors.root import AioflowError, MessageTemplate

__all__ = (
    "AirflowImport",
    "BadExecutor",
    "BadSchedule",
    "BadTemplate",
    "CycleError",
    "DagError",
    "DuplicateDag",
    "DuplicateTask",
    "EdgeMisfit",
    "PoolTooNarrow",
    "ReferenceMisused",
    "UnknownParent",
    "Unserializable",
    "ValueTooLarge",
    "WrongField",
)


class DagError(AioflowError):
    """The DAG cannot run as written."""

    code = "dag"


class BadTemplate(DagError):
    """A template in an argument of a task cannot be rendered.

    Attributes:
        task_id: The task.
        field: The argument, with the path inside it if it is a list or a dict.
        line, column: The position in the template text, counted from 1.
    """

    code = "dag.template"

    def __init__(self, task_id: str, field: str, problem: str, line: int, column: int) -> None:
        super().__init__(
            f"task {task_id!r}: field {field!r} is not a valid template: {problem.rstrip('.')} "
            f"(line {line}, column {column} of the text); "
            "{% raw %} ... {% endraw %} keeps braces as they are"
        )
        self.task_id = task_id
        self.field = field
        self.line = line
        self.column = column


class AirflowImport(DagError, ModuleNotFoundError):
    """An import of an Airflow module or name that aioflow does not provide.

    It is an ``ImportError``, so that code that guards optional imports with ``except ImportError``
    works.

    Attributes:
        name: The module that was imported, or from which a name was imported.
    """

    code = "dag.airflow_import"

    def __init__(self, message: str, name: str) -> None:
        ModuleNotFoundError.__init__(self, message, name=name)


class CycleError(DagError):
    """The dependencies between tasks form a cycle.

    Attributes:
        path: Task ids along the cycle; the first id is repeated at the end.
    """

    code = "dag.cycle"

    def __init__(self, path: tuple[str, ...]) -> None:
        super().__init__(f"tasks form a cycle: {' -> '.join(path)}; remove one of these edges")
        self.path = path


class PoolTooNarrow(DagError, MessageTemplate):
    """A task needs more slots than its pool has, so it would never start.

    Attributes:
        task: The task id, with the id of its DAG.
    """

    code = "dag.pool_too_narrow"
    message = (
        "task {task} takes {slots} slots of pool {pool!r}, which has {size}: it can never start"
    )
    task: str
    slots: int
    pool: str
    size: int


class BadExecutor(DagError):
    """A task names an executor that does not exist, or that can never run the task."""

    code = "dag.executor"


class DuplicateDag(DagError, MessageTemplate):
    """Two DAGs have the same id.

    Attributes:
        dag_id: The duplicate id.
        first: The location of the first definition: a file, or ``file:line``.
    """

    code = "dag.duplicate_dag"
    message = "DAG {dag_id!r} is defined in {first} already; rename one of them"
    dag_id: str
    first: str


class DuplicateTask(DagError, MessageTemplate):
    """Two tasks of one DAG have the same id."""

    code = "dag.duplicate_task"
    message = (
        "DAG {dag_id!r} has two tasks named {task_id!r}; "
        "give one another name with .override(task_id=...)"
    )
    dag_id: str
    task_id: str


class UnknownParent(DagError, MessageTemplate):
    """A task depends on a parent that is not part of its DAG."""

    code = "dag.unknown_parent"
    message = (
        "task {task_id!r} depends on {parent!r}, which its DAG does not have; "
        "call the parent inside the same @dag body"
    )
    task_id: str
    parent: str


class EdgeMisfit(DagError, MessageTemplate):
    """The annotation of an argument does not allow the value that is passed for it.

    The value may be the result of a parent, a parameter of the DAG, or a literal in the file.
    """

    code = "dag.edge"
    message = (
        "task {task_id!r} takes {name}: {wanted}, but {source} gives it {given}; mend "
        "one of the annotations, or what is passed"
    )
    task_id: str
    name: str
    wanted: str
    source: str
    given: str


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
    """A schedule, time zone or duration is invalid."""

    code = "dag.schedule"


class Unserializable(AioflowError):
    """A value cannot be serialized, so it cannot be stored or passed between processes.

    Attributes:
        where: The field or argument that contains the value, such as ``FileTrigger.path``.
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
        self._why = why

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.where, self.value_type, self._why)


class ValueTooLarge(Unserializable):
    """A serialized value exceeds its size limit.

    Attributes:
        limit: The limit in bytes.
    """

    code = "unserializable.too_large"

    def __init__(self, where: str, limit: int) -> None:
        AioflowError.__init__(
            self,
            f"{where} is too large: {in_words(limit)} are allowed; "
            "write the data to a file or a bucket and pass where it is",
        )
        self.where = where
        self.value_type = "value"
        self.limit = limit

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.where, self.limit)


def in_words(size: int) -> str:
    """Return a number of bytes with its unit, such as ``64 MiB``."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"


class WrongField(Unserializable):
    """The value of a trigger's field does not match the field's annotation.

    Attributes:
        wanted: The annotation.
    """

    code = "unserializable.field"

    def __init__(self, where: str, value: object, wanted: str, *, is_shown: bool) -> None:
        shown = reprlib.repr(value) if is_shown else f"a {type(value).__name__}"
        AioflowError.__init__(self, f"{where} must be {wanted}, not {shown}")
        self.where = where
        self.value_type = type(value).__name__
        self.wanted = wanted
