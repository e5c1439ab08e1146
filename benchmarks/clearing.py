"""Duration of a mark, a clear and a cancel of a wide run, and their effect on other requests.

Claims under test: a run of 1,000,000 children is cancelled within 30 s, and starts nothing more;
while 1,000,000 ended children are marked or cleared, the API answers within 500 ms, and the daemon
needs at most 200 MiB for it.

Method: a real daemon at ``durability=full`` on two slots. A fan-out is cancelled once some of its
children have run. Then, while no daemon uses the database, rows of successes are written for the
other children. The next daemon marks them as failed, and the one after that clears the fan-out.
While each of the two is in progress, a named event is emitted every 20 ms, which the engine has to
commit. Memory is that of the daemon's own process. After the clear, all children are pending, with
a row each, and the run is cancelled once more.

    python -m benchmarks.clearing --children 1000000
"""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.daemon import DaemonProcess, eventually, fsync_ms
from benchmarks.harness import Figure, command, percentiles, report
from benchmarks.throughput import DAGS, commit_no
from benchmarks.yardsticks import rows_seconds, written_since

FULL = {"children": 1_000_000}
TINY = {"children": 60}
FLAGS = ("--cpu-slots", "2")

_REST_SECONDS = 0.02
_LONGEST_SECONDS = 600.0

_SUCCEED = """
WITH RECURSIVE child (map_index) AS (
    SELECT 0 UNION ALL SELECT map_index + 1 FROM child WHERE map_index + 1 < :width
)
INSERT INTO task (task_no, run_no, task_index, map_index, state, try_number, start_no,
                  interruptions, queued_at, started_at, ended_at)
SELECT :first + map_index, :run_no, :task_index, map_index, 6, 1, 1, 0, :at, :at, :at
FROM child WHERE true
ON CONFLICT (task_no) DO UPDATE SET state = 6, try_number = 1, ended_at = :at
"""


