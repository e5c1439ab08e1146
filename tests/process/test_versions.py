"""Versions of a DAG with active runs: each run retains its code, and lost code is restored."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from benchmarks.daemon import DaemonProcess, eventually, put, task_of
from tests.commands import Done, run
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

EDITED = """
import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from aioflow import Trigger, TriggerEvent, dag, stream, task

VERSION = {version}

@dataclass
class Lines(Trigger[int]):
    folder: str

    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        with (Path(self.folder) / "begun").open("a") as file:
            file.write(f"{{VERSION}}\\n")
        seen = 0 if self.last is None else self.last.payload + 1
        while True:
            for number in range(seen, int((Path(self.folder) / "count").read_text())):
                yield TriggerEvent(number, key=str(number))
                seen = number + 1
            await asyncio.sleep(0.02)

    async def cleanup(self, reason: str) -> None:
        with (Path(self.folder) / "cleanups").open("a") as file:
            file.write(f"{{VERSION}} {{reason}}\\n")

@task
async def collect(folder: str, count: int) -> list[int]:
    seen: list[int] = []
    if count:
        async for event in stream(Lines(folder)):
            seen.append(event)
            if len(seen) == count:
                break
    return seen

@task
def which(seen: list[int]) -> list[int]:
    return [VERSION, *seen]

@dag
def {dag_id}(folder: str = "", count: int = 0) -> None:
    which(collect(folder, count))
"""


def edit(daemon: SharedDaemon, dag_id: str, version: int) -> None:
    """Save another version of the DAG, and wait until the daemon has it."""
    before = daemon.version(dag_id)
    daemon.add(f"{dag_id}.py", EDITED.format(dag_id=dag_id, version=version))
    eventually(lambda: daemon.version(dag_id) != before)


def lines_in(path: Path, count: int) -> None:
    eventually(lambda: len(path.read_text().splitlines()) >= count)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("edits", "checked_each"), [(4, 2), pytest.param(20, 5, marks=pytest.mark.nightly)]
)
def test_a_run_that_is_edited_again_and_again_meanwhile_ends_on_its_own_version(
    shared_daemon, tmp_path, edits, checked_each
):
    daemon, dag_id = shared_daemon, f"edited_{edits}_times"
    count, cleanups, begun = (tmp_path / name for name in ("count", "cleanups", "begun"))
    put(count, "0")
    cleanups.touch()
    begun.touch()
    edit(daemon, dag_id, 0)
    long = daemon.trigger(dag_id, {"folder": str(tmp_path), "count": 2 * edits})
    lines_in(begun, 1)
    for number in range(1, edits + 1):
        put(count, str(2 * number - 1))
        edit(daemon, dag_id, number)
        lines_in(cleanups, number)
        lines_in(begun, number + 1)  # one that has not started has nothing to clean up
        if number % checked_each == 0:
            short = daemon.trigger(dag_id)
            assert daemon.wait(short)["state"] == "success"
            assert task_of(daemon, short, "which")["result"] == [number]
    put(count, str(2 * edits))
    ended = daemon.wait(long)
    assert ended["state"] == "success"
    assert task_of(daemon, long, "which")["result"] == [0, *range(2 * edits)]
    said = cleanups.read_text().splitlines()
    assert said[:edits] == [f"{number} reassigned" for number in range(edits)]


GONE = """
from aioflow import dag, task, wait
from aioflow_triggers.files import FileTrigger

@task
async def first(folder: str) -> None:
    await wait(FileTrigger(path=f"{folder}/gate", poll_seconds=0.1, stable=0))

@task
def second(done: object) -> int:
    return 7

@dag
def gone(folder: str = "") -> None:
    second(first(folder))
