"""Runs that events start, on a real daemon that is killed in between: each event starts one."""

from __future__ import annotations

import re
import shutil
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.daemon import eventually, put
from tests.daemons import SharedDaemon
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
async def note(what: str | Path) -> str:
    return str(what)


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
MARK = re.compile(r"\b(ingest|orders?|counts)\b")
ALL_KILLS = ("daemon", "everything", "triggers")


@dataclass(frozen=True)
class Events:
    """The DAGs of one test on a shared daemon. Their ids and their event end with its name."""

    daemon: SharedDaemon
    folder: Path
    name: str

    def write(self, upto: int) -> None:
        text = DAGS.replace("{here!r}", repr(str(self.folder))).replace("{upto}", str(upto))
        self.daemon.add("events.py", MARK.sub(rf"\1_{self.name}", text))

    def drop(self, name: str) -> str:
        put(path := self.folder / "drop" / name, "x")
        return str(path)

    def emit(self, key: str, data: object) -> None:
        self.daemon.request("POST", f"/api/v1/events/order_{self.name}?key={key}", data)

    def confs(self, dag: str) -> list[Any]:
        with self.daemon.database() as database:
            found = database.execute(
                "SELECT conf FROM run WHERE dag_id = ?", (f"{dag}_{self.name}",)
            ).fetchall()
        return [msgspec.msgpack.decode(conf) for (conf,) in found]

    def unfinished(self) -> int:
        with self.daemon.database() as database:
            (count,) = database.execute(
                "SELECT count(*) FROM run WHERE (ended_at IS NULL OR state != 2) AND dag_id LIKE ?",
                (f"%_{self.name}",),
            ).fetchone()
        return int(count)

    def is_hosted(self, dag: str) -> bool:
        found = self.daemon.items("/api/v1/triggers")
        dag_id = f"{dag}_{self.name}"
        return any(t["dag_id"] == dag_id and t["node"] is not None for t in found)


@pytest.fixture
def events(killed_daemon, tmp_path):
    (tmp_path / "drop").mkdir()
    found = Events(killed_daemon, tmp_path, f"x{uuid.uuid4().hex[:8]}")
    found.write(0)
    return found


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(("everything", "triggers", "async"), id="in-turn"),
        *(pytest.param((what,) * 3, id=what, marks=pytest.mark.nightly) for what in ALL_KILLS),
    ],
)
def test_each_event_starts_one_run_whatever_is_killed(events, kills):
    for dag in ("ingest", "orders"):
        eventually(partial(events.is_hosted, dag))
    wanted = []
    for number in range(COUNT):
        wanted.append(events.drop(f"{number}.txt"))
        events.emit(str(number), {"n": number})
        if number % 20 == 10:
            strike(events.daemon, kills[number // 20])
    eventually(lambda: len(events.confs("ingest")) >= COUNT, timeout=90)
    eventually(lambda: len(events.confs("orders")) >= COUNT, timeout=90)
    eventually(lambda: events.unfinished() == 0, timeout=90)

    assert sorted(conf["path"] for conf in events.confs("ingest")) == sorted(wanted)
    told = {(conf["key"], conf["data"]["n"]) for conf in events.confs("orders")}
    assert told == {(str(number), number) for number in range(COUNT)}
    assert len(events.confs("orders")) == COUNT


@pytest.mark.nightly
def test_events_while_the_daemon_is_down_are_caught_up(events):
    eventually(partial(events.is_hosted, "ingest"))
    events.drop("a.txt")
    eventually(lambda: len(events.confs("ingest")) == 1)
    eventually(lambda: events.unfinished() == 0)
    assert events.daemon.stop() == 0
    events.drop("b.txt")
    events.daemon.start()
    eventually(lambda: len(events.confs("ingest")) >= 2)
    eventually(lambda: events.unfinished() == 0)

    assert len(events.confs("ingest")) == 2


@pytest.mark.parametrize("upto", [50, pytest.param(500, marks=pytest.mark.nightly)])
def test_a_saved_file_moves_the_trigger_and_its_place_stays(events, upto):
    further = upto + upto // 5
    eventually(partial(events.is_hosted, "counts"))
    events.write(upto)
    eventually(lambda: len(events.confs("counts")) >= upto, timeout=90)
    events.write(further)
    eventually(lambda: len(events.confs("counts")) >= further, timeout=90)

    assert sorted(conf["number"] for conf in events.confs("counts")) == list(range(further))


@pytest.mark.nightly
def test_lost_code_of_a_trigger_is_restored_from_the_database_without_an_alert(events):
    daemon, dag_id = events.daemon, f"counts_{events.name}"
    events.write(1)
    eventually(lambda: len(events.confs("counts")) == 1)
    code = daemon.home / "code"
    version = daemon.version(dag_id)
    shutil.rmtree(code / version)
    strike(daemon, "triggers")
    eventually((code / version / "events.py").is_file)
    eventually(partial(events.is_hosted, "counts"))
    events.write(2)
    eventually(lambda: len(events.confs("counts")) == 2)

    with daemon.database() as database:
        owed = database.execute("SELECT kind FROM outbox WHERE kind != 'trial'").fetchall()
    assert owed == [], "deaths of the daemon are remembered, alerts are not owed"
