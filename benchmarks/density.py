"""Cost of a deferred trigger, in bytes and in processor time.

Question: bytes per trigger in all processes together, by kind and number, and microseconds of
processor time per second while nothing happens.

Method: that of ``aioflow bench density``, whose code this uses; see there. Each kind and number is
measured on a daemon of its own, deferred by one wide map; for one number, also by as many runs. The
largest number is measured with time triggers alone. Yardstick: as many bare ``asyncio`` tasks that
sleep, in one process.

    python -m benchmarks.density --triggers 1000,10000,50000 --kinds time,file,run,mixed,private
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from aioflow.cli.density import Density, write_density_plot
from aioflow.cli.density import measure as defer
from benchmarks import harness
from benchmarks.daemon import fsync_ms
from benchmarks.harness import Figure, command, report

FULL = {
    "triggers": [10_000, 100_000],
    "kinds": ["time", "file", "run", "mixed", "private"],
    "runs": 10_000,
    "instants": 1_000_000,
    "seconds": 10.0,
}
TINY = {"triggers": [20], "kinds": ["mixed"], "runs": 5, "instants": 30, "seconds": 0.2}

MOST_BYTES = 800
"""Limit for a trigger in all processes, in bytes, if it shares its poller with others of its kind.
"""
MOST_PRIVATE_BYTES = 3_500
"""The same limit for a trigger with its own coroutine."""


def measure(
    folder: Path,
    *,
    triggers: list[int],
    kinds: list[str],
    runs: int,
    instants: int,
    seconds: float,
) -> dict[str, Any]:
    """Measure each kind at each number and report the cost per trigger."""
    wide = [defer(kind, count, seconds=seconds) for count in triggers for kind in kinds]
    many = [defer(kind, runs, shape="runs", seconds=seconds) for kind in ("time", "mixed")]
    many.append(defer("time", instants, seconds=seconds))
    result = report(
        "density",
        figures=[figure for one in (*wide, *many) for figure in _figures(one)],
        seconds=seconds,
        fsync_ms=fsync_ms(folder),
        measured=[msgspec.to_builtins(one) for one in (*wide, *many)],
    )
    write_density_plot(harness.RESULTS / "density.svg", wide)
    return result


def _figures(one: Density) -> list[Figure]:
    shape = "one map" if one.shape == "wide" else "as many runs"
    name = f"deferred {one.kind}, {one.triggers:,} in {shape}"
    against = "a bare asyncio task"
    most = MOST_PRIVATE_BYTES if one.kind == "private" else MOST_BYTES
    at_most = None if one.kind == "mixed" else most
    return [
        Figure(name, one.bytes_each, "bytes", one.bare.bytes_each, against, at_most=at_most),
        Figure(f"{name}, idle", one.idle_us_each, "us/s", one.bare.idle_us_each, against),
    ]


if __name__ == "__main__":
    command(__doc__, measure, FULL)
