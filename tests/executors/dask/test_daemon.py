"""A daemon whose tasks run on a Dask cluster of real processes."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from benchmarks.daemon import eventually
from tests.commands import run
from tests.daemons import SharedDaemon
from tests.executors.dask.cluster import is_alive

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("dask")]

SQUARES = """
from aioflow import dag, task

@task
def numbers() -> list[int]:
    return list(range(200))

@task
def square(n: int) -> int:
    print("squared", n)
    return n * n

@task
def total(squares: list[int]) -> int:
    return sum(squares)

@task
def large(n: int) -> bytes:
    return bytes([n % 256]) * (9_000_000 if n == 1 else 100_000)

@task
def sizes(parts: list[bytes], first: bytes) -> list[int]:
    return [len(part) for part in parts] + [len(first), first[-1]]

@dag(executor="dask")
def squares():
    total(square.expand(n=numbers()))

@dag(executor="dask")
def larges():
    sizes(large.expand(n=[1, 2, 3]), large(7))
"""

SLOW = """
import os, time
from pathlib import Path
from aioflow import dag, task, Retry

@task(executor="dask")
def waits_for(file: str) -> int:
    with open(file + ".pid", "a") as pids:
        pids.write(f"{os.getpid()}\\n")
    while not Path(file).exists():
        time.sleep(0.01)
    return os.getpid()

@task(executor="dask", execution_timeout=3, retry=Retry(tries=1))
def takes_too_long() -> None:
    print("going to sleep", flush=True)
    time.sleep(600)

@dag
def slow(file: str):
    waits_for(file)

@dag
def late():
    takes_too_long()
"""

GPUS = """
import time
from pathlib import Path
from aioflow import dag, task

@task(executor="dask", resources={"GPU": 1})
def uses_a_gpu(n: int, ledger: str) -> None:
    with open(ledger, "a+") as file:
        file.write("+")
        file.flush()
        until = time.monotonic() + 1.5  # others that may begin beside it do so meanwhile
        while time.monotonic() < until and at_once(ledger) < 3:
            time.sleep(0.01)
        file.write("-")

def at_once(ledger: str) -> int:
    steps = Path(ledger).read_text()
    return steps.count("+") - steps.count("-")

@dag
def gpus(ledger: str):
    uses_a_gpu.partial(ledger=ledger).expand(n=list(range(4)))
"""

VALUES = """
from aioflow import connection, dag, secret, step, task, variable

@task(secrets=["TOKEN"], connections=["books"], variables=["REGION"], retries=0)
def reads() -> list[str]:
    print("the token is", secret("TOKEN"))
    return [str(len(secret("TOKEN"))), connection("books").host, variable("REGION")]

@task(retries=0)
async def records(found: list[str]) -> str:
    return await step("-".join, found)

@task(retries=0)
def shouts(text: str) -> str:
    return text.upper()

@dag(executor="dask")
def values():
    shouts(records(reads()))
"""
TOKEN = "canary-token-4e1b"

DASK_WORKER = ("--nthreads", "2", "--resources", "GPU=1")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory, cluster):
    settings = f"""
