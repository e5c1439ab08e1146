"""What is owed to the world outside: the bodies of outbox rows."""

from __future__ import annotations

from typing import Any

import msgspec

from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.states import Failure, RunState, TaskState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "ALERT",
    "CLEAR",
    "DEADLINE",
    "KEPT",
    "TRIAL",
    "Alert",
    "Callback",
    "Clearing",
    "Deadline",
    "Marking",
    "Span",
    "Trial",
    "callback_kind",
    "decoder_of",
    "is_callback",
)

CLEAR = "clear"
"""The kind of the outbox rows that say what is still to be cleared, or marked: ``Clearing``."""

DEADLINE = "deadline"
"""The kind of the outbox rows that wait for an instant, see ``Deadline``."""

TRIAL = "trial"
"""The kind of the outbox row that says what may have killed its process: ``Trial``."""

KEPT = frozenset({CLEAR, DEADLINE, TRIAL})
"""The kinds that the engine works off itself: it has all such rows, and hands none out."""

ALERT = "alert"

_CALLBACK = "callback:"


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An owed word to the people on call: the body of an outbox row of kind ``alert``."""

    reason: str
    dag_id: str
    run_id: str
    task_id: str
    message: str


class Deadline(msgspec.Struct, frozen=True, array_like=True):
    """A word that is owed if something of a run has not ended by then: the body of such a row.

    Attributes:
        at: In steady time.
        length_us: How long after the run was made that is; 0 where an earlier version stored it.
    """

    run_no: RunNo
    at: Timestamp
    length_us: int = 0


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Triggers that may have killed the daemon, by number: from ``first`` up to before ``end``.

    Attributes:
        count: How many there were.
    """

    first: TriggerNo = 0
    end: TriggerNo = 0
    count: int = 0


class Trial(msgspec.Struct, frozen=True, array_like=True):
    """What may have killed its process: the body of such a row, of which one is kept.

    Attributes:
        process: What died: ``daemon``, or the role of an async host.
        groups: Tasks in the order in which they begin, each group apart from everything else. The
            first is on trial. Without groups everything may begin.
        proof_us: How long a group has to run until it is cleared.
        until: When the first group is judged, in steady time; without groups, when the deaths
            are forgotten.
        alone: How often each task or trigger was the only one that may have done it.
        spans: The triggers of each group; while there are any spans, other triggers do not begin
            to be hosted. Without, only tasks are suspected.
        has_begun: The triggers of the first group may be hosted.
        deaths: How often the daemon has died in a row while it had triggers.
        row_end: The triggers that it had at the first of these have lower numbers.
        since: Since when the daemon's triggers are hosted, or those of the first group, in steady
            time.
        barred: Triggers of DAGs that have killed the daemon, and the versions of their DAGs with
            which they did: with these they are not hosted.
    """

    process: str
    groups: tuple[tuple[TaskNo, ...], ...] = ()
    proof_us: int = 0
    until: Timestamp = 0
    alone: tuple[tuple[TaskNo | TriggerNo, int], ...] = ()
    spans: tuple[Span, ...] = ()
    has_begun: bool = False
    deaths: int = 0
    row_end: TriggerNo = 0
    since: Timestamp = 0
    barred: tuple[tuple[TriggerNo, str], ...] = ()


class Callback(msgspec.Struct, frozen=True, array_like=True):
    """An owed call of what an author gave for an event: the body of such a row.

    Attributes:
        event: ``success``, ``failure``, ``retry``, ``skip`` or ``deadline``.
        position: Of the task; -1 for the run itself.
        state: What the task or run went into, as people read it; in a deadline what it is in.
        at: When that was.
        failure: Why, of a try that failed.
    """

    event: str
    run_no: RunNo
    position: int
    state: str
    at: Timestamp
    task_no: TaskNo = -1
    map_index: int = -1
    try_number: int = 0
    start_no: StartNo = 0
    failure: Failure | None = None


def callback_kind(dag_id: str) -> str:
    """Return the kind of the rows that hold the callbacks of a DAG: none waits for another's."""
    return _CALLBACK + dag_id


def is_callback(kind: str) -> bool:
    """Whether rows of that kind hold callbacks."""
    return kind.startswith(_CALLBACK)


class Marking(msgspec.Struct, frozen=True, array_like=True):
    """How tasks of a run are to have ended, as a person says.

    Attributes:
        places: Position, first map index and the one behind the last; of what is not mapped, or
            has not expanded, -1 and 0.
        changed: Positions of which something was taken back: what comes after them may have to
            be stopped, or be judged anew.
        overtaken: Fan-outs behind those, whose children that are under way may have to be stopped.
        ended: How and when the run had ended; ``None`` if it had not.
        is_cut_short: It had ended before all of its tasks had, and stays as it is.
    """

    state: TaskState
    places: tuple[tuple[int, int, int], ...]
    changed: tuple[int, ...] = ()
    overtaken: tuple[int, ...] = ()
    ended: tuple[RunState, Timestamp] | None = None
    is_cut_short: bool = False


class Clearing(msgspec.Struct, frozen=True, array_like=True):
    """What of a run has to begin anew: the body of such a row, from the request until all has.

    How far that has come the tasks say themselves: what was cleared is pending, or removed.

    Attributes:
        whole: Positions all of whose tasks have to.
        failed: Of other positions those that failed.
        children: Of others these, by position and map index.
        anew: Mapped tasks among ``whole`` that will be expanded anew.
        kept: Positions of tasks among ``whole`` that stay as they are.
        spared: The same of children, by position: one bit for each, the lowest first.
        rounds: Tasks of loops that go back to a round, by position: which one.
        unrun: Fan-outs of whose children those have to that never ran.
        mark: What is marked; the rest has to begin anew for it.
    """

    run_no: RunNo
    whole: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    children: tuple[tuple[int, int], ...] = ()
    anew: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    spared: tuple[tuple[int, bytes], ...] = ()
    rounds: tuple[tuple[int, int], ...] = ()
    unrun: tuple[int, ...] = ()
    mark: Marking | None = None

    def ends(self, position: int, map_index: int) -> bool:
        """Whether a task that has begun will have begun anew, or ended, when all is done."""
        places = () if self.mark is None else self.mark.places
        is_marked = any(
            at == position and (first < 0 or first <= map_index < end) for at, first, end in places
        )
        return is_marked or position in self.whole

    @property
    def positions(self) -> set[int]:
        """Those of which something has to, or is marked, or may have to be stopped."""
        some = {position for position, _ in (*self.children, *self.rounds)}
        if self.mark is not None:
            some.update(position for position, _, _ in self.mark.places)
            some.update(self.mark.overtaken)
        return {*self.whole, *self.failed, *self.unrun, *some}


_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    ALERT: msgspec.msgpack.Decoder(Alert),
    CLEAR: msgspec.msgpack.Decoder(Clearing),
    DEADLINE: msgspec.msgpack.Decoder(Deadline),
    TRIAL: msgspec.msgpack.Decoder(Trial),
}
_ANY: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
_OF_CALLBACKS = msgspec.msgpack.Decoder(Callback)


def decoder_of(kind: str) -> msgspec.msgpack.Decoder[Any]:
    """Return what decodes the bodies of rows of a kind."""
    if is_callback(kind):
        return _OF_CALLBACKS
    return _DECODERS.get(kind, _ANY)
