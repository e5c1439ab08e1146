"""A restart with thousands of deferred tasks that is itself interrupted: each resumes once."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.daemon import DaemonProcess, eventually
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

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
def many_wait(folder: str = "", count: int = 0) -> None:
    Waits.partial(task_id="waits", folder=folder).expand(number=numbers(count))
"""


def epoch(daemon: DaemonProcess) -> int:
    with daemon.database() as db:
        found: int = db.execute("SELECT max(epoch) FROM node").fetchone()[0]
    return found


def deferred(daemon: DaemonProcess, run_id: str) -> int:
    with daemon.database() as db:
        found: int = db.execute(
            "SELECT count(*) FROM task JOIN run USING (run_no) WHERE run_id = ? AND task.state = ?",
            (run_id, TASK_DEFERRED),
        ).fetchone()[0]
    return found


def cut_short(daemon: DaemonProcess, seconds: float) -> None:
    """Start a daemon, and kill it this long after it has begun to read unfinished runs."""
    before = epoch(daemon)
    daemon.launch()
    eventually(lambda: epoch(daemon) > before)
    time.sleep(seconds)
    daemon.kill(whole_tree=True)


@pytest.mark.parametrize(
    ("count", "cut_after_seconds"),
    [
        pytest.param(200, (0.1,), id="200"),
        pytest.param(2_000, (0.0, 0.1, 0.2, 0.3), id="2000", marks=pytest.mark.nightly),
    ],
)
def test_deferred_tasks_resume_once_though_restarts_are_interrupted(
    killed_daemon: SharedDaemon, tmp_path: Path, count: int, cut_after_seconds: tuple[float, ...]
) -> None:
    daemon = killed_daemon
    daemon.add("many_wait.py", DAGS)
    run_id = daemon.trigger("many_wait", {"folder": str(tmp_path), "count": count})
    eventually(lambda: deferred(daemon, run_id) == count, 60.0, look_seconds=0.1)
    daemon.kill(whole_tree=True)
    for seconds in cut_after_seconds:
        cut_short(daemon, seconds)
        assert deferred(daemon, run_id) == count
    daemon.start()
    (tmp_path / "gate").touch()
    ended = daemon.wait(run_id)

    assert ended["state"] == "success"
    resumed = (tmp_path / "resumed").read_text().split()
    assert Counter(map(int, resumed)) == Counter(range(count))
