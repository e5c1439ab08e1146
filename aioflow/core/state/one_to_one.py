"""Which children of a fan-out may start that follows another: they come in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ("OneToOne",)


class OneToOne:
    """The children of a fan-out that wait for those of another task, index by index.

    Attributes:
        widths: How many items each list has that the task expands over.
        judged: How many children have been judged since it expanded, from the first on.
    """

    __slots__ = ("_queue", "_queued", "judged", "widths")

    def __init__(self, widths: Sequence[int], width: int) -> None:
        self.widths = tuple(widths)
        self.judged = 0
        self._queue: deque[int] = deque()
        self._queued = bytearray(width)

    def __len__(self) -> int:
        return len(self._queue)

    def let(self, index: int) -> None:
        """A child may start; a second time changes nothing."""
        if not self._queued[index]:
            self._queued[index] = 1
            self._queue.append(index)

    def grow(self) -> None:
        """There is another child."""
        self._queued.append(0)

    def may_start(self, index: int) -> bool:
        """Whether a child was let."""
        return bool(self._queued[index])

    def take(self) -> int:
        """Return the child that starts next; there has to be one."""
        return self._queue.popleft()
