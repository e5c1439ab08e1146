"""Seeds of the simulator for ``AIOFLOW_SIM_MINUTES`` minutes, 10 by default.

The minutes are processor time, so other load on the machine does not reduce the number of seeds.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.campaigns.record import record
from tests.sim import coverage, loop_model, model
from tests.sim.shrink import shrink
from tests.sim.verdict import Verdict

MINUTES = float(os.environ.get("AIOFLOW_SIM_MINUTES", "10"))
LEAST = 100
"""How often each outcome of a commit must meet each kind of input in ten minutes or more."""

SLOWEST = 3
"""A machine that meets too few cases in the given time may take up to this many times as long."""


@pytest.mark.nightly
@pytest.mark.timeout(2 * SLOWEST * MINUTES * 30 + 600)
@pytest.mark.parametrize(("level", "play"), [(1, model.play), (2, loop_model.play)])
def test_no_seed_breaks_a_promise(level: int, play: Callable[[int], Verdict]):
    """Play seeds for half of the time at each level. Seeds begin with the date: nights differ."""
    began = time.process_time()
    today = datetime.now(UTC).date()
    first = seed = today.toordinal() * 10_000_000
    steps, points = 0, Counter[str]()
    broken: Verdict | None = None

    def is_enough() -> bool:
        halves = (time.process_time() - began) / (MINUTES * 30)
        return halves >= SLOWEST or (halves >= 1 and not short(level, points))

    while broken is None and not is_enough():
        verdict = play(seed)
        steps += verdict.steps
        points.update(verdict.points)
        broken = verdict if verdict.broken is not None else None
        seed += 1
    seconds = time.process_time() - began
    record(
        "simulation",
        level=level,
        seeds=[first, seed - 1],
        turns=steps,
        turns_per_minute=round(60 * steps / seconds),
        broken=None if broken is None else [broken.seed, broken.broken],
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}",
        choice_points=dict(points.most_common()),
    )
    if broken is not None:
        pytest.fail(str(shrink(broken, 60, level=level)))
    assert not short(level, points)


def short(level: int, points: Counter[str]) -> dict[str, int]:
    """Return the cases that this campaign has met too rarely, with their counts."""
    least = {"restart": 10, "fenced repeat": 10, "run ended": 100}
    found = {name: points[name] for name, rate in least.items() if points[name] < rate * MINUTES}
    if level == 1:
        found |= coverage.short(points, int(LEAST * min(MINUTES / 10, 1.0)))
    return found
