"""What a child may ask the daemon over its link: the bodies of ``Query`` and ``Reply``.

A child is told what its own run holds, how other runs ended, and of named events; nothing else.
"""

from __future__ import annotations

import msgspec

from aioflow.errors import Unserializable
from aioflow.model.dag import ValueKind
from aioflow.model.states import Failure, TaskState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "NAME_LIMIT",
    "PAGE_BYTES",
    "PAGE_ITEMS",
    "EventItem",
    "EventsPage",
    "EventsWanted",
    "RecordItem",
    "RecordsPage",
    "RecordsWanted",
    "ResultsPage",
    "ResultsWanted",
    "RunEnded",
    "RunEnding",
    "RunWanted",
    "RunsWanted",
    "ValuesFound",
    "ValuesWanted",
    "asked_alone",
    "check_name",
    "check_number",
    "only",
    "refused",
)

NAME_LIMIT = 1_000
"""Characters of a name that is asked for; none that exists has as many."""

PAGE_ITEMS = 1_000
PAGE_BYTES = 4 * 1024 * 1024


class ResultsWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Ask.kind == "results"``: results of one parent of the asking run, or items of a task.

    Attributes:
        position: The parent; or the complement of a ``task_no`` for the items it has given on,
            which stand in the page as if they were results of its children.
        after: Only map indexes above this one; -2 for the beginning (unmapped is -1). What
            ``only`` returns stands for one child alone.
    """

    position: int
    after: int = -2


_ONLY = -3


def only(map_index: int) -> int:
    """Return what asks for the result of one child."""
    return _ONLY - map_index


def asked_alone(after: int) -> int:
    """Return the child that is asked for alone; -1 if it is not so."""
    return _ONLY - after if after <= _ONLY else -1


class ResultsPage(msgspec.Struct, frozen=True, array_like=True):
    """At most ``PAGE_ITEMS`` children in map order, at most about ``PAGE_BYTES``.

    Attributes:
        width: Of the parent's expansion; -1 if it was not expanded.
        items: ``(map_index, task_no, start_no, body)`` of each that succeeded. ``body`` is
            ``None`` and ``start_no`` 0 for a ``None`` result; ``body`` ``None`` with a
            ``start_no`` means the file of that start.
        failed: ``(map_index, state, failure)`` of each that ended in another way.
        last: The highest map index this page speaks for; ask on with ``after=last``.
        more: Whether there is another page.
    """

    width: int
    items: list[tuple[int, int, int, bytes | None]]
    failed: list[tuple[int, TaskState, Failure | None]]
    last: int
    more: bool


class RecordsWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Ask.kind == "records"``: the durable calls of a task of the asking run.

    Attributes:
        after: Only ordinals above this one; -1 for the beginning.
    """

    task_no: int
    after: int = -1


class RecordItem(msgspec.Struct, frozen=True, array_like=True):
    """One durable call, see ``model.rows.RecordRow``."""

    kind: str
    name: str
    place: str
    answer: bytes | None
    failure: Failure | None


class RecordsPage(msgspec.Struct, frozen=True, array_like=True):
    """Calls in order, at most about ``PAGE_BYTES``; ``more`` says whether others follow."""

    items: list[RecordItem]
    more: bool


class EventsWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Ask.kind == "events"``: the events of a name, answered once there is one.

    Attributes:
        after: Only those behind this number.
        until: Answered at once, of what there is up to this number.
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
        last: Up to which number this page speaks for; ask on with ``after=last``.
    """

    items: list[EventItem]
    last: int


class ValuesWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Ask.kind == "values"``: secrets, connections and variables.

    Attributes:
        position: The task that declares them; -1 for a trigger that uses them.
    """

    position: int
    names: tuple[tuple[ValueKind, str], ...]


class ValuesFound(msgspec.Struct, frozen=True, array_like=True):
    """The msgpack of each that was wanted, in that order."""

    values: tuple[bytes, ...]


class RunWanted(msgspec.Struct, frozen=True, array_like=True):
    """One run of those that are asked about; its ending is told once.

    Attributes:
        number: Its own within the question, by which it is told.
        run_id: That run. Else the run of ``logical_date``. Else the first run of the DAG
            that ends at or after ``since``.
        position: The task that waits, and its ``map_index``: for telling what waits for what.
    """

    number: int
    run_id: str | None
    logical_date: Timestamp | None
    since: Timestamp
    position: int = -1
    map_index: int = -1


class RunsWanted(msgspec.Struct, frozen=True, array_like=True):
    """``Ask.kind == "runs"``: how runs end, or one task in each.

    The question goes on: asked again under the same number it is about further runs too. Each
    is told when it has reached a final state, in an ``Reply`` whose body is a list of
    ``RunEnded``.

    Attributes:
        task_id: Wait for this task instead of the whole run; a mapped one counts as ended with
            its last child.
        runs: At most ``PAGE_ITEMS``.
    """

    dag_id: str
    task_id: str | None
    runs: list[RunWanted]


class RunEnding(msgspec.Struct, frozen=True, array_like=True):
    """How the run or task ended.

    Attributes:
        state: Its label, such as ``success``.
        result: msgpack of the task's result, if a task was asked for and has a small one.
    """

    run_id: str
    state: str
    result: bytes | None


class RunEnded(msgspec.Struct, frozen=True, array_like=True):
    """What has come of one run that was asked about.

    Attributes:
        number: See ``RunWanted``.
        ending: How it ended; or why there is no answer, and never will be.
    """

    number: int
    ending: RunEnding | str


def refused(kind: str, body: bytes, why: str) -> bytes:
    """Return the body that answers a question of which nothing is told; empty for most kinds.

    A question that goes on does not fail as a whole: what else was asked under its number is
    not touched by this.
    """
    if kind != "runs":
        return b""
    try:
        wanted = msgspec.msgpack.decode(body, type=RunsWanted)
    except msgspec.DecodeError:
        return b""
    return msgspec.msgpack.encode([RunEnded(run.number, why) for run in wanted.runs])


def check_name(what: str, text: object) -> None:
    """Refuse what can be the name of nothing: no database could be asked for it.

    Args:
        what: What it names, for the error.

    Raises:
        Unserializable: If it is no text, too long, or has characters that no name has.
    """
    if not isinstance(text, str):
        raise Unserializable(what, type(text).__name__, "a name was expected")
    is_text = not any("\ud800" <= char <= "\udfff" or char == "\0" for char in text)
    if len(text) > NAME_LIMIT or not is_text:
        raise Unserializable(what, "name", "it is too long, or no text")


def check_number(what: str, number: object) -> None:
    """Refuse what cannot be the number of anything that is stored.

    Raises:
        Unserializable: If it is no whole number, or one of more than 64 bits.
    """
    if not isinstance(number, int) or not -(1 << 63) <= number < 1 << 63:
        raise Unserializable(what, type(number).__name__, "a number of 64 bits was expected")