class Onlooker:
    """Emits named events and samples the memory of a daemon for the duration of the block."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.answered_ms: list[float] = []
        self._daemon = daemon
        self._process = psutil.Process(daemon.process.pid)
        self.before_mib = self.most_mib = self._memory()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _memory(self) -> float:
        return float(self._process.memory_info().rss) / 2**20

    def _look(self) -> None:
        is_over = False
        while not is_over:  # at least once: the block may end within one pause
            began = time.perf_counter()
            self._daemon.request("POST", "/api/v1/events/noise", 1)
            self.answered_ms.append((time.perf_counter() - began) * 1000)
            self.most_mib = max(self.most_mib, self._memory())
            is_over = self._is_over.wait(_REST_SECONDS)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def cancelled(daemon: DaemonProcess, run_id: str) -> float:
    """Cancel a run; return the seconds until it had ended."""
    began = time.perf_counter()
    daemon.request("POST", f"/api/v1/runs/{run_id}/cancel")
    with daemon.database() as database:
        sql = "SELECT ended_at FROM run WHERE run_id = ? AND ended_at IS NOT NULL"
        eventually(lambda: database.execute(sql, (run_id,)).fetchone(), _LONGEST_SECONDS)
    return time.perf_counter() - began


def marked(daemon: DaemonProcess, run_id: str, children: int) -> float:
    """Mark the children of an ended run as failed; return the seconds until all were marked."""
    began = time.perf_counter()
    body = {"tasks": ["noop"], "state": "failed"}
    _, answer = daemon.request("POST", f"/api/v1/runs/{run_id}/mark", body)
    assert answer["marked"] == children, answer
    eventually(lambda: not is_still_clearing(daemon), _LONGEST_SECONDS, look_seconds=0.05)
    return time.perf_counter() - began


def started(daemon: DaemonProcess) -> int:
    """Return how many executions of tasks were started in total."""
    with daemon.database() as database:
        found: int = database.execute("SELECT sum(start_no) FROM task").fetchone()[0]
    return found


def is_still_clearing(daemon: DaemonProcess) -> bool:
    """Return whether a clear or a mark is still in progress."""
    with daemon.database() as database:
        sql = "SELECT count(*) FROM outbox WHERE kind = 'clear'"
        return bool(database.execute(sql).fetchone()[0])


def let_all_have_ended(path: Path, run_id: str) -> None:
    """Write rows of successes for the children of a run. No daemon may be using the database."""
    database = sqlite3.connect(path)
    with database:
        run_no, at = database.execute(
            "SELECT run_no, ended_at FROM run WHERE run_id = ?", (run_id,)
        ).fetchone()
        task_index, width, first = database.execute(
            "SELECT task_index, width, first_task_no FROM expansion WHERE run_no = ?", (run_no,)
        ).fetchone()
        values = {
            "width": width,
            "first": first,
            "run_no": run_no,
            "task_index": task_index,
            "at": at,
        }
        database.execute(_SUCCEED, values)
        database.execute("UPDATE run SET state = 2 WHERE run_no = ?", (run_no,))
    database.close()


def measure(folder: Path, *, children: int) -> dict[str, Any]:
    """Cancel a wide run; mark, clear and cancel it again. Report durations and response times."""
    home = folder / "home"
    with DaemonProcess(home, DAGS, flags=FLAGS) as daemon:
        run_id = daemon.trigger("fan_def", {"count": children})
        most = max(1, min(children // 3, 2_000))
        wanted = lambda: daemon.run(run_id, limit=1)["counts"].get("success", 0) > most  # noqa: E731
        eventually(wanted, _LONGEST_SECONDS)
        with Onlooker(daemon) as at_cancel:
            cancel_seconds = cancelled(daemon, run_id)
            before = started(daemon)
            time.sleep(0.5)
        assert started(daemon) == before, "a task of a cancelled run was started"
    let_all_have_ended(home / "aioflow.db", run_id)
    with DaemonProcess(home, DAGS, flags=FLAGS) as daemon, Onlooker(daemon) as at_mark:
        mark_seconds = marked(daemon, run_id, children)
    with DaemonProcess(home, DAGS, flags=FLAGS) as daemon, Onlooker(daemon) as at_clear:
        before = commit_no(daemon)
        began = time.perf_counter()
        _, answer = daemon.request("POST", f"/api/v1/runs/{run_id}/clear", {"tasks": ["noop"]})
        answer_seconds = time.perf_counter() - began
        assert answer["cleared"] == children, answer
        eventually(lambda: not is_still_clearing(daemon), _LONGEST_SECONDS, look_seconds=0.05)
        clear_seconds = time.perf_counter() - began
        yardstick = rows_seconds(folder, written_since(daemon, before))
        again_seconds = cancelled(daemon, run_id)
    return report(
        "clearing",
        figures=[
            Figure(f"cancel of a run of {children:,}", round(cancel_seconds, 4), "s", at_most=30.0),
            Figure(
                f"others meanwhile wait for the API, {children:,} marked, at most",
                round(max(at_mark.answered_ms), 1),
                "ms",
                at_most=500.0,
            ),
            Figure(f"mark of {children:,} ended children", round(mark_seconds, 4), "s"),
            Figure(
                f"others meanwhile wait for the API, {children:,} cleared, at most",
                round(max(at_clear.answered_ms), 1),
                "ms",
                at_most=500.0,
            ),
            Figure(
                f"memory to clear {children:,}",
                max(0.1, round(at_clear.most_mib - at_clear.before_mib, 1)),
                "MiB",
                at_most=200.0,
            ),
            Figure(
                f"clear of {children:,} ended children",
                round(clear_seconds, 4),
                "s",
                round(yardstick, 4),
                "bare sqlite3: the rows of the whole run in as many commits",
            ),
            Figure(f"the answer to that, of {children:,}", round(answer_seconds, 4), "s"),
            Figure(f"cancel of {children:,} that were cleared", round(again_seconds, 4), "s"),
        ],
        children=children,
        durability="full",
        fsync_ms=fsync_ms(folder),
        answered_at_cancel_ms=percentiles(at_cancel.answered_ms),
        answered_at_mark_ms=percentiles(at_mark.answered_ms),
        answered_at_clear_ms=percentiles(at_clear.answered_ms),
        cancel_mib=round(at_cancel.most_mib - at_cancel.before_mib, 1),
        daemon_mib=round(at_clear.most_mib, 1),
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
