"""A daemon that stores its results in S3, and another one on an empty disk that reads them."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx2
import psutil
import pytest

from benchmarks.daemon import DaemonProcess, eventually, put
from tests.storage.conftest import SECRET
from tests.storage.fault_proxy import Fault, FaultProxy

pytestmark = pytest.mark.process

WIDTH = 200

DAG = f"""
import asyncio
from aioflow import dag, task

@task
def numbers():
    return list(range({WIDTH}))

@task
def large():
    return "x" * 200_000

@task
def double(n):
    return 2 * n

@task
async def of_host(n):
    return n

@task
def total(found, text):
    return [sum(found), len(text)]

@task
async def length(text, found):
    return [len(text), len(found)]

@dag
def stored():
    items, text = numbers(), large()
    total(double.expand(n=items), text)
    length(text, items)
    of_host.expand(n=items)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    put(tmp_path / "dags" / "stored.py", DAG)
    return tmp_path


def node(folder: Path, name: str, url: str, environment, *flags: str) -> DaemonProcess:
    """Return a daemon with a separate home."""
    home = folder / name
    home.mkdir()
    (home / "aioflow.toml").write_text(
        f'[results]\nurl = "{url}"\n[log]\nurl = "{url}"\n[slots]\ncpu = 2\n'
    )
    daemon = DaemonProcess(home, folder / "dags", flags=flags)
    daemon.environment = {**os.environ, **environment}
    return daemon


def results(daemon: DaemonProcess, run_id: str) -> dict[str, object]:
    tasks = daemon.run(run_id)["tasks"]
    return {task["task_id"]: task["result"] for task in tasks if task["map_index"] == -1}


def holds_secret(process: psutil.Process) -> bool:
    """Return whether the environment or the memory of a process contains the credentials."""
    root = Path(f"/proc/{process.pid}")
    if SECRET.encode() in (root / "environ").read_bytes():
        return True
    with (root / "mem").open("rb", buffering=0) as memory:
        for line in (root / "maps").read_text().splitlines():
            span, mode, *_ = line.split()
            if mode.startswith("rw"):
                first, end = (int(part, 16) for part in span.split("-"))
                memory.seek(first)
                try:
                    found = memory.read(end - first)
                except (OSError, ValueError):
                    continue
                if SECRET.encode() in found:
                    return True
    return False


@pytest.mark.nightly
def test_results_in_s3(folder: Path, bucket: str, s3_environment, proxy: FaultProxy, moto):
    faults = [Fault(503), Fault(cut_after=0), Fault(500)]
    proxy.choose = lambda method: faults.pop() if method == "PUT" and faults else None
    with node(folder, "first", f"{bucket}/p", s3_environment) as first:
        run_id = first.trigger("stored")
        assert first.wait(run_id)["state"] == "success"
        assert results(first, run_id)["total"] == [WIDTH * (WIDTH - 1), 200_000]
        assert results(first, run_id)["length"] == [200_000, WIDTH]
        assert not list((first.home / "results").rglob("*.*"))
        daemon, *children = first.tree()
        assert holds_secret(daemon)
        seen = []
        for child in children:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                seen.append(holds_secret(child))
        assert len(seen) >= 4
        assert not any(seen)
    listed = httpx2.get(f"{moto}/{bucket.removeprefix('s3://')}?list-type=2", timeout=60).text
    assert listed.count("<Key>p/results/") == 2

    before = proxy.seen["GET"]
    database = f"sqlite:///{folder / 'first' / 'aioflow.db'}"
    other = node(folder, "other", f"{bucket}/p", s3_environment, "--db", database, "--take-over")
    with other:
        assert results(other, run_id)["numbers"] == list(range(WIDTH))
        body = {"tasks": ["double", "length", "of_host"], "downstream": True}
        other.request("POST", f"/api/v1/runs/{run_id}/clear", body, status=None)
        assert other.wait(run_id)["state"] == "success"
        assert results(other, run_id)["total"] == [WIDTH * (WIDTH - 1), 200_000]
        gets = proxy.seen["GET"] - before
        assert gets <= 4, "two of the owner, and one for each result"

        other.request("DELETE", f"/api/v1/runs/{run_id}", status=None)

        def are_gone() -> bool:
            name = bucket.removeprefix("s3://")
            return (
                "<Key>p/results/" not in httpx2.get(f"{moto}/{name}?list-type=2", timeout=60).text
            )

        eventually(are_gone, 60)
        eventually(lambda: not list((other.home / "cache").rglob("*.*")), 60)


PRINTING = """
import time
from aioflow import dag, task

@task
def ended():
    print("this is over")

@task
def goes_on():
    print("this goes on", flush=True)
    time.sleep(600)

@dag
def printing():
    ended()
    goes_on()
"""


def test_the_output_of_a_killed_daemon_is_read_on_an_empty_disk(
    folder: Path, bucket: str, s3_environment, moto
):
    put(folder / "dags" / "printing.py", PRINTING)
    name = bucket.removeprefix("s3://")
    with node(folder, "first", bucket, s3_environment) as first:
        run_id = first.trigger("printing")

        def are_stored() -> bool:
            listed = httpx2.get(f"{moto}/{name}?list-type=2&prefix=logs/", timeout=60).text
            return listed.count("<Key>") == 2

        eventually(are_stored, 60)
        first.kill(whole_tree=True)
        database = f"sqlite:///{first.home / 'aioflow.db'}"
        shutil.rmtree(first.home / "logs")
        other = node(folder, "other", bucket, s3_environment, "--db", database, "--take-over")
        with other:
            path = f"/api/v1/runs/{run_id}/tasks"
            assert "this is over" in other.get(f"{path}/ended/logs")[1]
            assert "this goes on" in other.get(f"{path}/goes_on/logs")[1]
            other.request("POST", f"/api/v1/runs/{run_id}/cancel")


@pytest.mark.nightly
def test_results_in_the_database(folder: Path):
    def chunks(home: Path) -> int:
        with closing(sqlite3.connect(f"file:{home / 'aioflow.db'}?mode=ro", uri=True)) as database:
            return database.execute("SELECT count(*) FROM result_chunk").fetchone()[0]

    def node_of(name: str, *flags: str) -> DaemonProcess:
        home = folder / name
        home.mkdir()
        (home / "aioflow.toml").write_text('[results]\nurl = "db"\n[slots]\ncpu = 2\n')
        return DaemonProcess(home, folder / "dags", flags=flags)

    with node_of("first") as first:
        run_id = first.trigger("stored")
        assert first.wait(run_id)["state"] == "success"
        assert chunks(first.home) == 2
        assert not list((first.home / "results").rglob("*.*"))
    database = f"sqlite:///{first.home / 'aioflow.db'}"
    with node_of("other", "--db", database, "--take-over") as other:
        body = {"tasks": ["double", "length", "of_host"], "downstream": True}
        other.request("POST", f"/api/v1/runs/{run_id}/clear", body)
        assert other.wait(run_id)["state"] == "success"
        assert results(other, run_id)["total"] == [WIDTH * (WIDTH - 1), 200_000]
        other.request("DELETE", f"/api/v1/runs/{run_id}", status=None)
        eventually(lambda: chunks(first.home) == 0, 60)
