"""Time until a burst of triggers that are due at the same time has been handled.

Claim under test: 10,000 triggers are due at the same time. On two slots, after 1.5 s the last of
their tasks has resumed and ended, and its success is on disk.

Method: a real daemon at ``durability=full``. All tasks are deferred until the same time.
``resumed`` is the latest wall time at which a resumed line ran. ``durable`` is when a separate
connection first sees the last success, polled every 5 ms. Both are medians of rounds. Yardstick:
bare ``sqlite3`` writes the same rows and journal in as many commits as the daemon made.

    python -m benchmarks.burst --count 10000 --rounds 3
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.daemon import DaemonProcess, eventually, fsync_ms
from benchmarks.harness import Figure, command, median, report
from benchmarks.latency import DAGS, lateness_ms
from benchmarks.waiting import TASK_DEFERRED
from benchmarks.yardsticks import rows_seconds, written_since

FULL = {"count": 10_000, "rounds": 3}
TINY = {"count": 50, "rounds": 1}
DEFERRED_PER_SECOND = 1_200  # lower bound, used to choose the due time


class Burst(NamedTuple):
    """Seconds since the due time."""

    resumed: float
    durable: float
    yardstick: float
    commits: int


def burst(daemon: DaemonProcess, folder: Path, count: int) -> Burst:
    """Run one burst and wait until the last success can be read.

    If not all tasks were deferred before the due time, repeat the burst with a later due time.
    """
    for lead in (3.0, 9.0, 27.0):
        if (found := _burst(daemon, folder, count, lead)) is not None:
            return found
    raise AssertionError("due before all were deferred: the machine is too slow for this")


def _burst(daemon: DaemonProcess, folder: Path, count: int, lead: float) -> Burst | None:
    """Return the result of one burst, or ``None`` if it was due before all tasks were deferred."""
    due = time.time() + lead + count / DEFERRED_PER_SECOND
    run_id = daemon.trigger("burst", {"count": count, "due": due})
    with daemon.database() as database:

        def number(sql: str) -> int:
            return int(database.execute(sql, (run_id,)).fetchone()[0])

        eventually(lambda: number(DEFERRED) == count or time.time() >= due, due - time.time() + 30)
        if time.time() >= due:
            daemon.wait(run_id)
            return None
        before = number("SELECT commit_no FROM node WHERE ? NOT NULL")
        eventually(lambda: number(IS_OVER), due - time.time() + 120, look_seconds=0.005)
        durable = time.time() - due
        rows = database.execute(RESULTS, (run_id,)).fetchall()
    late = [msgspec.msgpack.decode(body, type=float) for (body,) in rows]
    assert len(late) == count
    written = written_since(daemon, before)
    return Burst(max(late) / 1000, durable, rows_seconds(folder, written), written.commits)


DEFERRED = (
    "SELECT count(*) FROM task JOIN run USING (run_no)"
    f" WHERE run.run_id = ? AND task.state = {TASK_DEFERRED}"
)
IS_OVER = "SELECT ended_at NOT NULL FROM run WHERE run_id = ?"
RESULTS = (
    "SELECT result.body FROM result JOIN task USING (task_no) JOIN run ON"
    " run.run_no = task.run_no WHERE run.run_id = ? AND task.map_index >= 0"
)


def measure(folder: Path, *, count: int, rounds: int) -> dict[str, Any]:
    """Measure on one daemon and report the medians."""
    with DaemonProcess(folder / "home", DAGS, flags=("--cpu-slots", "2")) as daemon:
        lateness_ms(daemon, 20, 100.0)  # warm-up: later runs find all imports done
        seen = [burst(daemon, folder, count) for _ in range(rounds)]
        fsync = fsync_ms(folder)
    yardstick = round(median([one.yardstick for one in seen]), 4)
    against = "bare sqlite3: the same rows in as many commits"
    resumed = round(median([one.resumed for one in seen]), 3)
    durable = round(median([one.durable for one in seen]), 3)
    figures = [
        Figure(f"{count:,} due at once, last resumed", resumed, "s", yardstick, against),
        Figure(f"{count:,} due at once, all durable", durable, "s", yardstick, against, 1.5),
    ]
    return report(
        "burst",
        figures=figures,
        count=count,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync,
        all_rounds=[one._asdict() for one in seen],
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
