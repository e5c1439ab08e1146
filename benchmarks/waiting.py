"""Effect of thousands of waiting sensors on the rate of other tasks.

Claim under test: while 5,000 sensors wait (alternating for times, files and runs), 50 ms ``def``
tasks on two slots run at 0.95 or more of their rate without the sensors.

Method: two daemons, one with the sensors deferred and one without, alternate in running the same
fan-out of 50 ms tasks. While one is measured, the whole process tree of the other is stopped by
SIGSTOP; after SIGCONT it is given time to catch up. The figure is the median of the ratios of
``--pairs`` interleaved pairs.

    python -m benchmarks.waiting --waits 5000 --pairs 9
"""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.daemon import DaemonProcess, eventually, fsync_ms
from benchmarks.harness import Figure, command, median, report

DAGS = Path(__file__).parent / "dags"
FULL = {"waits": 5_000, "pairs": 9, "tasks": 80}
TINY = {"waits": 20, "pairs": 1, "tasks": 4}
SETTLE_SECONDS = 1.5
TASK_DEFERRED = 4


def seconds(daemon: DaemonProcess, tasks: int) -> float:
    """Run the fan-out once; return its duration according to its rows."""
    run_id = daemon.trigger("fan_slow", {"count": tasks})
    daemon.wait(run_id)
    with daemon.database() as database:
        first, last = database.execute(
            "SELECT min(task.started_at), max(task.ended_at) FROM task JOIN run USING (run_no)"
            " WHERE run.run_id = ? AND task.map_index >= 0",
            (run_id,),
        ).fetchone()
    return (last - first) / 1e6


def _signal(daemon: DaemonProcess, number: signal.Signals) -> None:
    for process in daemon.tree():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def defer(daemon: DaemonProcess, waits: int) -> None:
    """Start a run and wait until ``waits`` tasks are deferred."""
    daemon.trigger("waits", {"count": waits})

    def deferred() -> bool:
        with daemon.database() as database:
            count = database.execute(
                "SELECT count(*) FROM task WHERE state = ?", (TASK_DEFERRED,)
            ).fetchone()[0]
        return bool(count == waits)

    eventually(deferred, 120.0)


def measure(folder: Path, *, waits: int, pairs: int, tasks: int) -> dict[str, Any]:
    """Alternate the two daemons and report the median ratio."""
    flags = ("--cpu-slots", "2")
    with (
        DaemonProcess(folder / "alone", DAGS, flags=flags) as alone,
        DaemonProcess(folder / "waiting", DAGS, flags=flags) as waiting,
    ):
        defer(waiting, waits)
        for daemon in (alone, waiting):
            seconds(daemon, 4)
        memory = {"alone": alone.memory_mib(), "waiting": waiting.memory_mib()}
        took: dict[DaemonProcess, list[float]] = {alone: [], waiting: []}
        for pair in range(pairs):
            order = (alone, waiting) if pair % 2 == 0 else (waiting, alone)
            for measured in order:
                other = waiting if measured is alone else alone
                _signal(other, signal.SIGSTOP)
                try:
                    time.sleep(SETTLE_SECONDS)
                    took[measured].append(seconds(measured, tasks))
                finally:
                    _signal(other, signal.SIGCONT)
    ratios = [a / w for a, w in zip(took[alone], took[waiting], strict=True)]
    ratio = round(median(ratios), 4)
    return report(
        "waiting",
        figures=[
            Figure(
                f"rate of 50 ms tasks beside {waits:,} waits",
                ratio,
                "of it alone",
                1.0,
                "the same tasks on a daemon without waits, by turns",
                at_least=0.95,
            )
        ],
        waits=waits,
        pairs=pairs,
        tasks=tasks,
        fsync_ms=fsync_ms(folder),
        throughput_ratio=ratio,
        ratios=[round(ratio, 4) for ratio in ratios],
        seconds_alone=round(median(took[alone]), 3),
        seconds_waiting=round(median(took[waiting]), 3),
        memory_mib=memory,
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
