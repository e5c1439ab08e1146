"""Blocks of row numbers, leased ahead so that decisions need no database access."""

from __future__ import annotations

__all__ = ("IdBlock",)


class IdBlock:
    """A block of row numbers leased from the store."""

    __slots__ = ("end", "first")

    def __init__(self, first: int, end: int) -> None:
        self.first = first
        self.end = end

    @property
    def left(self) -> int:
        """Number of row numbers that remain in the block."""
        return self.end - self.first

    def take(self, count: int = 1) -> int:
        """Take ``count`` consecutive numbers from the block, and return the first.

        Raises:
            ValueError: If the block is too short or ``count`` is negative. This is a bug: the
                engine leases ``numbers_needed`` before each turn.
        """
        if not 0 <= count <= self.left:
            raise ValueError(f"{count} numbers asked for, {self.left} leased")
        first = self.first
        self.first += count
        return first
