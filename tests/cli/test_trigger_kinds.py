"""Packages with triggers are found by their entry points, hosted, and reported if broken."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess, eventually
from tests.commands import Done, run

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

GOOD = '''
from dataclasses import dataclass
from pathlib import Path
from aioflow import Trigger, TriggerEvent
from aioflow_triggers.temporal import DateTimeTrigger  # somebody else's

@dataclass
class Bell(Trigger[str]):
    """A bell that rings.

    Not at night.
    """

    note: str

    async def run(self):
        yield TriggerEvent(self.note)

@dataclass
class Plain(Trigger[int]):
    n: int = 1

class _Private(Trigger[int]): ...
'''

DAG = """
from aioflow import *

@task
async def listen() -> str:
    from bells.tower import Bell
    return await wait(Bell("ding"))

@dag
def evening():
    listen()
"""


def install(folder: Path, package: str, entry_points: str, **modules: str) -> None:
    """Put a package into a folder of packages, as an installer does."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    for name, source in modules.items():
        (folder / package / f"{name}.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[aioflow.triggers]\n{entry_points}\n")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Make packages in a folder available. Return the environment for child processes."""
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    monkeypatch.syspath_prepend(tmp_path / "site")
    return {"PYTHONPATH": path}


def named(done: Done) -> dict[str, dict[str, Any]]:
    return {plug_in["name"]: plug_in for plug_in in done.json}


def test_the_triggers_of_a_package_are_listed_beside_the_catalogue(tmp_path, environment):
    points = "bells = bells.tower\nbell = bells.tower:Bell"
    install(tmp_path / "site", "bells", points, tower=GOOD)

    done = run("triggers", "kinds", "--json", **environment)

    found = named(done)
    bell = {"class_path": "bells.tower:Bell", "summary": "A bell that rings."}
    plain = {"class_path": "bells.tower:Plain", "summary": ""}
    assert done.status == 0
    assert found["bells"]["kinds"] == [bell, plain]
    assert found["bell"]["kinds"] == [bell]
    ours = [kind["class_path"] for kind in found["temporal"]["kinds"]]
    assert "aioflow_triggers.temporal:DateTimeTrigger" in ours
    assert run("triggers", "kinds", **environment).out.split().count("bells.tower:Bell") == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param("import not_there", "not_there", id="an-import-fails"),
        pytest.param("raise SystemExit(3)", "SystemExit", id="it-exits"),
        pytest.param("import os; os._exit(3)", "exit status 3", id="it-exits-hard"),
        pytest.param("import os, signal; os.kill(os.getpid(), 11)", "SIGSEGV", id="it-crashes"),
    ],
)
def test_a_broken_plug_in_is_named_and_the_others_are_listed(
    tmp_path, environment, source, message
):
    install(tmp_path / "site", "bells", "bells = bells.tower", tower=GOOD)
    install(tmp_path / "site", "broken", "a_broken = broken.module", module=source)

    done = run("triggers", "kinds", **environment)

    assert done.status == 1
    assert "bells.tower:Bell" in done.out
    assert "a_broken (broken.module) cannot be imported" in done.err
    assert message in done.err


@pytest.mark.nightly
def test_a_daemon_says_which_plug_in_is_broken_and_hosts_the_triggers_of_the_others(
    tmp_path, environment
):
    install(tmp_path / "site", "bells", "bells = bells.tower", tower=GOOD)
    install(tmp_path / "site", "broken", "broken = broken.module", module="import not_there")
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "evening.py").write_text(DAG)
    daemon = DaemonProcess(tmp_path / "home", tmp_path / "dags")
    daemon.environment = {**os.environ, **environment}

    with daemon:
        run = daemon.trigger("evening")
        assert daemon.wait(run)["state"] == "success"
        assert daemon.run(run)["tasks"][0]["result"] == "ding"
        eventually(lambda: "a plug-in cannot be imported" in daemon.log.read_text())

    [line] = [line for line in daemon.log.read_text().splitlines() if "a plug-in cannot" in line]
    assert "broken.module" in line
    assert "not_there" in line
