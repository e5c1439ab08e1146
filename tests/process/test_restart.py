"""A restart with thousands of deferred tasks, itself cut short: each goes on, and once."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.daemon import DaemonProcess, eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

COUNT = 2_000
TASK_DEFERRED = 4

DAGS = """
import os
from pathlib import Path

from aioflow import Operator, dag, task
from aioflow_triggers.files import FileTrigger


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


class Waits(Operator):
    def __init__(self, number: int, folder: str, **options):
        super().__init__(**options)
        self.number, self.folder = number, folder

    def execute(self, context):
        gate = FileTrigger(path=f"{self.folder}/gate", poll_seconds=0.1, stable=0)
        self.defer(trigger=gate, method_name="resumed")

    def resumed(self, context, event=None):
        with open(f"{self.folder}/resumed", "a") as file:
            file.write(f"{self.number}\\n")


@dag
def waits(folder: str = "", count: int = 0) -> None:
    Waits.partial(task_id="waits", folder=folder).expand(number=numbers(count))
"""


def epoch(daemon: DaemonProcess) -> int:
    with daemon.database() as db:
        found: int = db.execute("SELECT max(epoch) FROM node").fetchone()[0]
    return found


def deferred(daemon: DaemonProcess) -> int:
    with daemon.database() as db:
        found: int = db.execute(
            "SELECT count(*) FROM task WHERE state = ?", (TASK_DEFERRED,)
        ).fetchone()[0]
    return found


def cut_short(daemon: DaemonProcess, seconds: float) -> None:
    """Start a daemon, and kill it so long after it has begun to read what is unfinished."""
    before = epoch(daemon)
    daemon.launch()
    eventually(lambda: epoch(daemon) > before)
    time.sleep(seconds)
    daemon.kill(whole_tree=True)


def test_what_was_deferred_goes_on_once_though_restarts_are_cut_short(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "waits.py").write_text(DAGS)
    with DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "2")) as daemon:
        run_id = daemon.trigger("waits", {"folder": str(tmp_path), "count": COUNT})
        eventually(lambda: deferred(daemon) == COUNT, 60.0, look_seconds=0.1)
        daemon.kill(whole_tree=True)
        for number in range(4):
            cut_short(daemon, 0.1 * number)
            assert deferred(daemon) == COUNT
        daemon.start()
        (tmp_path / "gate").touch()
        ended = daemon.wait(run_id)

    assert ended["state"] == "success"
    resumed = (tmp_path / "resumed").read_text().split()
    assert Counter(map(int, resumed)) == Counter(range(COUNT))
