"""Versions of a DAG while its runs go on: each keeps its code, and lost code returns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.daemon import DaemonProcess, eventually, put, task_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

EDITS = 20

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
def edited(folder: str = "", count: int = 0) -> None:
    which(collect(folder, count))
"""


@pytest.fixture
def dags(tmp_path):
    return tmp_path / "dags"


def changed(daemon: DaemonProcess, before: str) -> None:
    eventually(lambda: daemon.version("edited") != before)


def lines_in(path: Path, count: int) -> None:
    eventually(lambda: len(path.read_text().splitlines()) >= count)


def test_a_run_that_is_edited_twenty_times_meanwhile_ends_on_its_own_version(tmp_path, dags):
    count, cleanups, begun = (tmp_path / name for name in ("count", "cleanups", "begun"))
    put(count, "0")
    cleanups.touch()
    begun.touch()
    put(dags / "edited.py", EDITED.format(version=0))
    with DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1")) as daemon:
        long = daemon.trigger("edited", {"folder": str(tmp_path), "count": 2 * EDITS})
        lines_in(begun, 1)
        for number in range(1, EDITS + 1):
            put(count, str(2 * number - 1))
            before = daemon.version("edited")
            put(dags / "edited.py", EDITED.format(version=number))
            changed(daemon, before)
            lines_in(cleanups, number)
            lines_in(begun, number + 1)  # one that has not begun has nothing to clean up
            if number % 5 == 0:
                short = daemon.trigger("edited")
                assert daemon.wait(short)["state"] == "success"
                assert task_of(daemon, short, "which")["result"] == [number]
        put(count, str(2 * EDITS))
        ended = daemon.wait(long)
        assert ended["state"] == "success"
        assert task_of(daemon, long, "which")["result"] == [0, *range(2 * EDITS)]
    said = cleanups.read_text().splitlines()
    assert said[:EDITS] == [f"{number} reassigned" for number in range(EDITS)]


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


def test_code_that_is_lost_while_a_run_goes_on_comes_back_from_the_database(tmp_path, dags):
    put(dags / "gone.py", GONE)
    with DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1")) as daemon:
        run_id = daemon.trigger("gone", {"folder": str(tmp_path)})
        eventually(lambda: daemon.run(run_id)["counts"].get("deferred"))
        code = tmp_path / "home" / "code"
        version = daemon.version("gone")
        shutil.rmtree(code / version)
        (tmp_path / "gate").touch()
        assert daemon.wait(run_id)["state"] == "success"
        assert task_of(daemon, run_id, "second")["result"] == 7
        assert task_of(daemon, run_id, "second")["try_number"] == 1
        assert (code / version / "gone.py").read_text() == GONE
        assert "code that was missing is restored" in daemon.log.read_text()


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


def test_a_module_that_is_lost_from_a_version_comes_back_for_the_next_try(tmp_path, dags):
    put(dags / "helper.py", "ANSWER = 42")
    put(dags / "helped.py", HELPED)
    with DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1")) as daemon:
        version = eventually(lambda: daemon.version("helped"))
        helper = tmp_path / "home" / "code" / version / "helper.py"
        helper.unlink()
        run_id = daemon.trigger("helped")
        assert daemon.wait(run_id, 60.0)["state"] == "success"
        assert task_of(daemon, run_id, "tell")["result"] == 42
        assert helper.read_text() == "ANSWER = 42"


def test_versions_that_nothing_refers_to_are_cleaned_away_with_their_code(tmp_path, dags):
    put(dags / "edited.py", EDITED.format(version=0))
    daemon = DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1"))
    daemon.environment = {**os.environ, "AIOFLOW_RETENTION__VERSIONS_DAYS": "0.000001"}
    with daemon:
        kept = daemon.wait(daemon.trigger("edited"))["version"]
        for number in range(1, 4):
            before = daemon.version("edited")
            put(dags / "edited.py", EDITED.format(version=number))
            changed(daemon, before)
        old = tmp_path / "home" / "code"
        for folder in old.iterdir():
            os.utime(folder, (0, 0))
        newest = daemon.version("edited")
        cleaned = daemon.request("POST", "/api/v1/db/clean", {})[1]
        assert cleaned["versions"] == 2
        assert {folder.name for folder in old.iterdir()} == {kept, newest}
        put(dags / "edited.py", EDITED.format(version=1))  # it was deleted, and comes back
        eventually(lambda: daemon.version("edited") != newest)
        assert daemon.wait(daemon.trigger("edited"))["state"] == "success"


def test_a_dag_whose_file_is_gone_is_deleted_with_its_ended_runs(tmp_path, dags):
    put(dags / "edited.py", EDITED.format(version=0))
    command = (sys.executable, "-m", "aioflow", "dags", "delete", "edited", "--json")
    home = ("--home", str(tmp_path / "home"))

    def delete() -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *home], capture_output=True, text=True, check=False)

    with DaemonProcess(tmp_path / "home", dags, flags=("--cpu-slots", "1")) as daemon:
        put(tmp_path / "count", "0")
        for _ in range(3):
            daemon.wait(daemon.trigger("edited"))
        live = daemon.trigger("edited", {"folder": str(tmp_path), "count": 1})
        present = delete()
        assert present.returncode == 1
        assert "edited.py" in present.stderr
        (dags / "edited.py").unlink()

        def refused() -> bool:
            return "go on" in delete().stderr

        eventually(refused)
        put(tmp_path / "count", "1")
        assert daemon.wait(live)["state"] == "success"
        deleted = delete()
        assert json.loads(deleted.stdout) == {"dag_id": "edited", "runs": 4}
        assert daemon.get("/api/v1/runs")[1] == []

        def is_empty() -> bool:
            with daemon.database() as database:
                counts = [
                    database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                    for table in ("run", "task", "dag", "deletion")
                ]
                return counts == [0, 0, 0, 0]

        eventually(is_empty, 30.0)