[executors.dask]
address = "{cluster.address}"
max_workers = 3
"""
    folder = tmp_path_factory.mktemp("daemon")
    daemon = SharedDaemon(folder, settings=settings, flags=("--cpu-slots", "1"))
    daemon.start()
    yield daemon
    daemon.end()


def task_of(daemon, run_id, name):
    return next(one for one in daemon.run(run_id)["tasks"] if one["task_id"] == name)


def pids_in(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def test_a_fan_out_runs_on_the_cluster_with_results_and_logs(daemon):
    daemon.add("squares.py", SQUARES)
    run_id = daemon.trigger("squares")
    run = daemon.wait(run_id)
    assert run["state"] == "success"
    assert task_of(daemon, run_id, "total")["result"] == sum(n * n for n in range(200))
    _, log = daemon.get(f"/api/v1/runs/{run_id}/tasks/square/logs?map=7")
    assert "squared 7" in str(log)


@pytest.mark.nightly
def test_large_results_travel_to_and_from_machines_without_the_home(daemon):
    daemon.add("squares.py", SQUARES)
    run_id = daemon.trigger("larges")
    assert daemon.wait(run_id)["state"] == "success"
    result = task_of(daemon, run_id, "sizes")["result"]
    assert result == [9_000_000, 100_000, 100_000, 100_000, 7]
    files = [path for path in (daemon.home / "results").glob("*/*") if path.is_file()]
    assert sum(path.stat().st_size > 90_000 for path in files) == 4
    assert not [path for path in files if path.name.endswith(".part")]


@pytest.mark.nightly
def test_a_resource_is_used_by_as_many_tasks_as_there_are_of_it(daemon, tmp_path):
    daemon.add("gpus.py", GPUS)
    ledger = tmp_path / "ledger"
    run_id = daemon.trigger("gpus", {"ledger": str(ledger)})
    assert daemon.wait(run_id)["state"] == "success"
    steps = [1 if step == "+" else -1 for step in ledger.read_text()]
    assert len(steps) == 8
    assert max(itertools.accumulate(steps)) <= 2  # three workers and four threads would allow 3


def test_declared_values_and_answers_of_durable_calls_reach_the_cluster(daemon):
    for words, told in (
        (("secrets", "set", "TOKEN"), TOKEN),
        (("connections", "set", "books"), '{"conn_type": "http", "host": "books.example"}'),
        (("variables", "set", "REGION", "eu-west"), ""),
    ):
        done = run(*words, home=daemon.home, given=told)
        assert done.status == 0, done.err
    daemon.add("values.py", VALUES)
    run_id = daemon.trigger("values")
    assert daemon.wait(run_id)["state"] == "success"
    found = task_of(daemon, run_id, "shouts")["result"]
    assert found == f"{len(TOKEN)}-BOOKS.EXAMPLE-EU-WEST"
    _, log = daemon.get(f"/api/v1/runs/{run_id}/tasks/reads/logs")
    assert "the token is ***" in str(log)
    kept = [path for path in daemon.home.rglob("*") if path.is_file()]
    kept += list(daemon.home.parent.glob("*.log"))
    assert not [path for path in kept if TOKEN.encode() in path.read_bytes()]


@pytest.mark.nightly
def test_a_cancelled_run_ends_its_process(daemon, tmp_path):
    daemon.add("slow.py", SLOW)
    run_id = daemon.trigger("slow", {"file": str(tmp_path / "never")})
    (pid,) = eventually(lambda: pids_in(tmp_path / "never.pid"))
    daemon.request("POST", f"/api/v1/runs/{run_id}/cancel")
    assert daemon.wait(run_id)["state"] == "cancelled"
    eventually(lambda: not is_alive(pid))


@pytest.mark.nightly
def test_a_timeout_ends_the_try_and_keeps_its_log(daemon):
    daemon.add("slow.py", SLOW)
    run_id = daemon.trigger("late")
    assert daemon.wait(run_id)["state"] == "failed"
    assert task_of(daemon, run_id, "takes_too_long")["error"]["type"] == "TaskTimeout"
    _, log = daemon.get(f"/api/v1/runs/{run_id}/tasks/takes_too_long/logs")
    assert "going to sleep" in str(log)


@pytest.mark.nightly
def test_a_killed_process_costs_its_task_no_try(daemon, tmp_path):
    daemon.add("slow.py", SLOW)
    file = tmp_path / "go-on"
    run_id = daemon.trigger("slow", {"file": str(file)})
    (pid,) = eventually(lambda: pids_in(tmp_path / "go-on.pid"))
    os.kill(pid, signal.SIGKILL)
    second = eventually(lambda: pids_in(tmp_path / "go-on.pid")[1:])[0]
    file.touch()
    assert daemon.wait(run_id)["state"] == "success"
    task = task_of(daemon, run_id, "waits_for")
    assert (task["try_number"], task["interruptions"], task["result"]) == (1, 1, second)


def test_a_daemon_that_was_killed_finds_its_task_again(daemon, tmp_path):
    daemon.add("slow.py", SLOW)
    file = tmp_path / "after"
    run_id = daemon.trigger("slow", {"file": str(file)})
    (pid,) = eventually(lambda: pids_in(tmp_path / "after.pid"))
    daemon.kill()
    assert is_alive(pid)
    daemon.start()
    second = eventually(lambda: pids_in(tmp_path / "after.pid")[1:])[0]
    assert not is_alive(pid)
    file.touch()
    assert daemon.wait(run_id)["state"] == "success"
    assert task_of(daemon, run_id, "waits_for")["result"] == second
