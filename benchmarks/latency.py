"""Delay of a deferred task's resumption, and startup time of a daemon.

Claims under test: from the time a trigger is due to the first line of the resumed method, p50 is
below 15 ms at 100 triggers per second; the daemon is ready within 2 s of its start; all processes
together use less than 220 MiB. (Airflow 3.3.2: 0.4-1.5 s, 11 s, 508 MiB.)

Method: a real daemon at ``durability=full``. Each task defers a ``DateTimeTrigger``; its resumed
method, in a slot worker, returns the current wall time minus the due time, which a separate
connection reads from the results in the database. Startup is the time from the fork of the daemon
to the first positive ``/health/ready``, polled every 10 ms. Memory is the sum over all processes,
idle, proportional (PSS) and unique (USS).

    python -m benchmarks.latency --count 500 --per-second 100 --rounds 3
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.harness import command, median, percentiles, report

DAGS = Path(__file__).parent / "dags"
FULL = {"count": 500, "per_second": 100.0, "rounds": 3}
TINY = {"count": 20, "per_second": 100.0, "rounds": 1}


def lateness_ms(daemon: DaemonProcess, count: int, per_second: float) -> list[float]:
    """Run one DAG of deferred tasks; return the delay of each resumption in milliseconds."""
    conf = {"count": count, "per_second": per_second, "after": 2.0 + count / 500}
    run_id = daemon.trigger("lateness", conf)
    state = daemon.wait(run_id, timeout=60 + count / per_second)["state"]
    assert state == "success", state
    with daemon.database() as database:
        rows = database.execute(
            "SELECT result.body FROM result JOIN task USING (task_no) JOIN run ON"
            " run.run_no = task.run_no WHERE run.run_id = ? AND task.map_index >= 0",
            (run_id,),
        ).fetchall()
    assert len(rows) == count
    return [msgspec.msgpack.decode(body, type=float) for (body,) in rows]


def measure(folder: Path, *, count: int, per_second: float, rounds: int) -> dict[str, Any]:
    """Start ``rounds`` daemons, one after the other, and report the medians."""
    fsync = fsync_ms(folder)
    ready, p50s, p99s, memory, late = [], [], [], [], []
    for number in range(rounds):
        home = folder / f"home{number}"
        with DaemonProcess(home, DAGS, flags=("--cpu-slots", "2")) as daemon:
            ready.append(daemon.ready_seconds)
            memory.append(daemon.memory_mib())
            late = lateness_ms(daemon, count, per_second)
            p50s.append(percentiles(late)["p50"])
            p99s.append(percentiles(late)["p99"])
    return report(
        "latency",
        count=count,
        per_second=per_second,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync,
        late_ms={"p50": median(p50s), "p99": median(p99s)},
        last_round=percentiles(late),
        ready_seconds=round(median(ready), 2),
        idle_memory_mib=memory[0],
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
