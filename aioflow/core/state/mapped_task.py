"""The children of one mapped task of a run: one byte per child, and a count per state.

If each child waits for the child of another task with the same index, a queue holds the children
that may start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from aioflow.model.rows import ExpansionRow
from aioflow.model.states import TaskState

__all__ = (
    "MappedChildren",
    "OneToOne",
)


class OneToOne:
    """Children of a mapped task that each wait for the child of another task with the same index.

    Attributes:
        widths: Number of items in each list that the task expands over.
        evaluated: How many children, counted from the first, have been evaluated since the
            expansion.
    """

    __slots__ = ("_queue", "_queued", "evaluated", "widths")

    def __init__(self, widths: Sequence[int], width: int) -> None:
        self.widths = tuple(widths)
        self.evaluated = 0
        self._queue: deque[int] = deque()
        self._queued = bytearray(width)

    def __len__(self) -> int:
        return len(self._queue)

    def allow(self, index: int) -> None:
        """Allow a child to start. Idempotent."""
        if not self._queued[index]:
            self._queued[index] = 1
            self._queue.append(index)

    def grow(self) -> None:
        """Add a child."""
        self._queued.append(0)

    def may_start(self, index: int) -> bool:
        """Return whether a child was allowed to start."""
        return bool(self._queued[index])

    def take(self) -> int:
        """Remove and return the next child to start. The queue must not be empty."""
        return self._queue.popleft()


class MappedChildren:
    """The children of one mapped task of a run.

    Attributes:
        cursor: Index of the next child to start, as returned by ``take_fresh``. It stays 0 if
            ``one_to_one`` is set, because the children then start in the order of their evaluation.
        unfinished: Number of children that have left ``pending`` but not ended.
        is_open: Whether more children may be added, from a stream or as iterations of a loop.
        is_loop: Whether the children are iterations. Iterations run one after the other. To
            downstream tasks they count as one instance, which ends in the state of the last
            iteration.
        cut: State that the end of the stream adds to the states of the children:
            ``UPSTREAM_FAILED`` or ``SKIPPED`` if the stream failed or was empty, else ``PENDING``.
        one_to_one: If each child waits for a child of another task, the queue of the children that
            may start; else ``None``.
        origin: Location of the items, ``(sources, widths)`` as in ``protocol.commands.StartTask``.
            It is the same for all children, and is computed when the first child starts.
    """

    __slots__ = (
        "counts",
        "cursor",
        "cut",
        "first_task_no",
        "is_loop",
        "is_open",
        "one_to_one",
        "origin",
        "states",
        "task_index",
        "unfinished",
        "widths",
    )

    def __init__(self, expansion: ExpansionRow, *, is_loop: bool = False) -> None:
        self.task_index = expansion.task_index
        self.first_task_no = expansion.first_task_no
        self.states = bytearray(expansion.width)
        self.counts = [0] * len(TaskState)
        self.counts[TaskState.PENDING] = expansion.width
        self.cursor = 0
        self.unfinished = 0
        self.is_open = expansion.is_open
        self.is_loop = is_loop
        self.cut = TaskState.PENDING
        self.one_to_one: OneToOne | None = None
        self.origin: tuple[tuple[tuple[int, int, int], ...], tuple[int, ...]] | None = None

    @property
    def width(self) -> int:
        """Number of children."""
        return len(self.states)

    @property
    def has_fresh(self) -> bool:
        """Whether any child waits for its first start."""
        return self.cursor < self.width if self.one_to_one is None else len(self.one_to_one) > 0

    @property
    def fresh(self) -> int:
        """Number of children that wait for their first start."""
        return self.counts[TaskState.PENDING] if self.one_to_one is None else len(self.one_to_one)

    def take_fresh(self) -> int:
        """Return the index of the next child to start. There must be one."""
        if self.one_to_one is not None:
            return self.one_to_one.take()
        index, self.cursor = self.cursor, self.pending_from(self.cursor + 1)
        return index

    @property
    def ended(self) -> int:
        """Number of children that have ended."""
        return sum(self.counts[TaskState.SUCCESS :])

    @property
    def is_over(self) -> bool:
        """Whether all children have ended and no more can be added."""
        return not self.is_open and self.unfinished == 0 and self.ended == self.width

    @property
    def is_between_rounds(self) -> bool:
        """Whether all iterations so far have ended and another iteration may follow."""
        all_ended = not self.unfinished and not self.counts[TaskState.PENDING]
        return self.is_loop and self.is_open and all_ended

    def grow(self) -> None:
        """Add a pending child."""
        self.states.append(TaskState.PENDING)
        self.counts[TaskState.PENDING] += 1
        if self.one_to_one is not None:
            self.one_to_one.grow()

    def note(self, index: int, state: TaskState) -> None:
        """Set the state of a child and update the counts."""
        was = self.states[index]
        if state == was:
            return
        self.states[index] = state
        self.counts[was] -= 1
        self.counts[state] += 1
        if was == TaskState.PENDING:
            self.unfinished += 1
            if index == self.cursor and self.one_to_one is None:
                self.cursor = self.pending_from(index + 1)
        if state >= TaskState.SUCCESS > was:
            self.unfinished -= 1
        elif state == TaskState.PENDING:  # the child was cleared
            self.unfinished -= was < TaskState.SUCCESS
            if self.one_to_one is None:
                self.cursor = min(self.cursor, index)

    def pending_from(self, index: int) -> int:
        """Return the index of the first pending child from ``index`` on; the width if none."""
        found = self.states.find(TaskState.PENDING, index)
        return self.width if found < 0 else found

    def outcome(self) -> TaskState:
        """Return the combined state of the children, once all have ended."""
        if self.is_loop:
            return TaskState(self.states[-1])
        for state in (TaskState.FAILED, TaskState.CANCELLED, TaskState.UPSTREAM_FAILED):
            if self.counts[state] or self.cut is state:
                return state
        return TaskState.SUCCESS if self.counts[TaskState.SUCCESS] else TaskState.SKIPPED
