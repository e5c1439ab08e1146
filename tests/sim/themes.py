"""Themes: most seeds have one or two. Each theme makes some rare faults frequent.

A seed draws a little of every fault, so that a combination of three is very rare. If all
probabilities were raised, no run would get far. A theme raises the probabilities of a few kinds of
faults, and the DAGs of its seeds are drawn to match.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

__all__ = ("ALL", "BACKFILLS", "CLOCK", "EVENTS", "HOSTS", "is_brief", "louder", "themes_of")

EVENTS, BACKFILLS, CLOCK, HOSTS = "events", "backfills", "clock", "hosts"
"""The themes: DAGs started by events, backfills, wall clocks that step, and triggers that move."""


class _Loud(msgspec.Struct, frozen=True):
    """The minimum probabilities of faults in the seeds of a theme, by level."""

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

_FIRST_BRIEF = 10_000
_BRIEF = _Loud(first={"cancel while claimed": 0.1})


def themes_of(seed: int) -> frozenset[str]:
    """Return the themes of a seed: none, one or two."""
    rng = random.Random(f"themes {seed}")
    return frozenset(rng.sample(ALL, rng.choice((0, 1, 1, 1, 2))))


def is_brief(seed: int) -> bool:
    """Return whether the functions of a seed are brief, so that tries are claimed.

    In low seeds they never are: those seeds were chosen by tests and planted bugs for the cases
    that occur in them.
    """
    return seed >= _FIRST_BRIEF and random.Random(f"brief {seed}").random() < 0.25


def louder(seed: int, level: int) -> dict[str, float]:
    """Return the minimum probabilities of faults for the themes of a seed."""
    odds: dict[str, float] = {}
    louds = [_THEMES[theme] for theme in sorted(themes_of(seed))]
    for loud in (*louds, _BRIEF) if is_brief(seed) else louds:
        for kind, least in (loud.first if level == 1 else loud.second).items():
            odds[kind] = max(odds.get(kind, 0.0), least)
    return odds
