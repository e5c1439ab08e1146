"""A daemon with an executor from an installed package, whose workers run tasks and die."""

from __future__ import annotations

import os
import pathlib
import signal
import socket

import pytest

from benchmarks.daemon import eventually
from tests.commands import run
from tests.daemons import SharedDaemon
from tests.packages import SitePackages

pytestmark = pytest.mark.process

BACKEND = """
import shutil
from pathlib import Path
import anyio
from aioflow.executors.local_executor import LocalExecutor
from aioflow.processes import Children

class Near(LocalExecutor):
    def __init__(self, name, table):
        self._home = Path(table["folder"])
        super().__init__(Children(self._home), name=name, max_workers=table["workers"])

    async def run(self, lease, events, *, task_status):
        async with anyio.create_task_group() as group:
            await group.start(self._children.run)
            await super().run(lease, events, task_status=task_status)

    def check(self, task):
        return "no worker has a TPU" if "TPU" in dict(task.resources) else ""

def create(name, table):
    return Near(name, table)
"""

DAG = """
import os, time
from pathlib import Path
from aioflow import dag, task

@task
def numbers() -> list[int]:
    return list(range(200))

@task
def square(n: int) -> int:
    print("squared", n)
    return n * n

@task(resources={"GPU": 1})
def total(squares: list[int]) -> int:
    return sum(squares)

@task(executor="local")
def parent() -> int:
    return os.getppid()

@dag(executor="near")
def squares():
    parent()
    total(square.expand(n=numbers()))

@task(executor="near")
def waits_for(file: str) -> int:
    Path(file + ".pid").write_text(str(os.getpid()))
    while not Path(file).exists():
        time.sleep(0.01)
    return os.getpid()

@dag
def slow(file: str):
    waits_for(file)
"""

REFUSED = """
from aioflow import dag, task

@task(executor="near", resources={"TPU": 1})
def lone() -> int:
    return 1

@dag
def refused():
    lone()
"""

WAITS = """
from aioflow import dag, task

@task(executor="broken")
def lone() -> int:
    return 1

@dag
def waiting():
    lone()
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    folder = tmp_path_factory.mktemp("executors")
    packages = SitePackages(folder)
    packages.install("near_backend", "1.0", BACKEND)
    (metadata,) = packages.folder.glob("*.dist-info")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: near_backend\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[aioflow.executors]\nnear = near_backend:create\n")
    settings = f"""
[executors.near]
folder = "{folder / "near"}"
workers = 2
[executors.broken]
kind = "nobody_provides_this"
"""
    daemon = SharedDaemon(
        folder,
        settings=settings,
        flags=("--cpu-slots", "1"),
        environment={"PYTHONPATH": str(packages.folder)},
    )
    daemon.start()
    daemon.add("squares.py", DAG)
    yield daemon
    daemon.end()


def task_of(daemon, run_id, name):
    return next(one for one in daemon.run(run_id)["tasks"] if one["task_id"] == name)


def test_functions_run_in_its_workers_with_results_and_logs(daemon):
    run_id = daemon.trigger("squares")

    run = daemon.wait(run_id)

    assert run["state"] == "success"
    assert task_of(daemon, run_id, "total")["result"] == sum(n * n for n in range(200))
    _, log = daemon.get(f"/api/v1/runs/{run_id}/tasks/square/logs?map=7")
    assert "squared 7" in str(log)


def test_the_page_and_the_command_line_say_where_each_try_ran(daemon):
    run_id = daemon.trigger("squares")
    daemon.wait(run_id)

    _, shown = daemon.get(f"/api/v1/runs/{run_id}/tasks/square/show?map=7")
    _, local = daemon.get(f"/api/v1/runs/{run_id}/tasks/parent/show")
    (far,), (near,) = shown["tries"], local["tries"]
    assert (far["executor"], far["host"]) == ("near", socket.gethostname())
    assert far["worker"].startswith("process ")
    assert {near[name] for name in ("executor", "host", "worker", "worker_url")} == {None}

    said = run("runs", "show", run_id, "--task", "total", home=daemon.home)
    assert "RAN ON" in said.out
    assert f"near, {socket.gethostname()}, process " in said.out
    assert "RAN ON" not in run("runs", "show", run_id, "--task", "parent", home=daemon.home).out


def test_a_worker_that_is_killed_costs_its_task_no_try(daemon, tmp_path):
    file = tmp_path / "go-on"
    run_id = daemon.trigger("slow", {"file": str(file)})
    found = tmp_path / "go-on.pid"
    eventually(found.exists)
    pid = eventually(lambda: int(found.read_text() or 0))

    os.kill(pid, signal.SIGKILL)
    eventually(lambda: int(found.read_text() or pid) != pid)
    file.touch()

    assert daemon.wait(run_id)["state"] == "success"
    task = task_of(daemon, run_id, "waits_for")
    assert (task["try_number"], task["interruptions"]) == (1, 1)
    assert task["result"] != pid


def test_a_cancelled_run_ends_its_worker(daemon, tmp_path):
    file = tmp_path / "never"
    run_id = daemon.trigger("slow", {"file": str(file)})
    found = tmp_path / "never.pid"
    eventually(found.exists)
    pid = eventually(lambda: int(found.read_text() or 0))

    daemon.request("POST", f"/api/v1/runs/{run_id}/cancel")

    assert daemon.wait(run_id)["state"] == "cancelled"
    eventually(lambda: not pathlib.Path(f"/proc/{pid}").exists())


def test_a_file_whose_task_can_never_run_is_refused(daemon):
    daemon.add("refused.py", REFUSED)

    def error():
        (dag,) = (one for one in daemon.items("/api/v1/dags") if one["file"] == "refused.py")
        return dag["import_error"]

    assert "no worker has a TPU" in str(eventually(error))


@pytest.mark.nightly
def test_a_task_of_a_broken_executor_waits_and_says_why(daemon):
    daemon.add("waits.py", WAITS)
    run_id = daemon.trigger("waiting")

    def wait():
        return task_of(daemon, run_id, "lone")["waiting_on"]

    told = eventually(lambda: (found := wait()) and "nobody_provides" in found["detail"] and found)
    assert told["kind"] == "executor"
    daemon.request("POST", f"/api/v1/runs/{run_id}/cancel")
