"""Tasks on a Dask cluster: rate, latency, cancellation, and recovery from killed parts.

Claims under test, with two Dask workers of one thread each on the daemon's machine: 5,000 no-op
``def`` tasks per second; a hop of a chain within 15 ms; the process of a cancelled run is dead
within 250 ms (p99); the task of a killed Dask worker begins elsewhere within 1 s; a stopped Dask
worker is noticed within 7 s; after a restart of the scheduler and its workers, tasks run within 10
s; the first task after a change of its DAG file begins within 60 ms.

Method: a real daemon at ``durability=full``, a real scheduler and real workers, all of them
processes. Rates are counted as in ``throughput``. The yardstick of the rate is Dask itself on the
same cluster: one future per task, submitted by ``map`` and gathered.

    python -m benchmarks.executors --tasks 10000 --rounds 3
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import distributed

from benchmarks.daemon import DaemonProcess, eventually, fsync_ms, put
from benchmarks.dask_cluster import DaskCluster
from benchmarks.harness import Figure, command, median, percentiles, report
from benchmarks.throughput import chain_seconds, rate

DAGS = Path(__file__).parent / "dags"
FULL = {"tasks": 10_000, "rounds": 3, "cancels": 30, "kills": 5, "changes": 15}
TINY = {"tasks": 1_000, "rounds": 1, "cancels": 3, "kills": 1, "changes": 2}

HOPS = 40

SLEEPER = """
import os, time
from aioflow import dag, task

@task
def sleeper(file: str) -> None:
    with open(file, "a") as pids:
        pids.write(f"{os.getpid()} {time.time_ns()}\\n")
    time.sleep(600)

@dag
def sleeps(file: str) -> None:
    sleeper(file)
"""

CHANGING = """
import time
from aioflow import dag, task

@task
def first(file: str) -> None:
    with open(file, "a") as times:
        times.write(f"{{time.time_ns()}}\\n")

@dag
def changes(file: str) -> None:
    first(file)  # edition {edition}