"""


def test_code_that_is_lost_while_a_run_is_active_is_restored_from_the_database(
    shared_daemon, tmp_path
):
    daemon, logged = shared_daemon, shared_daemon.log_size
    daemon.add("gone.py", GONE)
    run_id = daemon.trigger("gone", {"folder": str(tmp_path)})
    eventually(lambda: daemon.run(run_id)["counts"].get("deferred"))
    code = daemon.home / "code"
    version = daemon.version("gone")
    shutil.rmtree(code / version)
    (tmp_path / "gate").touch()
    assert daemon.wait(run_id)["state"] == "success"
    assert task_of(daemon, run_id, "second")["result"] == 7
    assert task_of(daemon, run_id, "second")["try_number"] == 1
    assert (code / version / "gone.py").read_text() == GONE
    assert "restored missing code" in daemon.log_from(logged)


HELPED = """
from aioflow import dag, task
from helper import ANSWER

@task
def tell() -> int:
    return ANSWER

@dag
def helped() -> None:
    tell()
"""


def test_a_module_that_is_lost_from_a_version_comes_back_for_the_next_try(shared_daemon):
    daemon = shared_daemon
    daemon.add("helper.py", "ANSWER = 42")
    daemon.add("helped.py", HELPED)
    version = eventually(lambda: daemon.version("helped"))
    helper = daemon.home / "code" / version / "helper.py"
    helper.unlink()
    run_id = daemon.trigger("helped")
    assert daemon.wait(run_id, 60.0)["state"] == "success"
    assert task_of(daemon, run_id, "tell")["result"] == 42
    assert helper.read_text() == "ANSWER = 42"


BESIDE = """
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from aioflow import Operator, Trigger, TriggerEvent, dag, sensor, task, wait

HERE = Path(__file__).parent
AT_ONCE = (HERE / "query.sql").read_text()

@dataclass
class Reads(Trigger[str]):
    async def run(self) -> AsyncIterator[TriggerEvent[str]]:
        yield TriggerEvent((HERE / "query.sql").read_text())

@task
def in_a_slot() -> list[str]:
    return [AT_ONCE, (HERE / "query.sql").read_text(), Path(__file__).parent.name]

@sensor
async def in_a_sensor() -> bool:
    return (Path(__file__).parent / "sql" / "deep.sql").is_file()

@task
async def in_a_coroutine(lines: list[str]) -> list[str]:
    return [*lines, (HERE / "query.sql").read_text(), await wait(Reads())]

@dag
def beside() -> None:
    in_a_coroutine(in_a_slot()).after(in_a_sensor())
"""


def test_every_worker_finds_the_files_beside_the_dag_file_of_its_version(shared_daemon):
    daemon = shared_daemon
    put(daemon.dags / "beside" / "query.sql", "select 1")
    put(daemon.dags / "beside" / "sql" / "deep.sql", "select 0")
    daemon.add("beside/etl.py", BESIDE)
    version = eventually(lambda: daemon.version("beside"))
    run_id = daemon.trigger("beside")
    assert daemon.wait(run_id, 60.0)["state"] == "success"
    lines = task_of(daemon, run_id, "in_a_coroutine")["result"]
    assert lines == ["select 1", "select 1", "beside", "select 1", "select 1"]

    put(daemon.dags / "beside" / "query.sql", "select 2")
    eventually(lambda: daemon.version("beside") != version)
    run_id = daemon.trigger("beside")
    assert daemon.wait(run_id, 60.0)["state"] == "success"
    lines = task_of(daemon, run_id, "in_a_coroutine")["result"]
    assert lines == ["select 2", "select 2", "beside", "select 2", "select 2"]


def test_a_file_beside_the_code_that_is_lost_from_a_version_comes_back_for_the_next_try(
    shared_daemon,
):
    daemon = shared_daemon
    put(daemon.dags / "lost" / "query.sql", "select 1")
    source = BESIDE.replace("def beside()", "def lost()").replace("AT_ONCE = ", "AT_ONCE = '' # ")
    put(daemon.dags / "lost" / "sql" / "deep.sql", "select 0")
    daemon.add("lost/etl.py", source)
    version = eventually(lambda: daemon.version("lost"))
    lost = daemon.home / "code" / version / "lost" / "query.sql"
    lost.unlink()
    run_id = daemon.trigger("lost")
    assert daemon.wait(run_id, 60.0)["state"] == "success"
    assert lost.read_text() == "select 1"


NAMED = """
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from aioflow import Operator, Trigger, TriggerEvent, dag, task, wait

