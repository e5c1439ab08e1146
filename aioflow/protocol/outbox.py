"""Contents of outbox rows: callbacks, alerts, and pending work of the engine itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import msgspec

from aioflow.model.decisions import DecisionRow, question_of
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.states import Failure, RunState, TaskState
from aioflow.model.timestamps import Timestamp

__all__ = (
    "ALERT",
    "CLEAR",
    "DEADLINE",
    "ENGINE_KINDS",
    "TRIAL",
    "Alert",
    "Asked",
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
"""The kind of outbox rows that contain tasks still to be cleared or marked: ``Clearing``."""

DEADLINE = "deadline"
"""The kind of outbox rows that contain a due time: ``Deadline``."""

TRIAL = "trial"
"""The kind of the outbox row that contains the suspects of a crash: ``Trial``."""

ENGINE_KINDS = frozenset({CLEAR, DEADLINE, TRIAL})
"""The kinds that the engine processes itself. All such rows are in memory; none is handed out."""

ALERT = "alert"

_CALLBACK = "callback:"


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert to the operators: the body of an outbox row of kind ``alert``."""

    reason: str
    dag_id: str
    run_id: str
    task_id: str
    message: str


class Deadline(msgspec.Struct, frozen=True, array_like=True):
    """A time by which parts of a run should have ended or started: the body of an outbox row.

    Attributes:
        at: The time, in steady time.
        length_us: The time from the creation of the run to ``at``; 0 if an earlier version of
            aioflow stored the row.
        ends_wait: Whether tasks with a ``max_wait`` of ``length_us`` fail if they have not started.
            ``length_us`` then counts from the start of the run, or from its last clear. If
            ``False``, an alert is due instead.
    """

    run_no: RunNo
    at: Timestamp
    length_us: int = 0
    ends_wait: bool = False


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A range of triggers that may have killed the daemon: numbers from ``first``, below ``end``.

    Attributes:
        count: The number of triggers in the range when the daemon died.
    """

    first: TriggerNo = 0
    end: TriggerNo = 0
    count: int = 0


class Trial(msgspec.Struct, frozen=True, array_like=True):
    """The suspects of a crash: the body of an outbox row, of which there is at most one.

    Attributes:
        process: The process that died: ``daemon``, or the role of an async host.
        groups: Groups of tasks, in the order in which they start. Each group runs apart from
            everything else. The first group is on trial. If there are no groups, everything may
            start.
        proof_us: How long a group must run without a crash to be cleared of suspicion.
        until: The steady time at which the first group is evaluated. If there are no groups, the
            steady time at which the deaths are forgotten.
        alone: How often each task or trigger was the only suspect.
        spans: The triggers of each group. While there are any spans, no other triggers are assigned
            to hosts. If there are none, only tasks are suspected.
        has_begun: Whether the triggers of the first group may be assigned to hosts.
        deaths: Number of consecutive deaths of the daemon while it had triggers.
        row_end: A number above the numbers of all triggers that existed at the first of these
            deaths.
        since: The steady time since which hosts have had the daemon's triggers, or the triggers of
            the first group.
        barred: Triggers of DAGs that have killed the daemon, each with the version of its DAG at
            that time. They are not assigned to hosts in that version.
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


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that people are notified about.

    Attributes:
        url: The page of the decision; empty if the address of the web UI is not known.
        links: A signed link for each assignee that may have one.
        personal: Those of these assignees that are users. The others are groups.
        deadline: When it times out.
    """

    decision_id: int
    question: str
    details: str
    assignees: tuple[str, ...]
    approvals: int
    url: str
    links: dict[str, str]
    deadline: Timestamp | None
    personal: tuple[str, ...] = ()

    @classmethod
    def about(
        cls,
        row: DecisionRow,
        *,
        url: str = "",
        links: Mapping[str, str] | None = None,
        personal: Iterable[str] = (),
        shift: int = 0,
    ) -> Self:
        """Return the content of a message about an open decision.

        Args:
            shift: The offset of the wall clock from steady time.

        Raises:
            msgspec.MsgspecError: If the question of the row is damaged.
        """
        question = question_of(row.question)
        return cls(
            decision_id=row.decision_no,
            question=question.question,
            details=question.details,
            assignees=question.assignees,
            approvals=question.approvals,
            url=url,
            links=dict(links or {}),
            deadline=None if row.deadline_at is None else row.deadline_at + shift,
            personal=tuple(personal),
        )


class Callback(msgspec.Struct, frozen=True, array_like=True):
    """A pending call of an author's callback: the body of an outbox row.

    Attributes:
        event: ``success``, ``failure``, ``retry``, ``skip``, ``ask`` or ``deadline``.
        task_index: The index of the task; -1 for the run itself.
        state: The label of the state that the task or run entered; for a deadline, the label of its
            state at the deadline.
        at: When that happened.
        failure: The failure of a failed try.
        decision_no: The decision that the task waits for, if the event is ``ask``.
        asked: The content of that decision. Added at delivery, because links are signed as late as
            possible.
        url: The page of the run or task; empty if the address of the web UI is not known. Added at
            delivery.
    """

    event: str
    run_no: RunNo
    task_index: int
    state: str
    at: Timestamp
    task_no: TaskNo = -1
    map_index: int = -1
    try_number: int = 0
    start_no: StartNo = 0
    failure: Failure | None = None
    decision_no: TriggerNo = -1
    asked: Asked | None = None
    url: str = ""


def callback_kind(dag_id: str) -> str:
    """Return the outbox kind of a DAG's callbacks, so that each DAG has its own quota."""
    return _CALLBACK + dag_id