"""


def dask_per_second(cluster: DaskCluster, tasks: int) -> float:
    """Return the rate of no-op tasks if each is a future of Dask."""
    connect: Any = distributed.Client
    with connect(cluster.address, set_as_default=False) as client:
        began = time.monotonic()
        client.gather(client.map(_nothing, range(tasks), pure=False))
        return tasks / (time.monotonic() - began)


def _nothing(number: int) -> None:
    return None


def begun(file: Path, count: int) -> tuple[int, float]:
    """Wait until the sleeper has begun ``count`` times; return its process id, and the time."""

    def look() -> list[str] | None:
        lines = file.read_text().splitlines() if file.exists() else []
        return lines[count - 1].split() if len(lines) >= count else None

    pid, at = eventually(look, look_seconds=0.002)
    return int(pid), int(at) / 1e9


def seconds_until(is_so: Callable[[], object]) -> float:
    """Return the seconds until a condition holds."""
    began = time.monotonic()
    eventually(is_so, look_seconds=0.002)
    return time.monotonic() - began


def is_dead(pid: int) -> bool:
    """Return whether no process has this id."""
    return not Path(f"/proc/{pid}").exists()


def parent_of(pid: int) -> int:
    """Return the id of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Bench:
    """A daemon whose tasks run on a cluster of two Dask workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = DaskCluster(folder)
        home = folder / "home"
        home.mkdir()
        self.cluster.start_scheduler()
        for _ in range(2):
            self.cluster.start_worker()
        (home / "aioflow.toml").write_text(
            f'executor = "dask"\n[executors.dask]\naddress = "{self.cluster.address}"\n'
            "shared_home = true\n"
        )
        dags = folder / "dags"
        dags.mkdir()
        put(dags / "sleeper.py", SLEEPER)
        self.daemon = DaemonProcess(home, dags, flags=("--dags", str(DAGS), "--cpu-slots", "1"))

    def sleep(self, name: str) -> tuple[str, int, Path]:
        """Start a sleeper; return its run id, its process id and its file."""
        file = self.folder / name
        run_id = self.daemon.trigger("sleeps", {"file": str(file)})
        return run_id, begun(file, 1)[0], file

    def cancel(self, run_id: str) -> None:
        """Cancel a run and wait for its end."""
        self.daemon.request("POST", f"/api/v1/runs/{run_id}/cancel", status=None)
        self.daemon.wait(run_id)

    def cancel_seconds(self, number: int) -> float:
        """Return the seconds from the cancellation of a run to the death of its process."""
        run_id, pid, _ = self.sleep(f"cancel-{number}")
        began = time.monotonic()
        self.daemon.request("POST", f"/api/v1/runs/{run_id}/cancel")
        eventually(lambda: is_dead(pid), look_seconds=0.001)
        return time.monotonic() - began

    def change_seconds(self, edition: int) -> float:
        """Return the seconds from the request for a run of a new version to the start of its task.

        At the time of the request, a worker that has loaded the previous version is idle.
        """
        self._change(f"{edition} before")
        self.daemon.wait(self.daemon.trigger("changes", {"file": str(self.folder / "before")}))
        time.sleep(2)  # until a spare worker exists, and the used one is idle
        self._change(str(edition))
        file = self.folder / f"change-{edition}"
        began = time.time()
        run_id = self.daemon.trigger("changes", {"file": str(file)})

        def look() -> str | None:
            return file.read_text().strip() if file.exists() else None

        at: str = eventually(look, look_seconds=0.002)
        self.daemon.wait(run_id)
        return int(at) / 1e9 - began

    def _change(self, edition: str) -> None:
        """Write another version of a file, and wait until the daemon has read it."""
        before = self._version_of_changes()
        put(self.folder / "dags" / "changes.py", CHANGING.format(edition=edition))
        eventually(lambda: self._version_of_changes() != before)

    def _version_of_changes(self) -> object:
        status, shown = self.daemon.get("/api/v1/dags/changes", status=None)
        return shown["version"] if status == 200 else None

    def kill_seconds(self, number: int) -> float:
        """Return the seconds from the death of a Dask worker to the next start of its task."""
        run_id, pid, file = self.sleep(f"kill-{number}")
        worker = parent_of(parent_of(pid))
        killed = time.time()
        os.kill(worker, signal.SIGKILL)
        _, at = begun(file, 2)
        self.cancel(run_id)
        self.cluster.start_worker()
        time.sleep(3)  # until the new worker has joined the cluster
        return at - killed

    def stop_seconds(self) -> float:
        """Return the seconds until a stopped Dask worker is noticed."""
        run_id, pid, _ = self.sleep("stop")
        worker, size = parent_of(parent_of(pid)), self.daemon.log.stat().st_size
        os.kill(worker, signal.SIGSTOP)
        seconds = seconds_until(lambda: b"has not answered" in self.daemon.log.read_bytes()[size:])
        os.kill(worker, signal.SIGCONT)
        self.cancel(run_id)
        return seconds

    def restart_seconds(self) -> float:
        """Return the seconds from the restart of the cluster to the next start of a task."""
        run_id, _, file = self.sleep("restart")
        self.cluster.kill_scheduler()
        time.sleep(2)
        self.cluster.start_scheduler()
        back = time.time()
        for _ in range(2):
            self.cluster.start_worker()
        _, at = begun(file, 2)
        self.cancel(run_id)
        return at - back


def measure(
    folder: Path, *, tasks: int, rounds: int, cancels: int, kills: int, changes: int
) -> dict[str, Any]:
    """Measure the rate and its yardstick alternately, then the rest."""
    fsync = fsync_ms(folder)
    bench = Bench(folder)
    rates, bare, chains = [], [], []
    try:
        with bench.daemon as daemon:
            rate(daemon, "fan_def", min(500, tasks))
            for _ in range(rounds):
                rates.append(rate(daemon, "fan_def", tasks))
                chains.append(chain_seconds(daemon))
                time.sleep(12)  # until the idle workers have given their threads back
                bare.append(dask_per_second(bench.cluster, min(tasks, 2_000)))
                rate(daemon, "fan_def", min(500, tasks))
            cancelled = [bench.cancel_seconds(number) for number in range(cancels)]
            changed = percentiles([1e3 * bench.change_seconds(one) for one in range(changes)])
            killed = [bench.kill_seconds(number) for number in range(kills)]
            stopped = bench.stop_seconds()
            restarted = bench.restart_seconds()
    finally:
        bench.cluster.stop()
    dead = percentiles([1e3 * seconds for seconds in cancelled])
    hop = 1e3 * median(chains) / HOPS
    figures = [
        Figure(
            "no-op def tasks on two Dask workers",
            round(median(rates)),
            "1/s",
            round(median(bare)),
            "one Dask future per task on the same cluster",
            at_least=5_000.0,
        ),
        Figure("a hop on a warm worker", round(hop, 2), "ms", at_most=15.0),
        Figure("from cancel to dead, p99", dead["p99"], "ms", at_most=250.0),
        Figure("first task of a new version, p50", changed["p50"], "ms", at_most=60.0),
        Figure("a killed worker's task begins", round(max(killed), 3), "s", at_most=1.0),
        Figure("a stopped worker is noticed", round(stopped, 2), "s", at_most=7.0),
        Figure("tasks run after a restart of Dask", round(restarted, 2), "s", at_most=10.0),
    ]
    return report(
        "executors",
        figures=figures,
        tasks=tasks,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync,
        all_rates=[round(value) for value in rates],
        all_bare=[round(value) for value in bare],
        all_chains=[round(value, 3) for value in chains],
        cancel_ms=dead,
        change_ms=changed,
        all_kills=[round(value, 3) for value in killed],
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
