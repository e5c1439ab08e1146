"""Cost of a child in a fan-out of a million, compared with one in ten thousand.

Claims under test: 1,000,000 no-op ``async def`` children and one task that iterates over all their
results are done in 120 s, and 50,000 ``def`` children on two slots; the daemon stays below 400 MiB;
the first child starts within 1 s of its list; the p99 of API responses during the run is at most
500 ms; and each child between 100,000 and 1,000,000 costs what each between 10,000 and 100,000
does, within a quarter.

Method: for each width a fresh daemon at ``durability=full``. Seconds are between the timestamps of
the rows of run and tasks. Processor time is that of the daemon and all its children, as counted by
the kernel, from the request to the end of the run; on a shared machine it is the figure to compare,
not the seconds. Memory is the peak of the daemon (``VmHWM``), and its memory some seconds after the
end. Every 50 ms one API request is sent, in rotation: the run, a page from the middle of its
children, why one of the last does not start, the list of runs, the metrics. Disk is the database
with its log, after the end. Yardstick: bare ``sqlite3`` writes the same task rows and journal in as
many commits.

    python -m benchmarks.wide --widths 10000,100000,1000000 --def-widths 10000,50000
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.fanout import peak_mib
from benchmarks.harness import Figure, command, percentiles, report
from benchmarks.throughput import DAGS, commit_no
from benchmarks.yardsticks import rows_seconds, written_since

FULL = {
    "widths": [10_000, 100_000, 1_000_000],
    "def_widths": [10_000, 50_000],
    "settle_seconds": 5.0,
}
TINY = {"widths": [20, 60], "def_widths": [20], "settle_seconds": 0.1}
CLAIM_WIDTH = 1_000_000
SLOPE_BOUND = 1.25
ASK_SECONDS = 0.05


class Fan(NamedTuple):
    """Result of one run.

    Attributes:
        first_ms: From the end of the task that returns the list to the first start of a child.
        daemon_cpu: Processor time of the daemon in seconds; ``children_cpu``: of all other
            processes.
        rest_mib: Memory of the daemon some seconds after the end; ``idle_mib``: before the run.
        disk_bytes: The growth of the database and its log.
        asked_ms: Percentiles of the API's response times.
        slowest: The longest response time of each request.
    """

    seconds: float
    first_ms: float
    daemon_cpu: float
    children_cpu: float
    peak_mib: float
    idle_mib: float
    rest_mib: float
    commits: float
    disk_bytes: float
    journal_bytes: float
    asked_ms: dict[str, float]
    slowest: dict[str, float]
    bare_seconds: float


def fan(folder: Path, kind: str, width: int, settle_seconds: float) -> Fan:
    """Run one fan-out with its fan-in on a fresh daemon."""
    with DaemonProcess(folder, DAGS, flags=("--cpu-slots", "2")) as daemon:
        daemon.wait(daemon.trigger(f"wide_{kind}", {"count": 10}))  # warm-up: imports are done
        before, disk = commit_no(daemon), _disk_bytes(daemon)
        idle, cpu = _resident_mib(daemon), _cpu_seconds(daemon)
        run_id = daemon.trigger(f"wide_{kind}", {"count": width})
        with Asking(daemon, run_id, width) as asking:
            asking.until_ended(timeout=60 + width / 1_000)
        used = _cpu_seconds(daemon)
        seconds, first_ms = _instants(daemon, run_id, width)
        written = written_since(daemon, before)
        time.sleep(settle_seconds)
        result = Fan(
            seconds=seconds,
            first_ms=first_ms,
            daemon_cpu=round(used[0] - cpu[0], 3),
            children_cpu=round(used[1] - cpu[1], 3),
            peak_mib=peak_mib(daemon.process.pid),
            idle_mib=idle,
            rest_mib=_resident_mib(daemon),
            commits=written.commits,
            disk_bytes=_disk_bytes(daemon) - disk,
            journal_bytes=sum(map(len, written.bodies)),
            asked_ms=percentiles(list(itertools.chain(*asking.took_ms.values()))),
            slowest={name: max(took) for name, took in asking.took_ms.items()},
            bare_seconds=0.0,
        )
    return result._replace(bare_seconds=round(rows_seconds(folder, written), 3))


class Asking:
    """Sends API requests during a run and records their response times."""

    def __init__(self, daemon: DaemonProcess, run_id: str, width: int) -> None:
        child = f"/api/v1/runs/{run_id}/tasks/child"
        self._daemon = daemon
        self._questions = {
            "run": f"/api/v1/runs/{run_id}?limit=1",
            "page": f"/api/v1/runs/{run_id}?offset={width // 2}&limit=100",
            "why": f"{child}/why?map={width - 1}",
            "runs": "/api/v1/runs",
            "metrics": "/metrics",
        }
        self.took_ms: dict[str, list[float]] = {name: [] for name in self._questions}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask_on)
        self._state = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def until_ended(self, timeout: float) -> None:
        """Wait for the end of the run and assert that it is a success."""
        assert self._ended.wait(timeout), f"not within {timeout} s"
        assert self._state == "success", self._state

    def _ask_on(self) -> None:
        for name in itertools.cycle(self._questions):
            began = time.perf_counter()
            status, answer = self._daemon.get(self._questions[name], status=None)
            self.took_ms[name].append(round((time.perf_counter() - began) * 1000, 3))
            if name == "run" and answer["state"] not in {"queued", "running"}:
                self._state = answer["state"]
                self._ended.set()
            elif status != 200 and name != "why":  # no child exists before the list is returned
                self._state = f"{name}: {status} {answer}"
                self._ended.set()
            if self._ended.wait(ASK_SECONDS):
                return


def _instants(daemon: DaemonProcess, run_id: str, width: int) -> tuple[float, float]:
    with daemon.database() as database:
        run_no, began, ended = database.execute(
            "SELECT run_no, created_at, ended_at FROM run WHERE run_id = ?", (run_id,)
        ).fetchone()
        (listed,) = database.execute(
            "SELECT ended_at FROM task WHERE run_no = ? AND task_index = 0", (run_no,)
        ).fetchone()
        first, last = database.execute(
            "SELECT first_task_no, first_task_no + width FROM expansion WHERE run_no = ?", (run_no,)
        ).fetchone()
        started, count = database.execute(
            "SELECT min(started_at), count(*) FROM task WHERE task_no >= ? AND task_no < ?",
            (first, last),
        ).fetchone()
    assert count == width, (count, width)
    return (ended - began) / 1e6, (started - listed) / 1e3


def _cpu_seconds(daemon: DaemonProcess) -> tuple[float, float]:
    """Return the processor time of the daemon, and of all its live descendants."""
    spent = {}
    for process in daemon.tree():
        with contextlib.suppress(psutil.NoSuchProcess):  # an idle parser ends
            spent[process.pid] = sum(process.cpu_times()[:2])
    own = spent.pop(daemon.process.pid)
    return own, sum(spent.values())


def _resident_mib(daemon: DaemonProcess) -> float:
    return round(psutil.Process(daemon.process.pid).memory_info().rss / 2**20, 1)


def _disk_bytes(daemon: DaemonProcess) -> int:
    return sum(path.stat().st_size for path in daemon.home.glob("aioflow.db*"))


def measure(
    folder: Path, *, widths: list[int], def_widths: list[int], settle_seconds: float
) -> dict[str, Any]:
    """Measure every width once, narrow ones first, and report."""
    fans: dict[str, dict[int, Fan]] = {"async": {}, "def": {}}
    for kind, of_kind in (("async", widths), ("def", def_widths)):
        for width in of_kind:
            fans[kind][width] = fan(folder / f"{kind}-{width}", kind, width, settle_seconds)
    return report(
        "wide",
        figures=[figure for kind, seen in fans.items() for figure in _figures(kind, seen)],
        widths=widths,
        def_widths=def_widths,
        durability="full",
        fsync_ms=fsync_ms(folder),
        runs={
            f"{kind} {width}": one._asdict()
            for kind, seen in fans.items()
            for width, one in seen.items()
        },
    )


def _figures(kind: str, seen: dict[int, Fan]) -> list[Figure]:
    figures = [figure for width, one in seen.items() for figure in _of_one(kind, width, one)]
    for what, measured in (("processor time of the daemon", "daemon_cpu"), ("time", "seconds")):
        slopes = [_slope(measured, *pair) for pair in itertools.pairwise(seen.items())]
        for (narrow, wide), slope in zip(itertools.pairwise(seen), slopes, strict=True):
            name = f"each {kind} child between {narrow:,} and {wide:,}, {what}"
            figures.append(Figure(name, slope, "us"))
        for before, after in itertools.pairwise(slopes):
            name = f"{kind}, {what}: the last of these over the one before it"
            figures.append(Figure(name, round(after / before, 2), "x", at_most=SLOPE_BOUND))
    return figures


def _slope(measured: str, narrow: tuple[int, Fan], wide: tuple[int, Fan]) -> float:
    """Return the microseconds per additional child, from the narrow fan-out to the wide one."""
    more: float = getattr(wide[1], measured) - getattr(narrow[1], measured)
    return max(0.1, round(1e6 * more / (wide[0] - narrow[0]), 1))


def _of_one(kind: str, width: int, one: Fan) -> list[Figure]:
    is_claim = width == CLAIM_WIDTH
    name = f"{width:,} {kind}"
    against = "bare sqlite3: the same rows in as many commits"
    return [
        Figure(
            name, round(one.seconds, 2), "s", one.bare_seconds, against, 120 if is_claim else None
        ),
        Figure(f"{name}, list to first start", round(one.first_ms, 1), "ms", at_most=1_000),
        Figure(f"{name}, answers at p99", one.asked_ms["p99"], "ms", at_most=500),
        Figure(f"{name}, daemon", round(1e6 * one.daemon_cpu / width, 1), "us"),
        Figure(f"{name}, children", round(1e6 * one.children_cpu / width, 1), "us"),
        Figure(f"{name}, peak", one.peak_mib, "MiB", at_most=400),
        Figure(f"{name}, after the end", one.rest_mib, "MiB", one.idle_mib, "before the run"),
        Figure(f"{name}, disk", round(one.disk_bytes / width), "bytes"),
    ]


if __name__ == "__main__":
    command(__doc__, measure, FULL)