@dataclass
class Seconds:
    step: int = 1

    def next_after(self, moment: datetime) -> datetime:
        return moment.replace(microsecond=0) + timedelta(seconds=self.step)

@dataclass
class Once(Trigger[int]):
    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        yield TriggerEvent(7, key="once")

class Defers(Operator):
    def execute(self, context: object) -> None:
        self.defer(trigger=Once(), method_name="resume")

    def resume(self, context: object, event: int) -> int:
        return event

@task
async def waits() -> int:
    return await wait(Once())

@dag(schedule=Seconds(), max_active_runs=1)
def by_own_timetable() -> None:
    Defers(task_id="defers")

@dag(schedule=Once())
def by_own_trigger() -> None:
    waits()
"""


def test_classes_of_a_file_that_is_named_like_a_standard_module_are_found(shared_daemon):
    daemon = shared_daemon
    daemon.add("sched.py", NAMED)
    try:
        for dag_id, task_id in (("by_own_timetable", "defers"), ("by_own_trigger", "waits")):
            found = eventually(partial(first_run, daemon, dag_id))
            assert daemon.wait(found, 60.0)["state"] == "success"
            assert task_of(daemon, found, task_id)["result"] == 7
    finally:
        (daemon.dags / "sched.py").unlink()


def first_run(daemon: DaemonProcess, dag_id: str) -> str:
    runs = daemon.items(f"/api/v1/runs?dag={dag_id}")
    return str(runs[-1]["run_id"]) if runs else ""


@pytest.mark.nightly
def test_versions_that_nothing_refers_to_are_cleaned_away_with_their_code(tmp_path):
    daemon = SharedDaemon(
        tmp_path,
        flags=("--cpu-slots", "1"),
        environment={"AIOFLOW_RETENTION__VERSIONS_DAYS": "0.000001"},
    )
    daemon.add("edited.py", EDITED.format(dag_id="edited", version=0))
    with daemon:
        kept = daemon.wait(daemon.trigger("edited"))["version"]
        for number in range(1, 4):
            edit(daemon, "edited", number)
        old = daemon.home / "code"
        for folder in old.iterdir():
            os.utime(folder, (0, 0))
        newest = daemon.version("edited")
        cleaned = daemon.request("POST", "/api/v1/db/clean", {})[1]
        assert cleaned["versions"] == 2
        assert {folder.name for folder in old.iterdir()} == {kept, newest}
        edit(daemon, "edited", 1)  # it was deleted, and is restored
        assert daemon.wait(daemon.trigger("edited"))["state"] == "success"


def rows_of(daemon: DaemonProcess, dag_id: str) -> list[int]:
    """Return the row count of each table that might still have rows of a DAG."""
    with daemon.database() as database:
        return [
            database.execute(question, (dag_id,)).fetchone()[0]
            for question in (
                "SELECT count(*) FROM run WHERE dag_id = ?",
                "SELECT count(*) FROM task JOIN run USING (run_no) WHERE dag_id = ?",
                "SELECT count(*) FROM dag WHERE dag_id = ?",
            )
        ]


def test_a_dag_whose_file_is_gone_is_deleted_with_its_ended_runs(shared_daemon, tmp_path):
    daemon = shared_daemon

    def delete() -> Done:
        return run("dags", "delete", "unwanted", "--json", home=daemon.home)

    def tasks() -> int:
        with daemon.database() as database:
            found: int = database.execute("SELECT count(*) FROM task").fetchone()[0]
        return found

    put(tmp_path / "count", "0")
    tasks_before = tasks()
    edit(daemon, "unwanted", 0)
    for _ in range(3):
        daemon.wait(daemon.trigger("unwanted"))
    live = daemon.trigger("unwanted", {"folder": str(tmp_path), "count": 1})
    present = delete()
    assert present.status == 1
    assert "unwanted.py" in present.err
    (daemon.dags / "unwanted.py").unlink()
    eventually(lambda: "active runs" in delete().err)
    put(tmp_path / "count", "1")
    assert daemon.wait(live)["state"] == "success"
    assert min(rows_of(daemon, "unwanted")) > 0
    deleted = delete()
    assert deleted.json == {"dag_id": "unwanted", "runs": 4}

    def is_empty() -> bool:
        with daemon.database() as database:
            [deletions] = database.execute("SELECT count(*) FROM deletion").fetchone()
        return [*rows_of(daemon, "unwanted"), deletions] == [0, 0, 0, 0]

    eventually(is_empty, 30.0)
    assert tasks() == tasks_before
    assert not [run for run in daemon.items("/api/v1/runs") if run["dag_id"] == "unwanted"]


MENDED = """
from aioflow import Retry, dag, task

