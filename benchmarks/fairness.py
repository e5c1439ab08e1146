"""Delay of a small DAG behind thousands of ready tasks of another DAG.

Claim under test: 8,000 ready tasks of 0.2 s of one DAG delay a chain of three tasks of another DAG,
of equal priority, by at most two turnovers of the slots (p95 of ten tries).

Method: a real daemon at ``durability=full`` on two slots. Both slots are occupied by the wide DAG
when the small one is triggered. The delay is the duration of the small DAG's run, by the timestamps
of its row, minus the median of as many runs on the idle daemon before. A turnover is the duration
of one task of the wide DAG. Yardstick: the small DAG alone.

    python -m benchmarks.fairness --ready 8000 --tries 10 --seconds 0.2
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.daemon import DaemonProcess, eventually, fsync_ms
from benchmarks.harness import Figure, command, median, report
from benchmarks.throughput import DAGS

FULL = {"ready": 8_000, "tries": 10, "seconds": 0.2}
TINY = {"ready": 600, "tries": 2, "seconds": 0.05}
SLOTS = 2


def small_seconds(daemon: DaemonProcess) -> float:
    """Run the small DAG; return its duration according to its row."""
    run_id = daemon.trigger("three")
    state = daemon.wait(run_id)["state"]
    assert state == "success", state
    with daemon.database() as database:
        began, ended = database.execute(
            "SELECT created_at, ended_at FROM run WHERE run_id = ?", (run_id,)
        ).fetchone()
    return float(ended - began) / 1e6


def crowd(daemon: DaemonProcess, ready: int, seconds: float) -> str:
    """Start the wide DAG and wait until it occupies all slots, with ``ready`` tasks queued."""
    run_id = daemon.trigger("fan_sleeping", {"count": ready + SLOTS, "seconds": seconds})
    eventually(lambda: daemon.run(run_id, limit=1)["counts"].get("running") == SLOTS)
    return run_id


def measure(folder: Path, *, ready: int, tries: int, seconds: float) -> dict[str, Any]:
    """Measure the small DAG alone and beside the wide one, and report the delays."""
    with DaemonProcess(folder / "home", DAGS, flags=("--cpu-slots", str(SLOTS))) as daemon:
        small_seconds(daemon)  # warm-up: later runs find all imports done
        alone = [small_seconds(daemon) for _ in range(tries)]
        wide = crowd(daemon, ready, seconds)
        behind = [small_seconds(daemon) for _ in range(tries)]
        run = daemon.run(wide, limit=1)
        assert run["state"] == "running", "the crowd was gone before the last try ended"
        ended = run["counts"].get("success", 0)
        daemon.request("POST", f"/api/v1/runs/{wide}/cancel")
        daemon.wait(wide)
    delays = sorted(max(0.0, took - median(alone)) / seconds for took in behind)
    return report(
        "fairness",
        figures=[
            Figure(
                f"delay of a chain of three behind {ready:,} ready tasks, p95",
                round(delays[round((tries - 1) * 0.95)], 2),
                "turnovers",
                at_most=2.0,
            ),
            Figure(
                f"a chain of three behind {ready:,} ready tasks",
                round(median(behind), 3),
                "s",
                round(median(alone), 3),
                "the same DAG alone",
            ),
        ],
        ready=ready,
        tries=tries,
        seconds=seconds,
        slots=SLOTS,
        durability="full",
        fsync_ms=fsync_ms(folder),
        ended_of_the_crowd=ended,
        turnovers=[round(delay, 3) for delay in delays],
        seconds_alone=[round(took, 4) for took in alone],
        seconds_behind=[round(took, 4) for took in behind],
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
