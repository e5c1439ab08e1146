"""Rate of ``def`` tasks that are spread over many DAG files.

Claims under test: 10 and 50 files on two slots run at least 0.7 of one file's no-op tasks per
second, and 0.9 of its tasks of 50 ms; the first task of a version that no process has loaded begins
within 60 ms (p50).

Method: a real daemon at ``durability=full``. The same runs are spread over 1, 10 and 50 files,
alternating: fan-outs that may all begin at the same time, and runs of a single task that a client
starts one after the other. A rate is the number of ``def`` tasks divided by the time from the first
start to the last end, according to their rows. The first round is discarded: after it each version
has a process for each slot. A process is counted when it runs its first task. A ratio is relative
to one file in the same round; its median over the rounds is reported.

    python -m benchmarks.files --rounds 5
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import psutil

from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.harness import Figure, command, median, report
from benchmarks.yardsticks import bare_start_ms

FULL = {"files": [10, 50], "noops": 5_000, "sleeps": 200, "singles": 200, "cold": 20, "rounds": 5}
TINY = {"files": [3], "noops": 60, "sleeps": 12, "singles": 6, "cold": 2, "rounds": 1}
KINDS = {
    "noop": ("no-op tasks", 1, 0.7),
    "sleep": ("tasks of 50 ms", 1, 0.9),
    "single": ("no-op tasks, each in a run of its own", 0, 0.7),
}
"""Description, task index of the ``def`` task, and minimum ratio to one file."""

RUNS = 50
SLOTS = 2
AHEAD_SECONDS = 1.0

_FILE = """
import asyncio
import os
import time

from aioflow import dag, task

seen = []

@task
async def numbers(count: int, at: float) -> list[int]:
    await asyncio.sleep(at - time.time())
    return list(range(count))

def note_process() -> None:
    if not seen:
        seen.append(1)
        with open({starts!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")

@task
def noop(number: int = 0) -> None:
    note_process()

@task
def sleeping(number: int) -> None:
    note_process()
    time.sleep(0.05)

@dag
def noop_{number}(count: int = 1, at: float = 0.0) -> None:
    noop.expand(number=numbers(count, at))

@dag
def sleep_{number}(count: int = 1, at: float = 0.0) -> None:
    sleeping.expand(number=numbers(count, at))

@dag
def single_{number}() -> None:
    noop()
"""


class Round(NamedTuple):
    """Result of one round.

    Attributes:
        starts: Processes that ran their first task.
        cpu_seconds: Processor time of the daemon and all its processes.
        longest_wait: The longest time a task waited for its slot, in seconds.
    """

    per_second: float
    starts: int
    cpu_seconds: float
    longest_wait: float


Found: TypeAlias = dict[tuple[str, int], list[Round]]
"""The rounds, by kind and number of files."""


def _write(folder: Path, files: int) -> Path:
    dags, starts = folder / "dags", folder / "starts"
    dags.mkdir()
    starts.touch()
    for number in range(files):
        text = _FILE.format(number=number, starts=str(starts))
        (dags / f"flow_{number}.py").write_text(text)
    return starts


def _cpu_seconds(daemon: DaemonProcess) -> float:
    """Return the processor time of all processes of the daemon, including those that have ended."""
    own = sum(sum(process.cpu_times()[:2]) for process in daemon.tree())
    return float(own + sum(psutil.Process(daemon.process.pid).cpu_times()[2:4]))


def _round(daemon: DaemonProcess, kind: str, files: int, tasks: int, starts: Path) -> Round:
    """Run ``tasks`` tasks, spread over ``files`` files."""
    begun, cpu = len(starts.read_text().splitlines()), _cpu_seconds(daemon)
    task_index = KINDS[kind][1]
    conf = {"count": tasks // RUNS or 1, "at": time.time() + AHEAD_SECONDS} if task_index else None
    how_many = RUNS if task_index else tasks
    runs = [daemon.trigger(f"{kind}_{number % files}", conf) for number in range(how_many)]
    for run_id in runs:
        assert daemon.wait(run_id)["state"] == "success"
    marks = ", ".join("?" * len(runs))
    with daemon.database() as database:
        count, took, waited = database.execute(
            "SELECT count(*), max(t.ended_at) - min(t.started_at), max(t.started_at - t.queued_at)"
            " FROM task t JOIN run r USING (run_no)"
            f" WHERE t.task_index = {task_index} AND r.run_id IN ({marks})",
            runs,
        ).fetchone()
    ended = len(starts.read_text().splitlines())
    spent = _cpu_seconds(daemon) - cpu
    return Round(count / (took / 1e6), ended - begun, spent, (waited or 0) / 1e6)


def _first_ms(daemon: DaemonProcess, number: int) -> float:
    """Run a file for the first time; return the time from its run's creation to its end."""
    run_id = daemon.trigger(f"single_{number}")
    daemon.wait(run_id)
    time.sleep(0.5)  # a new process starts during this, as if files arrived one by one
    with daemon.database() as database:
        created, ended = database.execute(
            "SELECT created_at, ended_at FROM run WHERE run_id = ?", (run_id,)
        ).fetchone()
    return float(ended - created) / 1e3


def measure(
    folder: Path,
    *,
    files: list[int],
    noops: int,
    sleeps: int,
    singles: int,
    cold: int,
    rounds: int,
) -> dict[str, Any]:
    """Alternate the numbers of files and report the medians."""
    most = max(files)
    starts = _write(folder, most + cold)
    found: Found = defaultdict(list)
    warming: Found = defaultdict(list)
    with DaemonProcess(folder / "home", folder / "dags", flags=("--cpu-slots", "2")) as daemon:
        daemon.knows(f"noop_{most + cold - 1}")
        for number in range(most):
            daemon.wait(daemon.trigger(f"single_{number}"))
        for number in range(rounds + 1):
            for kind, tasks in (("noop", noops), ("sleep", sleeps), ("single", singles)):
                for count in (1, *files):
                    one = _round(daemon, kind, count, tasks, starts)
                    (found if number else warming)[kind, count].append(one)
        first = [_first_ms(daemon, most + number) for number in range(cold)]
    figures = [_ratio(found, kind, count) for kind in KINDS for count in files]
    figures += [
        Figure(
            "the first run of a version, p50",
            round(median(first), 1),
            "ms",
            round(bare_start_ms(), 1),
            "a bare interpreter",
            at_most=60.0,
        )
    ]
    return report(
        "files",
        figures=figures,
        noops=noops,
        sleeps=sleeps,
        singles=singles,
        rounds=rounds,
        runs=RUNS,
        slots=SLOTS,
        durability="full",
        fsync_ms=fsync_ms(folder),
        rates=_of_all(found, lambda one: round(one.per_second)),
        process_starts=_of_all(found, lambda one: one.starts),
        process_starts_before=_of_all(warming, lambda one: one.starts),
        cpu_seconds=_of_all(found, lambda one: round(one.cpu_seconds, 2)),
        longest_waits=_of_all(found, lambda one: round(one.longest_wait, 2)),
        first_ms=[round(took, 1) for took in first],
    )


def _ratio(found: Found, kind: str, count: int) -> Figure:
    what, _, least = KINDS[kind]
    pairs = zip(found[kind, count], found[kind, 1], strict=True)
    ratio = median([many.per_second / one.per_second for many, one in pairs])
    return Figure(f"{what}: {count} files against one", round(ratio, 2), "x", at_least=least)


def _of_all(found: Found, of: Callable[[Round], float]) -> dict[str, list[float]]:
    return {f"{kind} {n}": [of(one) for one in rounds] for (kind, n), rounds in found.items()}


if __name__ == "__main__":
    command(__doc__, measure, FULL)
