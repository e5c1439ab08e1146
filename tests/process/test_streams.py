"""Streams on a real daemon that is killed during them: each item becomes one child, once."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess, eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
nightly = pytest.mark.nightly

ITEMS = 200

DAGS = """
import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aioflow import Operator, Trigger, TriggerEvent, dag, task

ITEMS = 200


def note(folder: str, name: str, what: object) -> None:
    with open(Path(folder, name), "a") as file:
        file.write(f"{what}\\n")


@task(retries=5, retry_delay=0)
async def pages(folder: str) -> AsyncIterator[int]:
    for number in range(ITEMS):
        if number == ITEMS // 2:
            while not Path(folder, "go-on").exists():
                await asyncio.sleep(0.01)
        yield number * 10


@task(window=50)
async def load(folder: str, page: int) -> int:
    note(folder, "loaded", page)
    return page


@task
def total(folder: str, loaded: Sequence[int]) -> list[int]:
    note(folder, "totals", len(loaded))
    return [len(loaded), sum(loaded)]


@dag
def generator(folder: str) -> None:
    total(folder, load.partial(folder=folder).expand(page=pages(folder)))


@dataclass
class Counting(Trigger[int]):
    folder: str

    async def run(self):
        for number in range(ITEMS):
            if number == ITEMS // 2:
                while not Path(self.folder, "go-on").exists():
                    await asyncio.sleep(0.01)
            yield TriggerEvent(number * 10, key=str(number))


class Follow(Operator):
    def __init__(self, folder, **options):
        super().__init__(**options)
        self.folder = folder

    async def execute(self, context):
        self.defer(trigger=Counting(self.folder), method_name="close")

    async def handle_trigger_events(self, events, context):
        for event in events:
            note(self.folder, "handled", event.payload)
        return [event.payload for event in events]

    async def close(self, context, event=None):
        note(self.folder, "closed", event)


@dag
def operator(folder: str) -> None:
    follow = Follow(folder, task_id="follow")
    total(folder, load.partial(folder=folder).expand(page=follow.output))


class Stumbles(Follow):
    async def handle_trigger_events(self, events, context):
        if any(event.payload == 30 for event in events) and context["try_number"] == 1:
            raise ValueError("not yet")
        return await super().handle_trigger_events(events, context)


@dag
def stumbling(folder: str) -> None:
    Stumbles(folder, task_id="follow", retries=1, retry_delay=0)
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def lines(file: Path) -> Counter[str]:
    return Counter(file.read_text().split()) if file.exists() else Counter()


def has_loaded(out: Path, count: int) -> bool:
    return len(lines(out / "loaded")) >= count


def children(daemon: DaemonProcess, run_id: str) -> list[dict[str, Any]]:
    tasks = daemon.run(run_id)["tasks"]
    return [task for task in tasks if task["task_id"] == "load"]


@pytest.mark.parametrize(
    ("dag", "what", "database"),
    [
        pytest.param("generator", "nothing", "sqlite", marks=nightly),
        pytest.param("generator", "daemon", "sqlite", marks=nightly),
        pytest.param("generator", "everything", "sqlite", marks=nightly),
        pytest.param("generator", "everything", "postgres", marks=[pytest.mark.postgres, nightly]),
        pytest.param("operator", "nothing", "sqlite", marks=nightly),
        pytest.param("operator", "everything", "sqlite"),
        pytest.param("operator", "everything", "postgres", marks=[pytest.mark.postgres, nightly]),
    ],
)
def test_a_stream_that_is_cut_short_makes_each_child_and_its_fan_in_once(
    daemon_on, out, dag, what, database
):
    daemon = daemon_on(database)
    daemon.add("streams.py", DAGS)
    run_id = daemon.trigger(dag, {"folder": str(out)})
    eventually(partial(has_loaded, out, ITEMS // 2))
    if what != "nothing":
        daemon.kill(whole_tree=what == "everything")
        daemon.start()
    assert not (out / "totals").exists()
    (out / "go-on").touch()
    ended = daemon.wait(run_id)
    loaded = children(daemon, run_id)
    [total] = [t for t in daemon.run(run_id)["tasks"] if t["task_id"] == "total"]

    assert ended["state"] == "success"
    assert sorted(child["map_index"] for child in loaded) == list(range(ITEMS))
    assert {child["state"] for child in loaded} == {"success"}
    assert total["result"] == [ITEMS, sum(range(0, 10 * ITEMS, 10))]
    assert lines(out / "totals") == {str(ITEMS): 1}
    assert set(lines(out / "loaded")) == {str(10 * number) for number in range(ITEMS)}
    if what == "nothing":
        assert set(lines(out / "loaded").values()) == {1}
    if dag == "operator":
        assert set(lines(out / "handled")) == {str(10 * number) for number in range(ITEMS)}
        assert lines(out / "closed") == {"None": 1}


@pytest.mark.nightly
def test_a_handler_that_fails_is_given_the_same_events_again(shared_daemon, out):
    (out / "go-on").touch()
    shared_daemon.add("streams.py", DAGS)
    run_id = shared_daemon.trigger("stumbling", {"folder": str(out)})
    ended = shared_daemon.wait(run_id)
    [task] = shared_daemon.run(run_id)["tasks"]

    assert (ended["state"], task["try_number"]) == ("success", 2)
    assert list(lines(out / "handled").items()) == [(str(10 * n), 1) for n in range(ITEMS)]
