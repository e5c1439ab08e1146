"""Runs that events start, on a real daemon that is killed in between: each event one run."""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

import msgspec
import pytest

from benchmarks.daemon import DaemonProcess, eventually, put
from tests.process.test_durable_calls import strike

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DAGS = """
import asyncio
from dataclasses import dataclass
from pathlib import Path

from aioflow import Trigger, TriggerEvent, dag, task
from aioflow_triggers.events import EventTrigger
from aioflow_triggers.files import NewFiles

HERE = {here!r}


@task(retries=9, retry_delay=0)
async def note(what: str) -> str:
    return what


@dag(schedule=NewFiles(HERE + "/drop/*.txt", poll_seconds=0.1))
def ingest(path: Path) -> None:
    note(path)


@dag(schedule=EventTrigger("order"), max_active_runs=4)
def orders(key: str, data: object) -> None:
    note(key)


@dataclass
class Numbers(Trigger[int]):
    upto: int

    async def run(self):
        first = 0 if self.last is None else self.last.payload + 1
        for number in range(first, self.upto):
            yield TriggerEvent(number, key=str(number))
        await asyncio.Event().wait()


@dag(schedule=Numbers({upto}))
def counts(number: int) -> None:
    note("x")
"""

COUNT = 60


@pytest.fixture
def dags(tmp_path):
    (tmp_path / "dags").mkdir()
    (tmp_path / "drop").mkdir()
    write(tmp_path, 0)
    return tmp_path / "dags"


def write(tmp_path, upto: int) -> None:
    text = DAGS.replace("{here!r}", repr(str(tmp_path))).replace("{upto}", str(upto))
    put(tmp_path / "dags" / "events.py", text)


def confs(daemon: DaemonProcess, dag_id: str) -> list[Any]:
    with daemon.database() as database:
        found = database.execute("SELECT conf FROM run WHERE dag_id = ?", (dag_id,)).fetchall()
    return [msgspec.msgpack.decode(conf) for (conf,) in found]


def unfinished(daemon: DaemonProcess) -> int:
    with daemon.database() as database:
        (count,) = database.execute(
            "SELECT count(*) FROM run WHERE ended_at IS NULL OR state != 2"
        ).fetchone()
    return int(count)


def is_hosted(daemon: DaemonProcess, dag_id: str) -> bool:
    _, found = daemon.get("/api/v1/triggers")
    return any(t["dag_id"] == dag_id and t["node"] is not None for t in found)


@pytest.mark.parametrize("what", ["daemon", "everything", "triggers"])
def test_each_event_starts_one_run_whatever_is_killed(tmp_path, dags, what):
    with DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1")) as daemon:
        for dag_id in ("ingest", "orders"):
            eventually(partial(is_hosted, daemon, dag_id))
        for number in range(COUNT):
            put(tmp_path / "drop" / f"{number}.txt", "x")
            data = {"n": number}
            daemon.request("POST", f"/api/v1/events/order?key={number}", data)
            if number % 20 == 10:
                strike(daemon, what)
        wanted = {str(tmp_path / "drop" / f"{number}.txt") for number in range(COUNT)}
        eventually(lambda: len(confs(daemon, "ingest")) >= COUNT, timeout=90)
        eventually(lambda: len(confs(daemon, "orders")) >= COUNT, timeout=90)
        eventually(lambda: unfinished(daemon) == 0, timeout=90)

        assert sorted(conf["path"] for conf in confs(daemon, "ingest")) == sorted(wanted)
        told = {(conf["key"], conf["data"]["n"]) for conf in confs(daemon, "orders")}
        assert told == {(str(number), number) for number in range(COUNT)}
        assert len(confs(daemon, "orders")) == COUNT


def test_what_happens_while_the_daemon_is_down_is_caught_up(tmp_path, dags):
    with DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1")) as daemon:
        eventually(partial(is_hosted, daemon, "ingest"))
        put(tmp_path / "drop" / "a.txt", "x")
        eventually(lambda: len(confs(daemon, "ingest")) == 1)
    put(tmp_path / "drop" / "b.txt", "x")
    with DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1")) as daemon:
        eventually(lambda: len(confs(daemon, "ingest")) >= 2)
        eventually(lambda: unfinished(daemon) == 0)

        assert len(confs(daemon, "ingest")) == 2


def test_a_saved_file_moves_the_trigger_and_its_place_stays(tmp_path, dags):
    with DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1")) as daemon:
        eventually(partial(is_hosted, daemon, "counts"))
        write(tmp_path, 500)
        eventually(lambda: len(confs(daemon, "counts")) >= 500, timeout=90)
        write(tmp_path, 600)
        eventually(lambda: len(confs(daemon, "counts")) >= 600, timeout=90)

        assert sorted(conf["number"] for conf in confs(daemon, "counts")) == list(range(600))


def test_lost_code_of_a_trigger_comes_back_from_the_database_and_nobody_is_told(tmp_path, dags):
    write(tmp_path, 1)
    with DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1")) as daemon:
        eventually(lambda: len(confs(daemon, "counts")) == 1)
        code = tmp_path / "home" / "code"
        version = daemon.version("counts")
        shutil.rmtree(code / version)
        strike(daemon, "triggers")
        eventually((code / version / "events.py").is_file)
        eventually(partial(is_hosted, daemon, "counts"))
        write(tmp_path, 2)
        eventually(lambda: len(confs(daemon, "counts")) == 2)

        with daemon.database() as database:
            assert database.execute("SELECT count(*) FROM outbox").fetchone() == (0,)
