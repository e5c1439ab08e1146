"""Row numbers, leased ahead so that deciding needs no database."""

from __future__ import annotations

__all__ = ("IdBlock",)


class IdBlock:
    """Row numbers leased ahead from the store."""

    __slots__ = ("end", "first")

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end

    @property
    def left(self) -> int:
        """How many can still be taken."""
        return self.end - self.first

    def take(self, count: int = 1) -> int:
        """Return the first of ``count`` consecutive numbers.

        Raises:
            ValueError: If the block is too short, or ``count`` is negative. The engine leases
                ``numbers_needed`` before each turn, so this is a defect.
        """
        if not 0 <= count <= self.left:
            raise ValueError(f"{count} numbers asked for, {self.left} leased")
        first = self.first
        self.first += count
        return first
