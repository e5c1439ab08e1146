"""Cost of streaming clients, most of which never read.

Claim under test: 60 clients of the commit stream that never read, and one that follows a log of 400
MB, cost less than 15 % of the rate of no-op tasks, and 120 MB of the daemon's memory.

Method: one daemon runs the same fan-out of `async def` tasks with the clients and without, in
pairs; every other pair begins with the clients. The dead clients request the stream over the Unix
socket and never read; clients that were dropped are replaced before each round. The follower reads
as fast as data arrives. Two figures describe the rate, each the median over the pairs with its
quartiles: the ratio of the rates by wall time, which other work on the machine disturbs; and the
ratio of the processor time of the daemon and its children for the same tasks, which is hardly
disturbed by other work. Memory is the growth of the daemon's process from before the first client
to the end.

    python -m benchmarks.watchers --clients 60 --log-mb 400 --pairs 9
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from aioflow.clock import SystemClock
from aioflow.settings import socket_path
from aioflow.telemetry.task_log import TaskLog
from aioflow.telemetry.task_log_records import record_header
from benchmarks.daemon import DaemonProcess, eventually, fsync_ms
from benchmarks.harness import Figure, command, median, report
from benchmarks.waiting import DAGS

FULL = {"clients": 60, "log_mb": 400, "pairs": 9, "tasks": 20_000}
TINY = {"clients": 3, "log_mb": 1, "pairs": 1, "tasks": 100}

_LEAST_RATE = 0.85
_LOOK_SECONDS = 0.1
_MB = 1_000_000
_RECORD = 64 * 1024


class Round(NamedTuple):
    """Result of one fan-out.

    Attributes:
        seconds: Wall time, from the first start to the last end.
        daemon: Processor time of the daemon itself, in seconds.
        children: Processor time of the daemon's children, in seconds.
    """

    seconds: float
    daemon: float
    children: float

    @property
    def processor(self) -> float:
        """Processor time of all processes."""
        return self.daemon + self.children


def measure(folder: Path, *, clients: int, log_mb: int, pairs: int, tasks: int) -> dict[str, Any]:
    """Alternate rounds with and without clients and report the ratios."""
    with DaemonProcess(folder / "home", DAGS, flags=("--cpu-slots", "2")) as daemon:
        task = _log_of(daemon, log_mb)
        _round(daemon, tasks)
        before = _resident_mb(daemon)
        rounds: dict[str, list[Round]] = {"alone": [], "watched": []}
        for pair in range(pairs):
            order = ("alone", "watched") if pair % 2 == 0 else ("watched", "alone")
            for how in order:
                with _watchers(daemon, task, clients if how == "watched" else 0):
                    rounds[how].append(_round(daemon, tasks))
        with _watchers(daemon, task, clients):
            _round(daemon, tasks)
            grown = max(0.0, _resident_mb(daemon) - before)
    couples = list(zip(rounds["alone"], rounds["watched"], strict=True))
    rates = _quartiles([alone.seconds / watched.seconds for alone, watched in couples])
    costs = _quartiles([watched.processor / alone.processor for alone, watched in couples])
    beside = f"beside {clients} dead clients and a follower of {log_mb} MB"
    return report(
        "watchers",
        figures=[
            Figure(
                f"rate of no-op tasks {beside}",
                rates["median"],
                "of it alone",
                1.0,
                "the same tasks on the same daemon without watchers, by turns",
                at_least=_LEAST_RATE,
            ),
            Figure(
                f"processor time of no-op tasks {beside}",
                costs["median"],
                "of it alone",
                1.0,
                "the same",
                at_most=round(1 / _LEAST_RATE, 3),
            ),
            Figure("what the daemon has grown by with them", round(grown, 1), "MB", at_most=120.0),
        ],
        clients=clients,
        log_mb=log_mb,
        pairs=pairs,
        tasks=tasks,
        fsync_ms=fsync_ms(folder),
        rate_ratios=rates,
        processor_ratios=costs,
        daemon_ratios=_quartiles([watched.daemon / alone.daemon for alone, watched in couples]),
        alone=_medians(rounds["alone"], tasks),
        watched=_medians(rounds["watched"], tasks),
    )


def _round(daemon: DaemonProcess, tasks: int) -> Round:
    before = _processor_seconds(daemon)
    run_id = daemon.trigger("fan_async", {"count": tasks})
    # Poll rarely: a hundred requests per second would be a load of their own.
    eventually(lambda: _has_ended(daemon, run_id), 600.0, look_seconds=_LOOK_SECONDS)
    after = _processor_seconds(daemon)
    with daemon.database() as database:
        first, last = database.execute(
            "SELECT min(task.started_at), max(task.ended_at) FROM task JOIN run USING (run_no)"
            " WHERE run.run_id = ? AND task.map_index >= 0",
            (run_id,),
        ).fetchone()
    used = {pid: after[pid] - before[pid] for pid in after.keys() & before.keys()}
    own = used.pop(daemon.process.pid)
    return Round(max((last - first) / 1e6, 1e-6), max(own, 1e-6), sum(used.values()))


def _has_ended(daemon: DaemonProcess, run_id: str) -> bool:
    return daemon.run(run_id, limit=1)["state"] not in {"queued", "running"}


def _processor_seconds(daemon: DaemonProcess) -> dict[int, float]:
    """Return the processor time used by each process of the daemon, by pid."""
    found = {}
    for process in daemon.tree():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def _quartiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    places = {"min": 0, "lower": last // 4, "upper": last - last // 4, "max": last}
    found = {name: round(ordered[at], 3) for name, at in places.items()}
    return {**found, "median": round(median(values), 3)}


def _medians(rounds: list[Round], tasks: int) -> dict[str, float]:
    return {
        "tasks_per_second": round(tasks / median([one.seconds for one in rounds])),
        "daemon_us_per_task": round(median([one.daemon for one in rounds]) / tasks * 1e6, 1),
        "children_us_per_task": round(median([one.children for one in rounds]) / tasks * 1e6, 1),
    }


def _resident_mb(daemon: DaemonProcess) -> float:
    resident: int = psutil.Process(daemon.process.pid).memory_info().rss
    return resident / _MB


def _log_of(daemon: DaemonProcess, size_mb: int) -> str:
    """Write a log of ``size_mb`` for a task; return the path of its log stream."""
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
            file.write(record_header(-1, 1, 1, 0, len(data)) + data)
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
