"""The children of one mapped task of a run: a byte for each, and how many stand where."""

from __future__ import annotations

from aioflow.core.state.one_to_one import OneToOne
from aioflow.model.rows import ExpansionRow
from aioflow.model.states import TaskState

__all__ = ("MappedChildren",)


class MappedChildren:
    """The children of one mapped task of a run, one beside the other.

    Attributes:
        cursor: The lowest index that is pending and not on its way. It stays 0 where children
            follow others: they start in the order in which they are judged.
        unfinished: Children materialised and not ended.
        is_open: It grows with a stream, or with the rounds of a loop.
        is_loop: They are rounds. They come one after the other, and as a whole they count for
            what comes after them as one instance, which ends as the last of them does.
        cut: What the end of its stream counts as beside the children, ``UPSTREAM_FAILED`` or
            ``SKIPPED``, where it did not end well or had no item; else ``PENDING``.
        origin: Where its children find their items, as ``protocol.commands.Start`` says it:
            ``(sources, widths)``. The same for all of them, made for the first that starts.
    """

    __slots__ = (
        "counts",
        "cursor",
        "cut",
        "first_task_no",
        "is_loop",
        "is_open",
        "lockstep",
        "origin",
        "position",
        "states",
        "unfinished",
        "widths",
    )

    def __init__(self, expansion: ExpansionRow, *, is_loop: bool = False) -> None:
        self.position = expansion.position
        self.first_task_no = expansion.first_task_no
        self.states = bytearray(expansion.width)
        self.counts = [0] * len(TaskState)
        self.counts[TaskState.PENDING] = expansion.width
        self.cursor = 0
        self.unfinished = 0
        self.is_open = expansion.is_open
        self.is_loop = is_loop
        self.cut = TaskState.PENDING
        self.lockstep: OneToOne | None = None
        self.origin: tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]] | None = None

    @property
    def width(self) -> int:
        """How many children it has."""
        return len(self.states)

    @property
    def has_fresh(self) -> bool:
        """Whether a child waits for its first start."""
        return self.cursor < self.width if self.lockstep is None else len(self.lockstep) > 0

    @property
    def fresh(self) -> int:
        """How many children do."""
        return self.counts[TaskState.PENDING] if self.lockstep is None else len(self.lockstep)

    def take_fresh(self) -> int:
        """Return the index of the one that is next; there has to be one."""
        if self.lockstep is not None:
            return self.lockstep.take()
        index, self.cursor = self.cursor, self.pending_from(self.cursor + 1)
        return index

    @property
    def ended(self) -> int:
        """How many children have ended."""
        return sum(self.counts[TaskState.SUCCESS :])

    @property
    def is_over(self) -> bool:
        """Whether all children have ended, and none can come."""
        return not self.is_open and self.unfinished == 0 and self.ended == self.width

    @property
    def is_between_rounds(self) -> bool:
        """Whether all rounds there are have ended, and another may come."""
        all_ended = not self.unfinished and not self.counts[TaskState.PENDING]
        return self.is_loop and self.is_open and all_ended

    def grow(self) -> None:
        """There is another child."""
        self.states.append(TaskState.PENDING)
        self.counts[TaskState.PENDING] += 1
        if self.lockstep is not None:
            self.lockstep.grow()

    def shorten(self, width: int) -> None:
        """The last children are no more; none of them is under way."""
        gone = self.states[width:]
        del self.states[width:]
        for state in TaskState:
            self.counts[state] -= gone.count(state)
        self.cursor = min(self.cursor, width)

    def note(self, index: int, state: TaskState) -> None:
        """Write down the state of one child."""
        was = self.states[index]
        if state == was:
            return
        self.states[index] = state
        self.counts[was] -= 1
        self.counts[state] += 1
        if was == TaskState.PENDING:
            self.unfinished += 1
            if index == self.cursor and self.lockstep is None:
                self.cursor = self.pending_from(index + 1)
        if state >= TaskState.SUCCESS > was:
            self.unfinished -= 1
        elif state == TaskState.PENDING:  # it was cleared
            self.unfinished -= was < TaskState.SUCCESS
            if self.lockstep is None:
                self.cursor = min(self.cursor, index)

    def pending_from(self, index: int) -> int:
        """Return the first pending child from an index on; the width if there is none."""
        found = self.states.find(TaskState.PENDING, index)
        return self.width if found < 0 else found

    def outcome(self) -> TaskState:
        """Return what the children come to, once all have ended."""
        if self.is_loop:
            return TaskState(self.states[-1])
        for state in (TaskState.FAILED, TaskState.CANCELLED, TaskState.UPSTREAM_FAILED):
            if self.counts[state] or self.cut is state:
                return state
        return TaskState.SUCCESS if self.counts[TaskState.SUCCESS] else TaskState.SKIPPED
