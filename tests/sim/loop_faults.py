"""Faults of the second level: those of the first level, and those that need a real store."""

from __future__ import annotations

import random

from tests.sim import faults
from tests.sim.faults import Fault, Faults
from tests.sim.themes import louder

__all__ = ("LoopFaults",)

KINDS = {
    "result unstorable": 0.1,
    "wrong guard": 0.3,
    "reply delayed": 0.3,
    "node replaced": 0.06,
    "power cut": 0.06,
    "claim unheard": 0.3,
    "key lost": 0.4,
    "drained": 0.4,
    "ended at once": 0.4,
    "no process": 0.7,
    "trigger host hangs": 0.15,
    "trigger host dies": 0.3,
    "trigger misbehaves": 0.7,
    "capacity": 0.7,
    "evicted": 0.3,
    "event refused": 0.1,
    "trigger stalls": 0.1,
    "fails while suspended": 0.1,
}
"""The highest probability of each kind at a single opportunity."""


class LoopFaults(Faults):
    """Draws each kind from its own random generator, so that leaving out one kind changes no other.

    The number of a fault is the number of its opportunity.
    """

    def __init__(self, seed: int, left_out: frozenset[Fault] = frozenset()) -> None:
        rng = random.Random(f"faults {seed}")
        super().__init__(rng, left_out)
        loudness = rng.choice((0.0, 0.3, 1.0, 1.0))
        for kind, most in {**faults.KINDS, **KINDS}.items():
            self._odds[kind] = most * loudness * rng.random() * rng.choice((0, 1, 1, 1))
        self._raise(louder(seed, 2))
        self._chances = {kind: random.Random(f"{kind} {seed}") for kind in self._odds}

    def happens(self, kind: str, times: float = 1.0) -> bool:
        """See ``Faults``."""
        if self.healed:
            return False
        self._seen[kind] += 1
        drawn = self._chances[kind].random() < self._odds[kind] * times
        return drawn and self._takes((kind, self._seen[kind]))