@task
async def first() -> str:
    return "{word}"

@task(retry=Retry(tries=1))
def second(word: str) -> str:
    if {fails}:
        raise ValueError("not mended yet")
    return word + " {word}"

@task(retry=Retry(tries=1))
async def third(word: str) -> str:
    return word + " {word}"

@dag
def mended() -> None:
    third(second(first()))
"""


def test_a_cleared_run_runs_the_old_code_and_with_latest_the_mended_one(shared_daemon):
    daemon = shared_daemon
    daemon.add("mended.py", MENDED.format(word="old", fails=True))
    run_id = daemon.trigger("mended", run_id="mend-me")
    assert daemon.wait(run_id)["state"] == "failed"
    old = daemon.version("mended")
    daemon.add("mended.py", MENDED.format(word="new", fails=False))
    eventually(lambda: daemon.version("mended") != old)
    new = daemon.version("mended")

    plain = run("runs", "clear", run_id, "--failed", home=daemon.home)
    assert daemon.wait(run_id)["state"] == "failed"
    shown = daemon.run(run_id)["version"]
    words = ("runs", "clear", run_id, "--failed", "--latest", "--json")
    latest = run(*words, home=daemon.home).json
    assert daemon.wait(run_id)["state"] == "success"

    assert plain.out.splitlines()[1:] == [
        f"it runs version {old[:12]}, not the newest, {new[:12]}; --latest moves the run to that"
    ]
    assert shown == old
    assert (latest["version"], latest["newest_version"]) == (new, new)
    assert daemon.run(run_id)["version"] == new
    assert task_of(daemon, run_id, "first")["result"] == "old"  # it had ended
    assert task_of(daemon, run_id, "third")["result"] == "old new new"

    daemon.add("mended.py", MENDED.format(word="new", fails=False).replace("third", "fourth"))
    eventually(lambda: daemon.version("mended") != new)
    refused = run(*words, home=daemon.home)
    assert refused.status == 1
    assert "task 'third' is gone; task 'fourth' is new" in refused.err
    assert refused.err.rstrip().endswith("[request.version_differs]")


def test_a_running_coroutine_that_is_cleared_continues_in_the_fixed_code(shared_daemon, tmp_path):
    daemon = shared_daemon
    code = """
import asyncio
from aioflow import dag, task

@task
async def lasts(is_long: bool = {is_long}) -> str:
    print("{word} code", flush=True)
    await asyncio.sleep(600 if is_long else 0)
    return "{word}"

@dag
def stuck() -> None:
    lasts()
"""
    daemon.add("stuck.py", code.format(word="old", is_long=True))
    run_id = daemon.trigger("stuck")
    eventually(lambda: daemon.run(run_id)["counts"].get("running"))
    old = daemon.version("stuck")
    daemon.add("stuck.py", code.format(word="new", is_long=False))
    eventually(lambda: daemon.version("stuck") != old)

    run("runs", "clear", run_id, "--latest", home=daemon.home)

    assert daemon.wait(run_id)["state"] == "success"
    assert task_of(daemon, run_id, "lasts")["result"] == "new"