def is_callback(kind: str) -> bool:
    """Return whether rows of this kind contain callbacks."""
    return kind.startswith(_CALLBACK)


class Marking(msgspec.Struct, frozen=True, array_like=True):
    """A requested final state of tasks of a run.

    Attributes:
        ranges: ``(task_index, first, end)``: the map indexes from ``first``, below ``end``; -1 and
            0 for a task that is not mapped or has not expanded.
        changed: Indexes of tasks whose final state was revoked. Tasks downstream of them may have
            to be stopped, or evaluated again.
        overtaken: Mapped tasks downstream of ``changed`` whose children in progress may have to be
            stopped.
        ended: How and when the run had ended; ``None`` if it had not.
        is_cut_short: Whether the run had ended before all of its tasks. It then keeps its state.
    """

    state: TaskState
    ranges: tuple[tuple[int, int, int], ...]
    changed: tuple[int, ...] = ()
    overtaken: tuple[int, ...] = ()
    ended: tuple[RunState, Timestamp] | None = None
    is_cut_short: bool = False


class Clearing(msgspec.Struct, frozen=True, array_like=True):
    """The tasks of a run to clear: the body of an outbox row, until all of them are cleared.

    The progress is derived from the states of the tasks: cleared tasks are pending or removed.

    Attributes:
        whole: Indexes of tasks that are selected as a whole, with all their children.
        failed: Indexes of mapped tasks of which only the failed children are selected.
        children: Selected children of other mapped tasks, by task index and map index.
        reexpanded: Mapped tasks among ``whole`` that will be expanded again.
        retained: Indexes of tasks among ``whole`` that stay unchanged.
        excluded: Children that stay unchanged, by task index: one bit per child, lowest first.
        unrun: Mapped tasks of which the children that never ran are selected.
        mark: The marked tasks, because of which the other tasks are cleared.
    """

    run_no: RunNo
    whole: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    children: tuple[tuple[int, int], ...] = ()
    reexpanded: tuple[int, ...] = ()
    retained: tuple[int, ...] = ()
    excluded: tuple[tuple[int, bytes], ...] = ()
    unrun: tuple[int, ...] = ()
    mark: Marking | None = None

    def ends(self, task_index: int, map_index: int) -> bool:
        """Return whether a started task will be cleared or marked before this row is deleted."""
        ranges = () if self.mark is None else self.mark.ranges
        is_marked = any(
            at == task_index and (first < 0 or first <= map_index < end)
            for at, first, end in ranges
        )
        return is_marked or task_index in self.whole

    @property
    def task_indexes(self) -> set[int]:
        """The indexes of all tasks in this row: selected, marked, or with children to stop."""
        some = {task_index for task_index, _ in self.children}
        if self.mark is not None:
            some.update(task_index for task_index, _, _ in self.mark.ranges)
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
    """Return the decoder for the bodies of rows of a kind."""
    if is_callback(kind):
        return _OF_CALLBACKS
    return _DECODERS.get(kind, _ANY)
