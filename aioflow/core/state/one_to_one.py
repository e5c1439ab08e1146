"""Queue of the children of a mapped task that may start, for children that follow others."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ("OneToOne",)


class OneToOne:
    """Children of a mapped task that each wait for the child of another task with the same index.

    Attributes:
        widths: Number of items in each list that the task expands over.
        judged: Number of children evaluated since the expansion, from the first on.
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
