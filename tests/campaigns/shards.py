"""Division of a campaign among the workers of pytest, without losing a part of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ("Shard", "shards")


@dataclass(frozen=True)
class Shard:
    """Every ``of``-th part of a campaign, beginning with part ``number``. Parts count from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}of{self.of}"

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of this shard endlessly. All shards together yield 1, 2, 3, ..."""
        return itertools.count(self.number, self.of)

    def share(self, total: int) -> int:
        """Return how many of the numbers up to ``total`` belong to this shard."""
        return len(range(self.number, total + 1, self.of))


def shards(of: int) -> list[Shard]:
    """Return the shards of a campaign that is divided into ``of`` parts."""
    return [Shard(number, of) for number in range(1, of + 1)]
