"""Time until thousands of newly deferred triggers run in the triggerer.

Claim under test: of 10,000 triggers with a coroutine of their own, which are created at the same
time, the last runs 1 s later. (Airflow 3.3.2: 204 s.)

Method: a real daemon at ``durability=full``. A mapped operator starts from its trigger, so no
worker is involved. Each child's row, its wait and its assignment are committed before the first
line of its ``run``, which notes the wall time. The time is measured from the end of the task that
returns the list, according to its row, to the last of these wall times. Median of rounds.
Yardstick: bare ``sqlite3`` writes the same rows and journal in as many commits.

    python -m benchmarks.handed_over --count 10000 --rounds 5
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.harness import Figure, command, median, report
from benchmarks.latency import DAGS, lateness_ms
from benchmarks.yardsticks import rows_seconds, written_since

FULL = {"count": 10_000, "rounds": 5}
TINY = {"count": 30, "rounds": 1}


class Handed(NamedTuple):
    """Seconds since the list was returned."""

    first: float
    last: float
    yardstick: float


def handed_over(daemon: DaemonProcess, folder: Path, count: int) -> Handed:
    """Start a run of ``count`` triggers and wait for its end."""
    with daemon.database() as database:
        (before,) = database.execute("SELECT commit_no FROM node").fetchone()
        run_id = daemon.trigger("handed_over", {"count": count})
        assert daemon.wait(run_id)["state"] == "success"
        (known,) = database.execute(LISTED, (run_id,)).fetchone()
        (body,) = database.execute(BEGUN, (run_id,)).fetchone()
    first, last = msgspec.msgpack.decode(body, type=tuple[float, float])
    yardstick = rows_seconds(folder, written_since(daemon, before))
    return Handed(first - known / 1e6, last - known / 1e6, yardstick)


LISTED = (
    "SELECT task.ended_at FROM task JOIN run USING (run_no)"
    " WHERE run.run_id = ? AND task.map_index < 0 AND task.ended_at NOT NULL"
    " ORDER BY task.ended_at LIMIT 1"
)
BEGUN = (
    "SELECT result.body FROM result JOIN task USING (task_no) JOIN run ON"
    " run.run_no = task.run_no WHERE run.run_id = ? AND task.map_index = 0"
)


def measure(folder: Path, *, count: int, rounds: int) -> dict[str, Any]:
    """Measure on one daemon and report the medians."""
    with DaemonProcess(folder / "home", DAGS, flags=("--cpu-slots", "2")) as daemon:
        lateness_ms(daemon, 20, 100.0)  # warm-up: later runs find all imports done
        seen = [handed_over(daemon, folder, count) for _ in range(rounds)]
        fsync = fsync_ms(folder)
    yardstick = round(median([one.yardstick for one in seen]), 4)
    against = "bare sqlite3: the rows of the whole run in as many commits"
    first = round(median([one.first for one in seen]), 3)
    last = round(median([one.last for one in seen]), 3)
    return report(
        "handed_over",
        figures=[
            Figure(f"{count:,} handed over, first runs", first, "s", yardstick, against),
            Figure(f"{count:,} handed over, last runs", last, "s", yardstick, against, 1.0),
        ],
        count=count,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync,
        all_rounds=[one._asdict() for one in seen],
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
