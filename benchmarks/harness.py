"""Shared code of the measurements: figures with their yardsticks, one JSON line per result."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

__all__ = (
    "RESULTS",
    "Figure",
    "Measure",
    "command",
    "commit_of_checkout",
    "median",
    "percentiles",
    "report",
)

RESULTS = Path(__file__).parent / "results"

Measure: TypeAlias = Callable[..., dict[str, Any]]
"""``measure(folder, **sizes)`` measures in a folder, reports the result and returns it."""


class Figure(NamedTuple):
    """One number of a result, with its yardstick.

    Attributes:
        yardstick: The machine's bare performance at the same work, measured in the same run.
        against: Describes the yardstick.
        at_most, at_least: The claim under test.
    """

    what: str
    value: float
    unit: str
    yardstick: float | None = None
    against: str = ""
    at_most: float | None = None
    at_least: float | None = None


def median(values: Sequence[float]) -> float:
    """Return the median; for an even number of values, the upper of the two middle ones."""
    return sorted(values)[len(values) // 2]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, p50, p99, maximum and count."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "min": round(ordered[0], 3),
        "p50": round(ordered[last // 2], 3),
        "p99": round(ordered[round(last * 0.99)], 3),
        "max": round(ordered[last], 3),
        "n": len(ordered),
    }


def report(name: str, *, figures: Sequence[Figure] = (), **facts: object) -> dict[str, Any]:
    """Print one result as a JSON line, append it to ``results/<name>.jsonl``, and return it."""
    written = [figure._asdict() for figure in figures]
    line = json.dumps({"benchmark": name, **facts, "figures": written, **_machine()}, default=str)
    print(line, flush=True)
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        file.write(line + "\n")
    result: dict[str, Any] = json.loads(line)
    return result


def command(description: str | None, measure: Measure, sizes: Mapping[str, Any]) -> None:
    """Run one measurement with its sizes as options. A list takes values separated by commas."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    for name, size in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=_reader(size), default=size)
    arguments = vars(parser.parse_args())
    with tempfile.TemporaryDirectory(prefix="aioflow-bench-") as folder:
        measure(Path(folder), **arguments)


def _reader(size: Any) -> Callable[[str], Any]:
    if not isinstance(size, list):
        reader: Callable[[str], Any] = type(size)
        return reader
    kind = type(size[0])
    return lambda text: [kind(part) for part in text.split(",")]


@cache
def commit_of_checkout() -> str:
    """Return the commit of this checkout, with ``-dirty`` if the tree has other changes.

    Recorded lines do not count, because each benchmark of a series appends to them.
    """
    git = partial(
        subprocess.run, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    commit = git(["git", "describe", "--always"]).stdout.strip()
    is_changed = git(["git", "diff", "--quiet", "HEAD", "--", "..", ":!results"]).returncode != 0
    return f"{commit}-dirty" if commit and is_changed else commit


def _machine() -> dict[str, object]:
    return {
        "commit": commit_of_checkout(),
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "platform": sys.platform,
    }
