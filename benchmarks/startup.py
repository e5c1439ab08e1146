"""Startup time of a daemon, memory of its idle processes, and processor time of its life.

Claims under test: ready within 2 s of its fork; all processes together below 220 MiB; the life of
an empty daemon, from its fork to its end, takes at most 1.8 s of processor time including its
children.

Method: fresh homes, one after the other. Ready is the first positive ``/health/ready``, polled
every 10 ms. Memory is unshared (USS) by process, and proportional (PSS) of all. A life uses another
home without a DAG file: the daemon starts, reports that it is ready, and is ended by SIGTERM.
Yardstick: a bare interpreter that imports ``asyncio``, ``uvloop`` and ``sqlite3`` and ends.

    python -m benchmarks.startup --rounds 5
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.harness import Figure, command, median, report
from benchmarks.latency import DAGS
from benchmarks.yardsticks import bare_start_ms

FULL = {"rounds": 5}
TINY = {"rounds": 1}


def memory_by_role(daemon: DaemonProcess) -> dict[str, float]:
    """Return the unshared memory of each process, in MiB."""
    sizes = {}
    for number, process in enumerate(daemon.tree()):
        record = daemon.home / "run" / "children" / str(process.pid)
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            role = json.loads(record.read_bytes())["role"] if number else "daemon"
            name = role if role not in sizes else f"{role} {number}"
            sizes[name] = round(process.memory_full_info().uss / 2**20, 1)
    return sizes


def life_seconds(home: Path) -> float:
    """Return the processor time of one empty daemon and all its children, from fork to end."""
    words = ("-m", "aioflow", "up", "--port", "0", "--cpu-slots", "2", "--json")
    folders = ("--home", str(home), "--dags", str(home / "dags"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(
        (sys.executable, *words, *folders), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline(), "it never was ready"
        daemon.send_signal(signal.SIGTERM)
    assert daemon.returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder: Path, *, rounds: int) -> dict[str, Any]:
    """Start daemons one after the other and report the medians."""
    ready, sums, roles, bare, lives = [], [], [], [], []
    for number in range(rounds):
        with DaemonProcess(folder / f"home{number}", DAGS, flags=("--cpu-slots", "2")) as daemon:
            ready.append(daemon.ready_seconds)
            sums.append(daemon.memory_mib())
            roles.append(memory_by_role(daemon))
        bare.append(bare_start_ms(1) / 1000)
        lives.append(life_seconds(folder / f"empty{number}"))
    figures = [
        Figure(
            "start to ready",
            round(median(ready), 2),
            "s",
            round(median(bare), 2),
            "a bare interpreter with uvloop and sqlite3",
            at_most=2.0,
        ),
        Figure(
            "idle, all processes (PSS)", median([one["pss"] for one in sums]), "MiB", at_most=220
        ),
        Figure("the life of an empty daemon, processor", round(median(lives), 2), "s", at_most=1.8),
    ]
    return report(
        "startup",
        figures=figures,
        rounds=rounds,
        fsync_ms=fsync_ms(folder),
        ready_seconds=[round(value, 2) for value in ready],
        memory_mib=sums,
        uss_mib_by_process=roles[0],
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
