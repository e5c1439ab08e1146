"""Cost of one hop: from the end of a task to the start of the next.

Claim under test: 40 chained ``fibo(10)`` end 0.25 s after their run was created.

Method: a real daemon at ``durability=full``; times are the timestamps of the run's row. Median of
rounds. Yardstick: bare ``sqlite3`` writes the same task rows and journal in as many durable commits
as the run took, without anything between them.

    python -m benchmarks.hop --rounds 9
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.harness import Figure, command, median, report
from benchmarks.throughput import DAGS, chain_seconds, commit_no
from benchmarks.yardsticks import rows_seconds, written_since

FULL = {"rounds": 9}
TINY = {"rounds": 1}
HOPS = 40


def measure(folder: Path, *, rounds: int) -> dict[str, Any]:
    """Run the chain repeatedly and report the medians."""
    chains, bare, commits = [], [], []
    with DaemonProcess(folder / "home", DAGS, flags=("--cpu-slots", "2")) as daemon:
        chain_seconds(daemon)  # warm-up: later runs find all imports done
        for _ in range(rounds):
            before = commit_no(daemon)
            chains.append(chain_seconds(daemon))
            written = written_since(daemon, before)
            commits.append(written.commits)
            bare.append(rows_seconds(folder, written))
    fsync = fsync_ms(folder)
    against = "bare sqlite3: the same rows in as many commits"
    took, least = median(chains), median(bare)
    figures = [
        Figure("a chain of 40", round(took, 3), "s", round(least, 3), against, at_most=0.25),
        Figure(
            "one hop", round(1000 * took / HOPS, 2), "ms", round(1000 * least / HOPS, 2), against
        ),
    ]
    return report(
        "hop",
        figures=figures,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync,
        commits=commits,
        all_chains=[round(value, 3) for value in chains],
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
