"""Seeds for as long as AIOFLOW_SIM_MINUTES says; the figures go to ``results/``."""

from __future__ import annotations

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.sim import coverage, loop_model, model
from tests.sim.shrink import shrink
from tests.sim.verdict import Verdict

RESULTS = Path(__file__).parent / "results"
MINUTES = float(os.environ.get("AIOFLOW_SIM_MINUTES", "10"))
LEAST = 100
"""Every outcome of a commit meets every kind of input so often, in ten minutes or more."""


@pytest.mark.nightly
@pytest.mark.parametrize(("level", "play"), [(1, model.play), (2, loop_model.play)])
def test_no_seed_breaks_a_promise(level: int, play: Callable[[int], Verdict]):
    """Each level has half the time; seeds go on from the day, so that no two are alike."""
    began = time.monotonic()
    today = datetime.now(UTC).date()
    first = seed = today.toordinal() * 10_000_000
    steps, points = 0, Counter[str]()
    broken: Verdict | None = None
    while broken is None and time.monotonic() - began < MINUTES * 30:
        verdict = play(seed)
        steps += verdict.steps
        points.update(verdict.points)
        broken = verdict if verdict.broken is not None else None
        seed += 1
    _write(level, first, seed, steps, time.monotonic() - began, points, broken)
    if broken is not None:
        pytest.fail(str(shrink(broken, 60, level=level)))
    assert points["restart"] >= 10 * MINUTES
    assert points["fenced repeat"] >= 10 * MINUTES
    assert points["run ended"] >= 100 * MINUTES
    if level == 1:
        assert not coverage.short(points, int(LEAST * min(MINUTES / 10, 1.0)))


def _write(
    level: int,
    first: int,
    end: int,
    steps: int,
    seconds: float,
    points: Counter[str],
    broken: Verdict | None,
) -> None:
    RESULTS.mkdir(exist_ok=True)
    line = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "level": level,
        "seeds": [first, end - 1],
        "turns": steps,
        "turns_per_minute": round(60 * steps / seconds),
        "broken": None if broken is None else [broken.seed, broken.broken],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}",
        "choice_points": dict(points.most_common()),
    }
    with (RESULTS / f"simulation-{datetime.now(UTC).date().isoformat()}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
