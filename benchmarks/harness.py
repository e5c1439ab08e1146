"""What every measurement shares: percentiles, and one JSON line per result."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ("RESULTS", "median", "percentiles", "report")

RESULTS = Path(__file__).parent / "results"


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return sorted(values)[len(values) // 2]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Minimum, p50, p99 and maximum."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "min": round(ordered[0], 3),
        "p50": round(ordered[last // 2], 3),
        "p99": round(ordered[round(last * 0.99)], 3),
        "max": round(ordered[last], 3),
        "n": len(ordered),
    }


def report(name: str, **facts: object) -> None:
    """Print one result as a JSON line, and keep it in ``results/<name>.jsonl``."""
    line = json.dumps({"benchmark": name, **facts, **_machine()}, default=str)
    print(line, flush=True)
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a") as file:
        file.write(line + "\n")


def _machine() -> dict[str, object]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    return {
        "commit": commit,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "platform": sys.platform,
    }
