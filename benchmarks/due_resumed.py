"""Delay of a deferred task's resumption while many others are deferred.

Claim under test: with 1,000 other triggers deferred, and 1,000 triggers due per second, the first
line of the resumed method runs within 3 ms of its due time (p50) and 15 ms (p99).

Method: a real daemon at ``durability=full`` on two slots, with other triggers deferred. Each task
defers a ``DateTimeTrigger``; its resumed method, in a slot worker, returns the wall time minus the
due time. The rates alternate; medians of rounds. Yardstick: bare ``asyncio`` tasks that sleep until
the same times, plus one durable commit of bare ``sqlite3``; between the due time and the resumed
line there are one commit (the event, with the start) and two links.

    python -m benchmarks.due_resumed --per-second 100,1000 --seconds 3 --deferred 1000 --rounds 3
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.harness import Figure, command, median, percentiles, report
from benchmarks.latency import DAGS, lateness_ms
from benchmarks.waiting import defer
from benchmarks.yardsticks import bare_lateness_ms, commit_ms

FULL = {"per_second": [100, 1000], "seconds": 3.0, "deferred": 1000, "rounds": 3}
TINY = {"per_second": [100], "seconds": 0.3, "deferred": 20, "rounds": 1}
CLAIM_AT = 1000  # per second


def measure(
    folder: Path, *, per_second: list[int], seconds: float, deferred: int, rounds: int
) -> dict[str, Any]:
    """Alternate the rates on one daemon and report the medians."""
    late: dict[int, list[dict[str, float]]] = {rate: [] for rate in per_second}
    bare: dict[int, list[dict[str, float]]] = {rate: [] for rate in per_second}
    with DaemonProcess(folder / "home", DAGS, flags=("--cpu-slots", "2")) as daemon:
        lateness_ms(daemon, 20, 100.0)  # warm-up: later runs find all imports done
        defer(daemon, deferred)
        for _ in range(rounds):
            for rate in per_second:
                count = max(10, int(rate * seconds))
                late[rate].append(percentiles(lateness_ms(daemon, count, rate)))
                bare[rate].append(percentiles(bare_lateness_ms(count, rate)))
        fsync, commit = fsync_ms(folder), commit_ms(folder)
    figures = [
        Figure(
            f"due to resumed, {name}, {rate}/s",
            round(median([one[name] for one in late[rate]]), 2),
            "ms",
            round(median([one[name] for one in bare[rate]]) + commit, 2),
            "bare asyncio.sleep + one bare commit",
            at_most=(3.0 if name == "p50" else 15.0) if rate == CLAIM_AT else None,
        )
        for rate in per_second
        for name in ("p50", "p99")
    ]
    return report(
        "due_resumed",
        figures=figures,
        deferred=deferred,
        seconds=seconds,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync,
        commit_ms=commit,
        late_ms=late,
        bare_late_ms=bare,
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
