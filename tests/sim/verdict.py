"""The result of a seed, and the points that it has covered."""

from __future__ import annotations

from collections import Counter

import msgspec

from tests.sim import evented
from tests.sim.faults import Fault
from tests.sim.ledger import Ledger
from tests.sim.tables import Tables

__all__ = ("Verdict", "met")


class Verdict(msgspec.Struct, kw_only=True):
    """The result of a seed."""

    seed: int
    steps: int
    digest: str
    points: Counter[str]
    broken: str | None = None
    faults: list[Fault] = []


def met(tables: Tables, ledger: Ledger) -> Counter[str]:
    """Count the covered points, from the rows and the ledger."""
    told = ledger.told
    return Counter(
        {
            "fenced repeat": tables.fenced,
            "retry": sum(row.try_number > 1 for row in tables.tasks.values()),
            "event consumed": len(tables.fired),
            "expansion": len(tables.expansions),
            "call answered": told.calls,
            "call replayed": told.replayed,
            "event of a stream": tables.consumed.total(),
            "event emitted": len(tables.named_events),
            "event told": told.named,
            "run called": len(tables.called),
            "item given on": len(tables.items),
            "open fan-out": tables.opened,
            "another round": len(ledger.again),
            "event handled": tables.handled,
            "run cleared": len(tables.cleared_runs),
            "run marked": len(tables.marked_runs),
            "run deleted": len(tables.deleted),
            "run ended": len(tables.ends),
            "run of an event": evented.runs_begun(tables),
            "run of a backfill": len(tables.filled),
        }
    )
