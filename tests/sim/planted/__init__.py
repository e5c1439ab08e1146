"""Planted bugs. Each breaks one promise, to show that the tests under ``tests/sim`` notice it."""

from __future__ import annotations

from tests.sim.planted import (
    cluster,
    decisions,
    engine,
    events,
    executors,
    hosting,
    interpreters,
    operations,
    reports,
    restart,
    slots,
    store,
    turns,
)

__all__ = ("BUGS", "THEMES")

THEMES = (
    store,
    engine,
    reports,
    turns,
    slots,
    restart,
    hosting,
    operations,
    events,
    executors,
    interpreters,
    decisions,
    cluster,
)

BUGS = {bug.name: bug for theme in THEMES for bug in theme.BUGS}
