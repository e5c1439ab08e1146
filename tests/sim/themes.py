"""What a seed is about: most have a theme or two, each of which makes dense what is rare.

Of all that may go wrong a seed draws a little of everything, so that what takes three things at
once hardly comes. Raising all odds would have nothing get far; a theme raises those of a few
kinds, and the DAGs of its seeds are drawn for it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

__all__ = ("ALL", "BACKFILLS", "CLOCK", "EVENTS", "HOSTS", "louder", "themes_of")

EVENTS, BACKFILLS, CLOCK, HOSTS = "events", "backfills", "clock", "hosts"
"""DAGs that events start; runs for what has passed; a clock that is set; triggers that move."""


class _Loud(msgspec.Struct, frozen=True):
    """How likely kinds of faults are at least in a seed of a theme, by level."""

    first: Mapping[str, float] = {}
    second: Mapping[str, float] = {}


_CRASHES = {"crash before": 0.003, "crash after": 0.01}

_THEMES = {
    EVENTS: _Loud(
        first={**_CRASHES, "batch refused": 0.5, "refused for good": 0.5, "files change": 0.1},
        second={**_CRASHES, "event refused": 0.2, "trigger host dies": 0.03},
    ),
    BACKFILLS: _Loud(first=_CRASHES, second=_CRASHES),
    HOSTS: _Loud(
        first={"trigger stalls": 0.3, "code changes": 0.4},
        second={"trigger stalls": 0.15, "trigger misbehaves": 0.2},
    ),
    CLOCK: _Loud(second={"clock steps": 0.05}),
}

ALL = tuple(sorted(_THEMES))


def themes_of(seed: int) -> frozenset[str]:
    """Return the themes of a seed: none, one or two."""
    rng = random.Random(f"themes {seed}")
    return frozenset(rng.sample(ALL, rng.choice((0, 1, 1, 1, 2))))


def louder(seed: int, level: int) -> dict[str, float]:
    """Return how likely which faults are at least, for the themes of a seed."""
    odds: dict[str, float] = {}
    for theme in sorted(themes_of(seed)):
        loud = _THEMES[theme]
        for kind, least in (loud.first if level == 1 else loud.second).items():
            odds[kind] = max(odds.get(kind, 0.0), least)
    return odds
