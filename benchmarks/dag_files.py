"""Time to read a folder of thousands of DAG files, and to notice a change in one of them.

Claims under test: 5,000 files, 100 of them broken, are read in 90 s; the daemon stays below 400
MiB; a changed file among them is active within 1 s.

Method: a daemon is started on the whole folder; its database shows how many files it has read. Then
single files are rewritten, and the database shows when their DAGs have a new version. Memory is the
unshared memory of the daemon's own process. Yardstick: a bare interpreter for each file, two at a
time, which is the minimum cost of a new process per file.

    python -m benchmarks.dag_files --files 5000
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.daemon import DaemonProcess, eventually, fsync_ms, put
from benchmarks.harness import Figure, command, median, report
from benchmarks.yardsticks import bare_start_ms

FULL = {"files": 5_000, "broken": 100, "changes": 10}
TINY = {"files": 10, "broken": 1, "changes": 1}

_GOOD = """
from aioflow import dag, task
from helpers import ANSWER

@task
def extract() -> int:
    return ANSWER + {value}

@task
def load(rows: int) -> None:
    print(rows)

@dag(schedule="0 3 * * *")
def flow_{number}() -> None:
    load(extract())
"""
_BROKEN = "import aioflow\nimport nowhere_{number}\n"
_AT_ONCE = 2
_PATIENCE_SECONDS = 3600.0


def _write(folder: Path, files: int, broken: int) -> None:
    folder.mkdir()
    (folder / "helpers.py").write_text("ANSWER = 42\n")
    for number in range(files):
        _place(folder, number).parent.mkdir(exist_ok=True)
        text = _BROKEN if number < broken else _GOOD
        _place(folder, number).write_text(text.format(number=number, value=0))


def _place(folder: Path, number: int) -> Path:
    return folder / f"team_{number % 50}" / f"flow_{number}.py"


def _read(daemon: DaemonProcess) -> int:
    with daemon.database() as database:
        count: int = database.execute("SELECT count(*) FROM dag_file").fetchone()[0]
        return count


def _change(daemon: DaemonProcess, folder: Path, number: int) -> float:
    """Rewrite a file; return the seconds until its DAG has a new version."""
    before = daemon.version(f"flow_{number}")
    put(_place(folder, number), _GOOD.format(number=number, value=1))
    began = time.monotonic()
    eventually(lambda: daemon.version(f"flow_{number}") != before, 60.0)
    return time.monotonic() - began


def measure(folder: Path, *, files: int, broken: int, changes: int) -> dict[str, Any]:
    """Let a daemon read the folder, change some files, and report."""
    dags = folder / "dags"
    _write(dags, files, broken)
    daemon = DaemonProcess(folder / "home", dags, flags=("--cpu-slots", "2"))
    began = time.monotonic()
    with daemon:
        eventually(lambda: _read(daemon) == files, _PATIENCE_SECONDS, look_seconds=0.1)
        took = time.monotonic() - began
        memory = psutil.Process(daemon.process.pid).memory_full_info().uss / 2**20
        noticed = [_change(daemon, dags, files - 1 - number) for number in range(changes)]
        peak = psutil.Process(daemon.process.pid).memory_full_info().uss / 2**20
    bare = bare_start_ms(5) / 1000
    figures = [
        Figure(
            "all files read",
            round(took, 1),
            "s",
            round(bare * files / _AT_ONCE, 1),
            "a bare interpreter for each file, two at a time",
            at_most=90.0,
        ),
        Figure("the daemon after that", round(memory, 1), "MiB", at_most=400),
        Figure("a change is live, median", round(median(noticed), 2), "s", at_most=1.0),
        Figure("a change is live, the latest", round(max(noticed), 2), "s", at_most=2.0),
    ]
    return report(
        "dag_files",
        figures=figures,
        files=files,
        broken=broken,
        fsync_ms=fsync_ms(folder),
        noticed_seconds=[round(seconds, 3) for seconds in noticed],
        memory_mib_at_the_end=round(peak, 1),
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
