"""Faults, drawn from the seed. Each fault has a name by which it can be left out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

__all__ = ("Fault", "Faults")

Fault: TypeAlias = tuple[str, int]
"""The kind of a fault, and its number among the faults of that kind."""

KINDS = {
    "commit fails": 0.3,
    "reply lost": 0.3,
    "crash before": 0.04,
    "crash after": 0.04,
    "commit delayed": 0.4,
    "batch refused": 0.3,
    "refused for good": 0.3,
    "result unstorable": 0.02,
    "input poisoned": 0.02,
    "node pauses": 0.02,
    "report of the dead": 0.8,
    "database away": 0.05,
    "turn cut": 0.6,
    "worker dies": 0.15,
    "report repeated": 0.2,
    "report late": 0.3,
    "async host dies": 0.15,
    "trigger host dies": 0.15,
    "try hangs": 0.1,
    "trigger hangs": 0.2,
    "trigger repeats": 0.3,
    "stale event": 0.2,
    "no room": 0.1,
    "trigger stalls": 0.3,
    "evicted": 0.6,
    "fails while suspended": 0.1,
    "code changes": 0.8,
    "clock steps": 0.01,
    "operator": 0.2,
    "cancel while claimed": 0.1,
    "files change": 0.2,
    "drain": 0.15,
}
"""The highest probability of each kind at a single opportunity."""


class Faults:
    """Draws whether a fault happens.

    A seed has its own intensity for each kind, and some seeds are quiet. Intense seeds find unsafe
    behaviour; quiet seeds find work that gets stuck.

    Attributes:
        happened: The faults that happened, in order.
        healed: Whether faults have ended for good.
    """

    def __init__(
        self,
        rng: random.Random,
        left_out: frozenset[Fault] = frozenset(),
        louder: Mapping[str, float] | None = None,
    ) -> None:
        loudness = rng.choice((0.0, 0.1, 0.3, 1.0, 1.0))
        self._odds = {
            kind: most * loudness * rng.random() * rng.choice((0, 1, 1))
            for kind, most in KINDS.items()
        }
        self._raise(louder or {})
        self._rng = random.Random(rng.getrandbits(64))
        self._left_out = left_out
        self._seen: Counter[str] = Counter()
        self.happened: list[Fault] = []
        self.healed = False

    def _raise(self, louder: Mapping[str, float]) -> None:
        """Raise the probability of each given kind to at least the given value."""
        for kind, least in louder.items():
            self._odds[kind] = max(self._odds[kind], least)

    def happens(self, kind: str, times: float = 1.0) -> bool:
        """Return whether a fault of this kind happens at this opportunity.

        Args:
            times: Factor by which the probability exceeds that of an ordinary opportunity.
        """
        if self.healed or self._rng.random() >= self._odds[kind] * times:
            return False
        self._seen[kind] += 1
        return self._takes((kind, self._seen[kind]))

    def is_asked(self) -> bool:
        """Return whether the next request is made. Like a fault, it can be left out."""
        self._seen["request"] += 1
        return self._takes(("request", self._seen["request"]))

    def _takes(self, fault: Fault) -> bool:
        if fault in self._left_out:
            return False
        self.happened.append(fault)
        return True
