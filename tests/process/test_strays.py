"""No process that a task starts outlives it, however it detaches and whatever is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.daemon import eventually
from tests.daemons import SharedDaemon
from tests.executors.processes import DAEMONISE, is_alive

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DAGS = f"""
import asyncio
import os
import time

from aioflow import dag, task
{DAEMONISE}

@task(retries=0)
def leaves(folder: str) -> int:
    shed(folder + "/stray")
    return os.getpid()


@task(retries=0)
def sees(folder: str, before: int) -> None:
    assert os.getpid() == before
    stray = open(folder + "/stray").read().strip()
    try:
        stat = open(f"/proc/{{stray}}/stat").read()
    except OSError:
        return
    assert stat.rpartition(")")[2].split()[0] in "XZ", stat


@dag
def reuses(folder: str) -> None:
    sees(folder, leaves(folder))


@task(retries=0, execution_timeout=5)
def stays(folder: str) -> None:
    shed(folder + "/stray")
    open(folder + "/pid", "w").write(str(os.getpid()))
    while not os.path.exists(folder + "/gate"):
        time.sleep(0.05)


@task(retries=0)
async def waits(folder: str) -> None:
    shed(folder + "/stray")
    open(folder + "/pid", "w").write(str(os.getpid()))
    while not os.path.exists(folder + "/gate"):
        await asyncio.sleep(0.05)


@dag
def worker(folder: str) -> None:
    stays(folder)


@dag
def host(folder: str) -> None:
    waits(folder)
"""


def number(path: Path) -> int:
    """Return the process id in a file, once it exists."""
    written: str = eventually(lambda: path.read_text() if path.exists() else "")
    return int(written)


def test_a_task_leaves_no_process_in_a_worker_that_continues(
    shared_daemon: SharedDaemon, tmp_path: Path
) -> None:
    shared_daemon.add("strays.py", DAGS)
    run_id = shared_daemon.trigger("reuses", {"folder": str(tmp_path)})

    run = shared_daemon.wait(run_id)

    assert run["state"] == "success", run
    assert not is_alive(number(tmp_path / "stray"))


def times_out(daemon: SharedDaemon, folder: Path, run_id: str) -> None:
    daemon.wait(run_id)


def is_cancelled(daemon: SharedDaemon, folder: Path, run_id: str) -> None:
    assert daemon.request("POST", f"/api/v1/runs/{run_id}/cancel")[0] < 300
    daemon.wait(run_id)


def is_killed(daemon: SharedDaemon, folder: Path, run_id: str) -> None:
    pid = number(folder / "pid")
    (folder / "gate").touch()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid))


def daemon_is_killed(daemon: SharedDaemon, folder: Path, run_id: str) -> None:
    daemon.kill()
    (folder / "gate").touch()
    daemon.start()


def both_are_killed(daemon: SharedDaemon, folder: Path, run_id: str) -> None:
    daemon.kill(whole_tree=True)
    (folder / "gate").touch()
    daemon.start()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dag_id", "ends"),
    [
        ("worker", times_out),
        ("worker", is_cancelled),
        ("worker", is_killed),
        ("worker", daemon_is_killed),
        ("worker", both_are_killed),
        ("host", is_killed),
        ("host", daemon_is_killed),
    ],
)
def test_a_process_without_environment_and_session_dies_with(
    killed_daemon: SharedDaemon,
    tmp_path: Path,
    dag_id: str,
    ends: Callable[[SharedDaemon, Path, str], None],
) -> None:
    daemon = killed_daemon
    daemon.add("strays.py", DAGS)
    run_id = daemon.trigger(dag_id, {"folder": str(tmp_path)})
    number(tmp_path / "pid")
    stray = number(tmp_path / "stray")

    ends(daemon, tmp_path, run_id)

    eventually(lambda: not is_alive(stray))
