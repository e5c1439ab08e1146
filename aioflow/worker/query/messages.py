"""Queries that a child may send to the daemon: the bodies of ``Query`` and ``Reply``.

A child can read only the data of its own run, how other runs end, and named events.
"""

from __future__ import annotations

import msgspec

from aioflow.errors import AioflowError, ResultDamaged, ResultMissing, TaskError, Unserializable
from aioflow.model.dag import ValueKind
from aioflow.model.states import Failure, TaskState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "NAME_LIMIT",
    "PAGE_BYTES",
    "PAGE_ITEMS",
    "UNDECODABLE",
    "EventItem",
    "EventsPage",
    "EventsWanted",
    "FilesCopied",
    "FilesWanted",
    "RecordItem",
    "RecordsPage",
    "RecordsWanted",
    "ResultsPage",
    "ResultsWanted",
    "RunEnded",
    "RunEnding",
    "RunWanted",
    "RunsWanted",
    "SpoolWanted",
    "ValuesFound",
    "ValuesWanted",
    "asked_alone",
    "check_name",
    "check_number",
    "only",
    "refused",
)

NAME_LIMIT = 1_000
"""Maximum characters of a requested name. No existing name is longer."""

UNDECODABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What msgspec raises for malformed data. Bad UTF-8 raises a ``UnicodeDecodeError``."""

PAGE_ITEMS = 1_000
PAGE_BYTES = 4 * 1024 * 1024


class ResultsWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Query.kind == "results"``: results of a parent in the run, or stream items of a task.

    Attributes:
        task_index: Index of the parent. For stream items, the bitwise complement of the
            ``task_no`` of the task; the page contains the items as if they were results of its
            children.
        after: Only map indexes above this one are returned. -2 starts at the beginning, because the
            result of an unmapped task has index -1. A value returned by ``only`` selects one child.
    """

    task_index: int
    after: int = -2


_ONLY = -3


def only(map_index: int) -> int:
    """Return the ``after`` value that selects the result of one child."""
    return _ONLY - map_index


def asked_alone(after: int) -> int:
    """Return the map index of the child that a value returned by ``only`` selects.

    Return -1 if ``after`` is not such a value. It then selects all children above it.
    """
    return _ONLY - after if after <= _ONLY else -1


class ResultsPage(msgspec.Struct, frozen=True, array_like=True):
    """A page of at most ``PAGE_ITEMS`` children in map order, and at most about ``PAGE_BYTES``.

    Attributes:
        width: Number of children of the parent; -1 if it was not expanded.
        items: ``(map_index, task_no, start_no, body)`` of each child that succeeded. For a ``None``
            result, ``body`` is ``None`` and ``start_no`` 0. If only ``body`` is ``None``, the
            result is in the file of the execution ``start_no``.
        failed: ``(map_index, state, failure)`` of each child that ended in another state.
        last: The highest map index that this page covers. Continue with ``after=last``.
        more: Whether there is another page.
    """

    width: int
    items: list[tuple[int, int, int, bytes | None]]
    failed: list[tuple[int, TaskState, Failure | None]]
    last: int
    more: bool


class RecordsWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Query.kind == "records"``: the durable calls of a task of the run.

    Attributes:
        after: Only ordinals above this one are returned; -1 starts at the beginning.
    """

    task_no: int
    after: int = -1


class RecordItem(msgspec.Struct, frozen=True, array_like=True):
    """One durable call, see ``model.rows.RecordRow``."""

    kind: str
    name: str
    source_location: str
    answer: bytes | None
    failure: Failure | None


class RecordsPage(msgspec.Struct, frozen=True, array_like=True):
    """Calls in order, at most about ``PAGE_BYTES``.

    ``more`` states whether further calls follow.
    """

    items: list[RecordItem]
    more: bool


class EventsWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Query.kind == "events"``: the events with a name. Answered once there is at least one.

    Attributes:
        after: Only events with a higher number are returned.
        until: If set, answer immediately with the events up to this number.
    """

    name: str
    after: int
    until: int | None = None


class EventItem(msgspec.Struct, frozen=True, array_like=True):
    """One named event; ``data`` is msgpack."""

    event_no: int
    key: str | None
    data: bytes


class EventsPage(msgspec.Struct, frozen=True, array_like=True):
    """Events in order, at most ``PAGE_ITEMS`` and about ``PAGE_BYTES``.

    Attributes:
        last: The highest event number that this page covers. Continue with ``after=last``.
    """

    items: list[EventItem]
    last: int


class ValuesWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Query.kind == "values"``: secrets, connections and variables.

    Attributes:
        task_index: The task that declares them; -1 for a trigger that uses them.
    """

    task_index: int
    names: tuple[tuple[ValueKind, str], ...]


class ValuesFound(msgspec.Struct, frozen=True, array_like=True):
    """The msgpack of each requested value, in the order of the query."""

    values: tuple[bytes, ...]


class FilesWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Query.kind == "files"``: copies of stored results of the run, on this machine.

    Attributes:
        keys: ``(task_no, start_no)`` of each result.
    """

    keys: tuple[tuple[int, int], ...]


class SpoolWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Query.kind == "spool"``: permission to write a result file. The reply has no content.

    Attributes:
        size: Size of the file.
    """

    task_no: int
    start_no: int
    size: int


class FilesCopied(msgspec.Struct, frozen=True, array_like=True):
    """The reply when all files have been copied, or with the error for one of them.

    Attributes:
        code: Code of the error; empty if there is none.
        key: The result that is missing or damaged.
        why: What is wrong with the result.
    """

    code: str = ""
    key: tuple[int, int] = (-1, -1)
    why: str = ""

    @classmethod
    def of(cls, error: AioflowError | None) -> FilesCopied:
        """Return the reply with an error, or without one."""
        match error:
            case None:
                return cls()
            case ResultMissing():
                return cls(error.code, (error.task_no, error.start_no))
            case ResultDamaged():
                return cls(error.code, (error.task_no, error.start_no), error.why)
            case _:
                return cls(error.code, why=str(error))

    def check(self) -> None:
        """Raise the error, if there is one.

        Raises:
            ResultMissing: If the result is not stored.
            ResultDamaged: If the result differs from what was stored.
            TaskError: If the result could not be copied for any other reason.
        """
        if self.code == ResultMissing.code:
            raise ResultMissing(*self.key)
        if self.code == ResultDamaged.code:
            raise ResultDamaged(*self.key, why=self.why)
        if self.code:
            raise TaskError(f"a stored result cannot be fetched: {self.why}")


class RunWanted(msgspec.Struct, frozen=True, array_like=True):
    """One run of a query. Its end is reported once.

    Attributes:
        number: Its number within the query, used in ``RunEnded``.
        run_id: Selects this run. If it is ``None``, ``logical_date`` selects the run. If both are
            ``None``, the first run of the DAG that ends at or after ``since`` is selected.
        task_index: Index of the waiting task, to show which task waits for what.
    """

    number: int
    run_id: str | None
    logical_date: Timestamp | None
    since: Timestamp
    task_index: int = -1
    map_index: int = -1


class RunsWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Query.kind == "runs"``: how runs of a DAG end, or how one task ends in each of them.

    The query continues: sent again under the same number, it adds further runs. When a run or task
    reaches a final state, a ``Reply`` reports that. Its body is a list of ``RunEnded``.

    Attributes:
        task_id: Wait for this task instead of the whole run. A mapped task ends with its last
            child.
        runs: The requested runs, at most ``PAGE_ITEMS``.
    """

    dag_id: str
    task_id: str | None
    runs: list[RunWanted]


class RunEnding(msgspec.Struct, frozen=True, array_like=True):
    """How a run or task ended.

    Attributes:
        state: The label of the final state, such as ``success``.
        result: msgpack of the task's result, if a task was requested and its result is small.
    """

    run_id: str
    state: str
    result: bytes | None


class RunEnded(msgspec.Struct, frozen=True, array_like=True):
    """The answer for one requested run.

    Attributes:
        number: See ``RunWanted``.
        ending: How the run or task ended, or the reason why there will never be an answer.
    """

    number: int
    ending: RunEnding | str


def refused(kind: str, body: bytes, why: str) -> bytes:
    """Return the reply body of a refused query; empty for most kinds.

    A continuing query does not fail as a whole: other runs under its number are not affected.
    """
    if kind != "runs":
        return b""
    try:
        wanted = msgspec.msgpack.decode(body, type=RunsWanted)
    except UNDECODABLE:
        return b""
    return msgspec.msgpack.encode([RunEnded(run.number, why) for run in wanted.runs])


def check_name(what: str, text: object) -> None:
    """Reject a text that cannot be a name, and that a database could not even search for.

    Args:
        what: What the name denotes, for the error message.

    Raises:
        Unserializable: If the text is not a string, is too long, or contains characters that no
            name has.
    """
    if not isinstance(text, str):
        raise Unserializable(what, type(text).__name__, "a name was expected")
    is_text = not any("\ud800" <= char <= "\udfff" or char == "\0" for char in text)
    if len(text) > NAME_LIMIT or not is_text:
        raise Unserializable(what, "name", "it is too long, or no text")


def check_number(what: str, number: object) -> None:
    """Reject a value that cannot be the number of a stored row.

    Raises:
        Unserializable: If the value is not an integer of at most 64 bits.
    """
    if not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
        raise Unserializable(what, type(number).__name__, "a number of 64 bits was expected")
