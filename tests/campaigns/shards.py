"""Divide a campaign among the workers of pytest without losing a part of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ("Shard", "shards")


@dataclass(frozen=True)
class Shard:
    """Every ``of``-th part of a campaign, from ``number`` on; ``number`` counts from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}of{self.of}"

    def numbers(self) -> Iterator[int]:
        """Yield its numbers, without end: those of all shards together are 1, 2, 3, ..."""
        return itertools.count(self.number, self.of)

    def share(self, total: int) -> int:
        """Return how many of the numbers up to ``total`` it has; all shards together: ``total``."""
        return len(range(self.number, total + 1, self.of))


def shards(of: int) -> list[Shard]:
    """Return the shards of a campaign that is divided by ``of``."""
    return [Shard(number, of) for number in range(1, of + 1)]
