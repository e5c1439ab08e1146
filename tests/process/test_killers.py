"""A task that kills the daemon, under a supervisor: found, and the only one that is charged."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aioflow.settings import socket_path
from benchmarks.daemon import eventually
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DAGS = """
import asyncio
import os
import signal
import socket
from dataclasses import dataclass

from aioflow import Trigger, TriggerEvent, dag, task, wait


@task
async def looks_at_the_api(folder: str, api: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        found = "answers" if client.connect_ex(api) == 0 else "is away"
    with open(f"{folder}/looks", "a") as file:
        file.write(f"{found}\\n")
    while not os.path.exists(f"{folder}/gate"):
        await asyncio.sleep(0.05)


@dag
def looks(folder: str, api: str) -> None:
    looks_at_the_api(folder, api)


@task(retries=0)
def kills() -> None:
    os.kill(os.getppid(), signal.SIGKILL)


@task(retries=0)
async def lasts(number: int) -> int:
    await asyncio.sleep(2)
    return number


@dag
def deadly() -> None:
    kills()


@dag
def innocent() -> None:
    lasts.expand(number=list(range(20)))


@dataclass
class Waits(Trigger):
    folder: str
    deadly: bool = False

    async def run(self):
        if self.deadly:
            os.kill(os.getppid(), signal.SIGKILL)
        while not os.path.exists(f"{self.folder}/gate"):
            await asyncio.sleep(0.1)
        yield TriggerEvent("open")


@task(retries=2)
async def waits(folder: str, deadly: bool = False) -> None:
    await wait(Waits(folder, deadly))


@dag
def patient(folder: str) -> None:
    for _ in range(3):
        waits(folder)


@dag
def hasty(folder: str) -> None:
    waits(folder, True)
"""


def supervise(daemon: SharedDaemon, is_over, seconds: float) -> int:
    """Restart the daemon whenever it has died. Return how often that was."""
    deaths, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        if not daemon.is_alive:
            deaths += 1
            daemon.launch()
        try:
            if is_over():
                return deaths
        except (OSError, AssertionError):
            pass  # it has just died, or does not answer yet
        time.sleep(0.05)
    raise AssertionError(daemon.log_from(0)[-3000:])


def test_the_api_answers_before_what_ran_at_a_crash_begins_again(
    killed_daemon: SharedDaemon, tmp_path: Path
) -> None:
    daemon = killed_daemon
    daemon.add("killers.py", DAGS)
    conf = {"folder": str(tmp_path), "api": str(socket_path(daemon.home))}
    run_id = daemon.trigger("looks", conf)
    told = tmp_path / "looks"
    eventually(lambda: told.exists() and told.read_text())
    daemon.kill(whole_tree=True)
    daemon.start()
    eventually(lambda: len(told.read_text().split("\n")) > 2)
    (tmp_path / "gate").touch()

    assert daemon.wait(run_id)["state"] == "success"
    assert told.read_text() == "answers\nanswers\n"


@pytest.mark.nightly
def test_tasks_beside_one_that_kills_the_daemon_are_not_charged(
    killed_daemon: SharedDaemon,
) -> None:
    daemon = killed_daemon
    daemon.add("killers.py", DAGS)
    daemon.knows("innocent")
    innocent = daemon.trigger("innocent")
    eventually(lambda: daemon.run(innocent)["counts"].get("running") == 20)
    deadly = daemon.trigger("deadly", run_id="deadly")

    def is_over() -> bool:
        return all(
            daemon.run(run_id)["state"] not in {"queued", "running"}
            for run_id in (innocent, deadly)
        )

    deaths = supervise(daemon, is_over, 300)
    [killer] = daemon.run(deadly)["tasks"]
    others = daemon.run(innocent)["tasks"]

    assert (killer["state"], killer["error"]["reason"]) == ("failed", "interrupted")
    assert "ran alone" in killer["error"]["message"]
    assert {(one["state"], one["try_number"]) for one in others} == {("success", 1)}
    assert deaths <= 14
    assert max(one["interruptions"] for one in others) <= 7


@pytest.mark.nightly
def test_triggers_hosted_beside_one_that_kills_the_daemon_continue(
    killed_daemon: SharedDaemon, tmp_path: Path
) -> None:
    daemon = killed_daemon
    daemon.add("killers.py", DAGS)
    daemon.knows("hasty")
    conf = {"folder": str(tmp_path)}
    patient = daemon.trigger("patient", conf)
    eventually(lambda: daemon.run(patient)["counts"].get("deferred") == 3)
    hasty = daemon.trigger("hasty", conf, run_id="hasty")

    def is_over() -> bool:
        return daemon.run(hasty)["state"] not in {"queued", "running"}

    deaths = supervise(daemon, is_over, 300)
    [killer] = daemon.run(hasty)["tasks"]

    assert (killer["state"], killer["error"]["reason"]) == ("failed", "interrupted")
    assert "ran alone" in killer["error"]["message"]
    assert killer["try_number"] == 1
    assert deaths <= 14
    (tmp_path / "gate").touch()
    run = daemon.wait(patient)
    assert {(one["state"], one["try_number"]) for one in run["tasks"]} == {("success", 1)}
