"""Time from a restart until the first task resumes and all triggers run again.

Claim under test: with 10,000 deferred tasks, the first is resumed and all triggers run 1 s after
the daemon was restarted; with 100,000, all triggers run after 4 s.

Method: a real daemon at ``durability=full``; all of its processes are killed (``kill -9``) while
the tasks are deferred. Two more tasks, one deferred before these and one after them, become due
while the daemon is down. Triggers are assigned in the order of their rows, so the second of the two
resumes when all other triggers run. Seconds are from the fork of the new daemon to the times at
which the lines after the two waits ran. Median of rounds, each on a home of its own. Yardstick: the
same restart with no other task deferred.

    python -m benchmarks.restart --waits 10000,100000 --rounds 3
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from benchmarks.daemon import DaemonProcess, eventually, fsync_ms
from benchmarks.harness import Figure, command, median, report
from benchmarks.latency import DAGS
from benchmarks.waiting import TASK_DEFERRED

FULL = {"waits": [10_000, 100_000], "rounds": 3}
TINY = {"waits": [20, 30], "rounds": 1}
FEW = 10_000
DEFERRED_PER_SECOND = 800  # lower bound, used to choose the due time


class Restart(NamedTuple):
    """Seconds since the fork of the new daemon."""

    ready: float
    first_resumed: float
    all_hosted: float


def restart(home: Path, waits: int, lead: float = 4.0) -> Restart:
    """Defer the tasks, kill the daemon, wait until the two are due, and restart it.

    Args:
        lead: Seconds for the start and for the other fixed costs. If they are not enough,
            everything is repeated with more.
    """
    capacity = str(max(waits + 2, 100_000))  # with one less, the last trigger would never run
    flags = ("--cpu-slots", "2", "--trigger-capacity", capacity)
    daemon = DaemonProcess(home, DAGS, flags=flags)
    with daemon:
        due = time.time() + lead + waits / DEFERRED_PER_SECOND
        first = daemon.trigger("burst", {"count": 1, "due": due})
        _until_deferred(daemon, 1, due)
        if waits:
            daemon.trigger("waits", {"count": waits})
            _until_deferred(daemon, waits + 1, due)
        last = daemon.trigger("burst", {"count": 1, "due": due})
        _until_deferred(daemon, waits + 2, due)
        daemon.kill(whole_tree=True)
        if time.time() >= due:
            return restart(home.with_name(f"{home.name}-again"), waits, 3 * lead)
        time.sleep(due - time.time() + 0.1)
        began = time.time()
        daemon.start()
        for run_id in (first, last):
            assert daemon.wait(run_id)["state"] == "success"
        resumed = [due + late_seconds(daemon, run_id) - began for run_id in (first, last)]
    return Restart(daemon.ready_seconds, *resumed)


def late_seconds(daemon: DaemonProcess, run_id: str) -> float:
    """Return how late the only child of a run resumed, in seconds."""
    with daemon.database() as database:
        (body,) = database.execute(
            "SELECT result.body FROM result JOIN task USING (task_no) JOIN run ON"
            " run.run_no = task.run_no WHERE run.run_id = ? AND task.map_index = 0",
            (run_id,),
        ).fetchone()
    return msgspec.msgpack.decode(body, type=float) / 1000


def _until_deferred(daemon: DaemonProcess, count: int, due: float) -> None:
    """Wait until ``count`` tasks are deferred, or the due time has passed."""
    with daemon.database() as database:

        def deferred() -> bool:
            sql = "SELECT count(*) FROM task WHERE state = ?"
            return bool(database.execute(sql, (TASK_DEFERRED,)).fetchone()[0] == count)

        eventually(lambda: deferred() or time.time() >= due, 60 + count / 100)


def measure(folder: Path, *, waits: list[int], rounds: int) -> dict[str, Any]:
    """Alternate restarts with and without deferred tasks and report the medians."""
    full: dict[int, list[Restart]] = {count: [] for count in waits}
    empty: list[Restart] = []
    for number in range(rounds):
        for count in waits:
            full[count].append(restart(folder / f"full{number}-{count}", count))
        empty.append(restart(folder / f"empty{number}", 0))
    return report(
        "restart",
        figures=[figure for count in waits for figure in _figures(count, full[count], empty)],
        waits=waits,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync_ms(folder),
        all_full={count: [one._asdict() for one in found] for count, found in full.items()},
        all_empty=[one._asdict() for one in empty],
    )


def _figures(waits: int, full: list[Restart], empty: list[Restart]) -> list[Figure]:
    against = "the same with nothing else deferred"
    all_within = 1.0 if waits <= FEW else 4.0
    return [
        Figure(
            f"restart with {waits:,} deferred, {name}",
            round(median([getattr(one, field) for one in full]), 2),
            "s",
            round(median([getattr(one, field) for one in empty]), 2),
            against,
            at_most=most,
        )
        for name, field, most in (
            ("ready", "ready", None),
            ("first resumed", "first_resumed", 1.0 if waits <= FEW else None),
            ("all hosted", "all_hosted", all_within),
        )
    ]


if __name__ == "__main__":
    command(__doc__, measure, FULL)
