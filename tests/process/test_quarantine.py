"""Triggers that block their host on a real daemon: identified, quarantined, and released again."""

from __future__ import annotations

import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess, eventually
from tests.commands import run
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DAGS = """
import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from aioflow import *


@dataclass
class Slow(Trigger[int]):
    folder: str
    seconds: float

    async def run(self):
        with Path(self.folder, "slow-pids").open("a") as file:
            print(os.getpid(), file=file)
        while not Path(self.folder, "gate").exists():
            time.sleep(self.seconds)
            await asyncio.sleep(0.05)
        yield TriggerEvent(os.getpid())


@dataclass
class Good(Trigger[int]):
    folder: str

    async def run(self):
        while not Path(self.folder, "good-gate").exists():
            await asyncio.sleep(0.02)
        yield TriggerEvent(os.getpid())


class WaitsSlowly(Operator):
    def __init__(self, folder: str, seconds: float, **options):
        super().__init__(**options)
        self.folder, self.seconds = folder, seconds

    def execute(self, context):
        self.defer(trigger=Slow(folder=self.folder, seconds=self.seconds), method_name="after")

    def after(self, context, event=None):
        return event


class WaitsWell(Operator):
    def __init__(self, folder: str, **options):
        super().__init__(**options)
        self.folder = folder

    def execute(self, context):
        self.defer(trigger=Good(folder=self.folder), method_name="after")

    def after(self, context, event=None):
        return event


@dag
def stalls(folder: str, seconds: float = 0.2):
    WaitsSlowly(task_id="waits", folder=folder, seconds=seconds, retries=0)


@dag
def never_stalls(folder: str):
    WaitsWell(task_id="waits", folder=folder)
"""

LINE = DAGS.partition("time.sleep(")[0].count("\n") + 1
PLACE = f"stalling.py:{LINE} in Slow.run"


def slow_ones(daemon: DaemonProcess) -> list[dict[str, Any]]:
    """Return the triggers of this file that blocked a loop, not others of a shared daemon."""
    found: list[dict[str, Any]] = daemon.items("/api/v1/triggers/slow")
    return [one for one in found if one["name"].startswith("stalling:")]


def is_hosted(daemon: DaemonProcess, run_id: str) -> bool:
    return any(t["run_id"] == run_id for t in daemon.items("/api/v1/triggers"))


def value_of(daemon: DaemonProcess, run_id: str) -> object:
    ended = daemon.wait(run_id)
    assert ended["state"] == "success", ended
    return daemon.run(run_id)["tasks"][0]["result"]


def test_three_stalls_move_a_trigger_to_a_host_of_its_own(shared_daemon, tmp_path):
    daemon, folder, logged = shared_daemon, str(tmp_path), shared_daemon.log_size
    daemon.add("stalling.py", DAGS)
    good = daemon.trigger("never_stalls", {"folder": folder})
    eventually(partial(is_hosted, daemon, good))
    slow = daemon.trigger("stalls", {"folder": folder})
    first_host = eventually(lambda: _pids(tmp_path))[0]
    eventually(lambda: [s for s in slow_ones(daemon) if s["quarantined"]])
    second_host = eventually(lambda: [p for p in _pids(tmp_path) if p != first_host])[0]
    moved = len(_pids(tmp_path))

    # The trigger continues to block its new host, and the other triggers are not affected.
    (tmp_path / "good-gate").touch()
    assert value_of(daemon, good) == first_host
    assert daemon.run(slow)["state"] == "running"

    # The location is that of the latest block. On a slow machine, the first one is at an import.
    eventually(lambda: [one["source_location"] for one in slow_ones(daemon)] == [PLACE])
    [known] = slow_ones(daemon)
    assert (known["name"], known["run_id"]) == ("stalling:Slow", slow)
    assert known["stalls"] >= 3
    assert known["longest_ms"] >= 100
    table = run("triggers", "slow", home=daemon.home).out
    assert PLACE in table
    assert "quarantine" in table
    assert run("triggers", "slow", "--json", home=daemon.home).json
    assert 'aioflow_loop_stalls_total{kind="trigger"}' in daemon.get("/metrics")[1]

    said = run("triggers", "unquarantine", "stalling:Slow", home=daemon.home)
    assert (said.status, "released from quarantine" in said.err) == (0, True)
    eventually(lambda: first_host in _pids(tmp_path)[moved:])
    (tmp_path / "gate").touch()
    assert value_of(daemon, slow) in {first_host, second_host}

    log = daemon.log_from(logged)
    assert "holds up the loop of its host" in log
    assert PLACE in log


@pytest.mark.nightly
def test_a_trigger_that_blocks_for_good_fails_in_quarantine_and_no_other_does(tmp_path):
    folder = str(tmp_path)
    daemon = SharedDaemon(tmp_path, environment={"AIOFLOW_HOSTS__HEALTH_SECONDS": "10"})
    daemon.add("stalling.py", DAGS)
    with daemon:
        good = [daemon.trigger("never_stalls", {"folder": folder}) for _ in range(3)]
        slow = daemon.trigger("stalls", {"folder": folder, "seconds": 600})

        assert daemon.wait(slow)["state"] == "failed"
        [task] = daemon.run(slow)["tasks"]
        assert task["error"]["reason"] == "stalled"
        assert task["interruptions"] == 0

        (tmp_path / "good-gate").touch()
        assert all(value_of(daemon, run_id) for run_id in good)


def test_no_try_is_charged_for_a_host_killed_while_a_trigger_runs(killed_daemon, tmp_path):
    # With the settings of this daemon, no watchdog ends a blocked step.
    daemon, folder, logged = killed_daemon, str(tmp_path), killed_daemon.log_size
    daemon.add("stalling.py", DAGS)
    good = daemon.trigger("never_stalls", {"folder": folder})
    slow = daemon.trigger("stalls", {"folder": folder, "seconds": 600})
    first_host = eventually(lambda: _pids(tmp_path))[0]
    os.kill(first_host, signal.SIGSTOP)  # its code runs right now, and does not see the gates
    eventually(lambda: _state(first_host) == "T")
    (tmp_path / "gate").touch()
    (tmp_path / "good-gate").touch()
    os.kill(first_host, signal.SIGKILL)

    assert value_of(daemon, slow) != first_host
    assert value_of(daemon, good)
    [task] = daemon.run(slow)["tasks"]
    assert (task["try_number"], task["interruptions"]) == (1, 0)

    lines = daemon.log_from(logged).splitlines()
    died = [line for line in lines if "the triggers host died" in line]
    assert all(re.search(r'"trigger_id": \d+', line) for line in died)
    assert died


def _state(pid: int) -> str:
    """Return the letter by which the kernel describes the state of a process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _pids(folder: Path) -> list[int]:
    """Return the process of each assignment of the slow trigger."""
    file = folder / "slow-pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []
