"""Triggers on a real daemon: saved code moves them, and tasks can wait right from their start."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess, eventually
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DAGS = """
import asyncio
from dataclasses import dataclass
from pathlib import Path

from aioflow import *


def look(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


@dataclass
class Gate(Trigger[str]):
    path: str

    async def run(self):
        print("looks as SAYS does")
        while not (text := look(self.path)):
            await asyncio.sleep(0.02)
        yield TriggerEvent(f"{text} SAYS")

    async def cleanup(self, reason):
        with open(f"{self.path}-cleanups", "a") as file:
            file.write(f"{reason}\\n")


@dataclass
class Passes(Trigger[list[str]]):
    folder: str

    async def run(self):
        while not (text := look(f"{self.folder}/list")):
            await asyncio.sleep(0.02)
        yield TaskSuccessEvent(text.split(","))


class Waits(Operator):
    def __init__(self, folder: str, **options):
        super().__init__(**options)
        self.folder = folder

    def execute(self, context):
        self.defer(trigger=Gate(path=f"{self.folder}/gate"), method_name="after")

    def after(self, context, event=None):
        return event


class Starts(Operator):
    start_from_trigger = True
    start_trigger_args = None

    def __init__(self, folder: str, **options):
        super().__init__(**options)
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=Passes, trigger_kwargs={"folder": folder})

    def execute(self, context): raise AssertionError("no worker is touched")


class Each(Operator):
    start_from_trigger = True
    start_trigger_args = StartTriggerArgs(
        trigger_cls="starts.Gate", next_method="after", timeout="10m")

    def after(self, context, event=None):
        return event


@task
def paths(folder: str) -> list[dict[str, str]]:
    return [{"path": f"{folder}/gate"} for _ in range(20)]


@task
def double(item: str) -> str:
    return 2 * item


@dag
def moves(folder: str): Waits(task_id="waits", folder=folder)


@dag
def lists(folder: str): double.expand(item=Starts(task_id="starts", folder=folder).output)


@dag
def wide(folder: str): Each.partial(task_id="each").expand(trigger_kwargs=paths(folder))
"""

# Each of the three kinds of children imports the package.
USES_PACKAGE = """
from aioflow import *
import bells


class Rings(Operator):
    def __init__(self, path: str, **options):
        super().__init__(**options)
        self.path = path

    def execute(self, context):
        self.defer(trigger=bells.made(self.path), method_name="after")

    def after(self, context, event=None):
        return [event, bells.VERSION]


@task
async def listens(path: str) -> int:
    return bells.VERSION


@dag
def bells_ring(path: str):
    Rings(task_id="rings", path=path)
    listens(path)
"""
BELLS = """
import asyncio
from dataclasses import dataclass
from pathlib import Path
from aioflow import Trigger, TriggerEvent

VERSION = 1

@dataclass
class Bell(Trigger[int]):
    path: str
    async def run(self):
        while not Path(self.path).exists():
            await asyncio.sleep(0.02)
        yield TriggerEvent(VERSION)

def made(path):
    return Bell(path)
"""
NEW_BELLS = (
    BELLS.replace("VERSION = 1", "VERSION = 2")
    .replace("path: str\n", "path: str\n    clapper: str = ''\n")
    .replace("Bell(path)", "Bell(path, clapper='brass')")
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def save(daemon: SharedDaemon, says: str) -> None:
    daemon.add("starts.py", DAGS.replace("SAYS", says))


def states(daemon: DaemonProcess, run_id: str, task_id: str) -> set[str]:
    return {task["state"] for task in daemon.run(run_id)["tasks"] if task["task_id"] == task_id}


def is_waiting(daemon: DaemonProcess, run_id: str, task_id: str) -> bool:
    return states(daemon, run_id, task_id) == {"deferred"}


def has_printed(daemon: DaemonProcess, run_id: str, text: str) -> bool:
    logs = (daemon.home / "logs").glob(f"*/{run_id.rpartition('.')[2]}/**/*.log")
    with contextlib.suppress(FileNotFoundError):
        return any(text.encode() in path.read_bytes() for path in logs)
    return False


def results(daemon: DaemonProcess, run_id: str, task_id: str) -> list[Any]:
    return [task["result"] for task in daemon.run(run_id)["tasks"] if task["task_id"] == task_id]


def test_a_saved_trigger_continues_in_its_newest_code_and_prints_into_its_log(killed_daemon, out):
    daemon = killed_daemon
    save(daemon, "old")
    run_id = daemon.trigger("moves", {"folder": str(out)})
    eventually(partial(has_printed, daemon, run_id, "looks as old does"))

    save(daemon, "new")
    eventually(partial(has_printed, daemon, run_id, "looks as new does"))
    (out / "gate").write_text("open")
    daemon.wait(run_id)

    [task] = daemon.run(run_id)["tasks"]
    assert (task["result"], task["try_number"]) == ("open new", 1)
    assert task["interruptions"] == 0


def test_a_daemon_that_is_stopped_lets_its_triggers_clean_up_and_the_next_one_hosts_them(
    killed_daemon, out
):
    daemon = killed_daemon
    save(daemon, "late")
    run_id = daemon.trigger("moves", {"folder": str(out)})
    eventually(partial(has_printed, daemon, run_id, "looks as late does"))
    assert daemon.stop() == 0
    assert (out / "gate-cleanups").read_text().split() == ["shutdown"]

    daemon.start()
    assert is_waiting(daemon, run_id, "waits")
    (out / "gate").write_text("open")
    daemon.wait(run_id)

    [task] = daemon.run(run_id)["tasks"]
    assert (task["result"], task["try_number"], task["interruptions"]) == ("open late", 1, 0)
    cleanups = out / "gate-cleanups"
    eventually(lambda: cleanups.read_text().split() == ["shutdown", "finished"])


@pytest.mark.nightly
@pytest.mark.parametrize(
    "strike",
    [
        pytest.param("nothing", marks=pytest.mark.nightly),
        pytest.param("daemon", marks=pytest.mark.nightly),
        "everything",
    ],
)
def test_a_trigger_ends_its_task_with_a_list_that_others_expand_over(killed_daemon, out, strike):
    daemon = killed_daemon
    save(daemon, "old")
    run_id = daemon.trigger("lists", {"folder": str(out)})
    eventually(partial(is_waiting, daemon, run_id, "starts"))
    if strike != "nothing":
        daemon.kill(whole_tree=strike == "everything")
        daemon.start()
    (out / "list").write_text("a,b,c")
    daemon.wait(run_id)

    assert results(daemon, run_id, "starts") == [["a", "b", "c"]]
    assert sorted(results(daemon, run_id, "double")) == ["aa", "bb", "cc"]


@pytest.mark.parametrize(
    "strike", ["nothing", pytest.param("everything", marks=pytest.mark.nightly)]
)
def test_mapped_tasks_wait_straight_from_their_start_each_for_its_own(killed_daemon, out, strike):
    daemon = killed_daemon
    save(daemon, "old")
    run_id = daemon.trigger("wide", {"folder": str(out)})
    eventually(partial(is_waiting, daemon, run_id, "each"))
    assert len(results(daemon, run_id, "each")) == 20
    if strike == "everything":
        daemon.kill(whole_tree=True)
        daemon.start()
    (out / "gate").write_text("open")
    daemon.wait(run_id)

    assert results(daemon, run_id, "each") == ["open old"] * 20


@pytest.mark.nightly
def test_an_upgraded_package_is_what_waits_and_what_begins_have_soon(
    killed_daemon, site_packages, out
):
    daemon, path = killed_daemon, out / "gate"
    site_packages.install("bells", "1.0", BELLS)
    daemon.add("bells_ring.py", USES_PACKAGE)
    waits = daemon.trigger("bells_ring", {"path": str(path)})
    eventually(partial(is_waiting, daemon, waits, "rings"))
    eventually(lambda: results(daemon, waits, "listens") == [1])

    site_packages.install("bells", "2.0", NEW_BELLS)
    log = daemon.log_size
    eventually(lambda: daemon.log_from(log).count("the next one has the new packages") == 2)
    path.write_text("")
    daemon.wait(waits)

    def has_the_new_package() -> bool:
        run_id = daemon.trigger("bells_ring", {"path": str(path)})
        daemon.wait(run_id)
        tried = {task["try_number"] for task in daemon.run(run_id)["tasks"]}
        assert tried == {1}
        assert results(daemon, run_id, "listens") == [2]
        return results(daemon, run_id, "rings") == [[2, 2]]

    assert results(daemon, waits, "rings")[0][0] == 2, "its trigger went on in the new code"
    eventually(has_the_new_package)  # a worker looks as often as a host
