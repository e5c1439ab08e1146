"""A million tries on a Dask cluster: the memory of the daemon, the scheduler and the workers.

``AIOFLOW_DASK_TRIES`` overrides the number of tries.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from benchmarks.daemon import DaemonProcess
from benchmarks.dask_cluster import DaskCluster
from tests.campaigns.record import record

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.timeout(7_200),
    pytest.mark.xdist_group("dask"),
]

TRIES = int(os.environ.get("AIOFLOW_DASK_TRIES", "1000000"))
OF_RUN = 10_000
DAGS = Path(__file__).parents[2] / "benchmarks" / "dags"
MOST_GROWTH_BYTES = 20.0
"""Tolerated growth per try. An object that is never freed has at least 50 bytes."""

NOISE_MIB = 4.0
"""Tolerated growth over the whole campaign.

It may be caused by allocators, and by the logs of limited length that Dask's scheduler holds for
pilots waiting for room.
"""


class Memory:
    """The resident memory of processes after each run, in MiB."""

    def __init__(self, **pids: int) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self.seen: dict[str, list[float]] = {name: [] for name in pids}

    def look(self) -> None:
        for name, process in self._processes.items():
            self.seen[name].append(round(process.memory_info().rss / 2**20, 1))

    def growth(self, tries: int) -> dict[str, float]:
        """Return the growth of each process in bytes per try. Ignore the first third of runs."""
        return {
            name: round(slope(values[len(values) // 3 :]) * 2**20 / tries, 1)
            for name, values in self.seen.items()
        }


def slope(values: Sequence[float]) -> float:
    """Return the slope of a straight line fitted to all values."""
    return statistics.linear_regression(range(len(values)), values).slope


def test_memory_does_not_grow_with_the_number_of_tries(tmp_path):
    cluster = DaskCluster(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    began = time.monotonic()
    try:
        scheduler = cluster.start_scheduler()
        workers = [cluster.start_worker() for _ in range(2)]
        (home / "aioflow.toml").write_text(
            f'executor = "dask"\n[executors.dask]\naddress = "{cluster.address}"\n'
            "shared_home = true\n"
        )
        flags = ("--dags", str(DAGS), "--cpu-slots", "1")
        with DaemonProcess(home, tmp_path / "dags", flags=flags) as daemon:
            memory = Memory(
                daemon=daemon.process.pid,
                scheduler=scheduler.pid,
                **{f"dask_worker_{number}": one.pid for number, one in enumerate(workers)},
            )
            for _ in range(0, TRIES, OF_RUN):
                run = daemon.wait(daemon.trigger("fan_def", {"count": OF_RUN}), 1_200)
                assert run["state"] == "success"
                memory.look()
    finally:
        cluster.stop()
    growth = memory.growth(OF_RUN)
    record(
        "dask_memory",
        tries=TRIES,
        seconds=round(time.monotonic() - began),
        bytes_per_try=growth,
        mib=memory.seen,
    )
    allowed = MOST_GROWTH_BYTES + NOISE_MIB * 2**20 / TRIES
    assert all(bytes_per_try <= allowed for bytes_per_try in growth.values()), memory.seen
