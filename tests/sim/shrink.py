"""The least that still breaks: faults are left out one by one, then tasks of the DAGs."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from tests.sim.faults import Fault
from tests.sim.model import Verdict, dags_of, play

__all__ = ("Minimal", "shrink")


class Minimal(msgspec.Struct):
    """What is left of a seed that broke something."""

    seed: int
    broken: str
    faults: list[Fault]
    left_out: frozenset[Fault]
    dropped: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        faults = ", ".join(f"{kind} #{number}" for kind, number in self.faults) or "no fault"
        return f"seed {self.seed}: {self.broken}\n  with {faults}\n  without tasks {self.dropped}"


def shrink(
    verdict: Verdict, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Minimal:
    """Shrink a broken seed for so many seconds at most; the same invariant must still break."""
    assert verdict.broken is not None
    until = clock() + seconds
    name = verdict.broken.partition(":")[0]
    left_out: frozenset[Fault] = frozenset()
    dropped: tuple[tuple[int, int], ...] = ()

    def still(faults: frozenset[Fault], tasks: tuple[tuple[int, int], ...]) -> Verdict | None:
        again = play(verdict.seed, faults, tasks)
        same = again.broken is not None and again.broken.partition(":")[0] == name
        return again if same else None

    best = verdict
    for fault in reversed(verdict.faults):
        if clock() > until:
            break
        if (again := still(left_out | {fault}, dropped)) is not None:
            best, left_out = again, left_out | {fault}
    for number, spec in enumerate(dags_of(verdict.seed)):
        for position in reversed(range(1, len(spec.tasks))):
            if clock() > until:
                break
            if (again := still(left_out, (*dropped, (number, position)))) is not None:
                best, dropped = again, (*dropped, (number, position))
    return Minimal(verdict.seed, best.broken or "", best.faults, left_out, dropped)
