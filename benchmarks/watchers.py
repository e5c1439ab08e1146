"""What do those cost who watch, most of whom do not read what they are told?

Claim under test: 60 clients of the stream of commits that never read, and one that follows a log
of 400 MB, cost less than 15 % of the rate of no-op tasks, and 120 MB of the daemon's memory.

Method: one daemon takes the same fan-out of `async def` tasks by turns, with the watchers and
without. The dead ones ask for the stream over its Unix socket and read nothing ever; those that
were dropped are replaced before each round. The follower reads as fast as it is told. The figure is
the median of the ratios of interleaved pairs; the memory is what the daemon's process has grown by
at the end, over what it had before the first watcher.

    python -m benchmarks.watchers --clients 60 --log-mb 400 --pairs 5
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from aioflow.clock import SystemClock
from aioflow.logfile import header
from aioflow.settings import socket_path
from aioflow.tasklog import TaskLog
from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.harness import Figure, command, median, report
from benchmarks.waiting import DAGS

FULL = {"clients": 60, "log_mb": 400, "pairs": 5, "tasks": 20_000}
TINY = {"clients": 3, "log_mb": 1, "pairs": 1, "tasks": 100}

_MB = 1_000_000
_RECORD = 64 * 1024


def measure(folder: Path, *, clients: int, log_mb: int, pairs: int, tasks: int) -> dict[str, Any]:
    """Measure with and without watchers by turns, report the median ratio."""
    with DaemonProcess(folder / "home", DAGS, flags=("--cpu-slots", "2")) as daemon:
        task = _log_of(daemon, log_mb)
        _rate(daemon, tasks)
        before = _resident_mb(daemon)
        rates: dict[str, list[float]] = {"alone": [], "watched": []}
        for pair in range(pairs):
            order = ("alone", "watched") if pair % 2 == 0 else ("watched", "alone")
            for how in order:
                with _watchers(daemon, task, clients if how == "watched" else 0):
                    rates[how].append(_rate(daemon, tasks))
        with _watchers(daemon, task, clients):
            _rate(daemon, tasks)
            grown = max(0.0, _resident_mb(daemon) - before)
    ratios = [w / a for a, w in zip(rates["alone"], rates["watched"], strict=True)]
    ratio = round(median(ratios), 4)
    return report(
        "watchers",
        figures=[
            Figure(
                f"rate of no-op tasks beside {clients} dead clients and a follower of {log_mb} MB",
                ratio,
                "of it alone",
                1.0,
                "the same tasks on the same daemon without watchers, by turns",
                at_least=0.85,
            ),
            Figure("what the daemon has grown by with them", round(grown, 1), "MB", at_most=120.0),
        ],
        clients=clients,
        log_mb=log_mb,
        pairs=pairs,
        tasks=tasks,
        fsync_ms=fsync_ms(folder),
        ratios=[round(ratio, 4) for ratio in ratios],
        tasks_per_second_alone=round(median(rates["alone"])),
        tasks_per_second_watched=round(median(rates["watched"])),
    )


def _rate(daemon: DaemonProcess, tasks: int) -> float:
    run_id = daemon.trigger("fan_async", {"count": tasks})
    daemon.wait(run_id)
    with daemon.database() as database:
        first, last = database.execute(
            "SELECT min(task.started_at), max(task.ended_at) FROM task JOIN run USING (run_no)"
            " WHERE run.run_id = ? AND task.map_index >= 0",
            (run_id,),
        ).fetchone()
    return tasks / max((last - first) / 1e6, 1e-6)


def _resident_mb(daemon: DaemonProcess) -> float:
    resident: int = psutil.Process(daemon.process.pid).memory_info().rss
    return resident / _MB


def _log_of(daemon: DaemonProcess, size_mb: int) -> str:
    """Let a task have printed so much; return where its log is followed."""
    run_id = daemon.trigger("fan_slow", {"count": 1})
    daemon.wait(run_id)
    with daemon.database() as database:
        (run_no,) = database.execute(
            "SELECT run_no FROM run WHERE run_id = ?", (run_id,)
        ).fetchone()
    path = TaskLog(daemon.home / "logs", SystemClock()).path(run_no, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = b"what a task prints all day, again and again, a line at a time\n"
    data = (line * (_RECORD // len(line) + 1))[:_RECORD]
    with path.open("ab") as file:
        for _ in range(size_mb * _MB // _RECORD + 1):
            file.write(header(-1, 1, 1, 0, len(data)) + data)
    return f"/api/v1/runs/{run_id}/tasks/numbers/logs/stream"


@contextmanager
def _watchers(daemon: DaemonProcess, log: str, clients: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(clients):
            stack.enter_context(_connected(daemon, "/api/v1/stream"))
        if clients:
            stack.enter_context(_following(daemon, log))
        yield


@contextmanager
def _connected(daemon: DaemonProcess, path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(socket_path(daemon.home)))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        yield connection


@contextmanager
def _following(daemon: DaemonProcess, log: str) -> Iterator[None]:
    with _connected(daemon, log) as connection:

        def read() -> None:
            with contextlib.suppress(OSError):
                while connection.recv(1 << 20):
                    pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            reader.join()


if __name__ == "__main__":
    command(__doc__, measure, FULL)
