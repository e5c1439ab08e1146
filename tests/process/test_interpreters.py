"""Two DAGs in one daemon with conflicting packages and, if possible, of two Python versions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchmarks.daemon import eventually as soon
from tests import cpu_budget
from tests.commands import run
from tests.daemons import SharedDaemon
from tests.environments import make_environment, put_package, site_of
from tests.packages import SitePackages

eventually = partial(soon, timeout=60.0, look_seconds=0.1)

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("interpreters"),
]

DAGS = """
import asyncio
import os
import shutil
import shutil
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import rates
from aioflow import Operator, StartTriggerArgs, Trigger, TriggerEvent, dag, sensor, task, wait
from aioflow_triggers import FileTrigger


def note(name: str) -> None:
    here = f"{sys.version_info.minor} {rates.VERSION} {Path(sys.prefix).name}"
    with open(Path(FOLDER, name), "a") as file:
        file.write(f"{here}\\n")


note("import")


@dataclass
class Hours:
    def next_after(self, moment: datetime) -> datetime | None:
        note("timetable")
        return moment.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)


@dataclass
class Sees(Trigger):
    async def run(self) -> AsyncIterator[TriggerEvent[None]]:
        note("trigger")
        yield TriggerEvent(None)


@dataclass
class Opens(Trigger):
    path: str

    async def run(self) -> AsyncIterator[TriggerEvent[None]]:
        note("waits")
        while not os.path.exists(self.path):
            await asyncio.sleep(0.02)
        note("opens")
        yield TriggerEvent(None)


class Defers(Operator):
    def execute(self, context: Any) -> None:
        self.defer(trigger=Sees(), method_name="after")

    def after(self, context: Any, event: Any = None) -> None:
        note("resumed")


class Starts(Operator):
    template_fields = ("text",)
    start_from_trigger = True
    start_trigger_args = StartTriggerArgs(trigger_cls=Sees, next_method="after")

    def __init__(self, text: str, **options: Any) -> None:
        super().__init__(**options)
        self.text = text

    def execute(self, context: Any) -> None:
        raise AssertionError("it starts deferred")

    def after(self, context: Any, event: Any = None) -> None:
        note(f"text_{self.text}")


def ended(context: dict[str, Any]) -> None:
    note("callback")


def label(number: int) -> str:
    note("label")
    return f"no. {number}"


def more(number: int) -> int:
    note("map")
    return number + 1


@task
def works() -> None:
    note("task")


@task
async def awaits(path: str) -> None:
    note("coroutine")
    await wait(Sees())
    open(path, "w").close()
    await wait(FileTrigger(path))


@sensor(poke_interval="10ms")
def looks() -> bool:
    note("sensor")
    return True


@sensor(poke_interval="10ms")
async def watches() -> bool:
    note("async_sensor")
    return True


@task
def numbers() -> list[int]:
    return [1, 2]


@task(map_label=label)
def each(number: int) -> int:
    note("child")
    return number


@task
async def waiting(path: str) -> None:
    await wait(Opens(path))
    note("woken")


@task
def staying(path: str) -> None:
    open(f"{path}.begun", "w").close()
    while not os.path.exists(path):
        time.sleep(0.02)
    import late_rates
    note("stayed")


@dag(on_success=ended, python=PYTHON)
def NAME_all(path: str) -> None:
    works()
    awaits(path)
    looks()
    watches()
    Defers(task_id="defers")
    Starts(task_id="starts", text="{{ dag_id }}")
    each.expand(number=numbers().map(more))


@dag(schedule=Hours(), python=PYTHON, catchup=False)
def NAME_hourly() -> None:
    works()


@dag(python=PYTHON)
def NAME_waits(path: str) -> None:
    waiting(path)


@dag(python=PYTHON)
def NAME_stays(path: str) -> None:
    staying(path)


@dag(python=PYTHON)
def NAME_works() -> None:
    works()
"""

KINDS = (
    "import", "task", "coroutine", "sensor", "async_sensor", "trigger", "resumed", "label", "map",
    "child", "callback", "timetable",
)  # fmt: skip

OURS = f"{sys.version_info.minor} 1.0 {Path(sys.prefix).name}"


def source(name: str, python: str, folder: Path) -> str:
    header = f'# aioflow: python = "{python}"\n' if python else ""
    text = DAGS.replace("NAME", name).replace("PYTHON", repr(python or None))
    return f"{header}FOLDER = {str(folder)!r}{text}"


class Lab:
    """A daemon with a second interpreter, and the environments for that interpreter."""

    def __init__(self, folder: Path) -> None:
        packages = SitePackages(folder)
        put_package(packages.folder, "rates", "1.0")
        self.python = make_environment(folder / "lab", "jinja2")
        put_package(site_of(self.python), "rates", "2.0")
        self.folder = folder
        self.link = folder / "current"
        self.link.symlink_to(folder / "lab")
        self.theirs = self.seen_by(self.python)
        settings = f'[pythons.lab]\npath = "{self.link}/bin/python"\n'
        settings += f'[pythons.broken]\npath = "{folder}/no/python"\n'
        settings += "[parse]\nlook_seconds = 0.5\n"
        self.daemon = SharedDaemon(
            folder,
            settings=settings,
            flags=("--cpu-slots", "2"),
            environment={"PYTHONPATH": str(packages.folder)},
        )

    def seen_by(self, python: Path) -> str:
        """Return what code reports about itself when it runs in this environment."""
        [place] = python.parent.parent.glob("lib/python3*")
        return f"{place.name.partition('.')[2]} 2.0 {python.parent.parent.name}"

    def noted(self, folder: Path, name: str) -> set[str]:
        path = folder / name
        return set(path.read_text().split("\n")) - {""} if path.exists() else set()

    def add(self, name: str, python: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.daemon.add(f"{name}.py", source(name, python, folder))

    def problem(self, file: str) -> str:
        with self.daemon.database() as database:
            question = "SELECT reason, message FROM dag_file WHERE file = ?"
            return " ".join(map(str, database.execute(question, (file,)).fetchone() or ()))


@pytest.fixture(scope="module")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.daemon.start()
    yield lab
    lab.daemon.end()


@pytest.fixture
def lab(_lab: Lab) -> Iterator[Lab]:
    _lab.daemon.lend()
    yield _lab
    _lab.daemon.clear_dags()


def both(lab: Lab, tmp_path: Path) -> tuple[Path, Path]:
    """Add a file for the other interpreter, and one for ours. Return the folders of their notes."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    lab.add("theirs", "lab", theirs)
    lab.add("ours", "", ours)
    return theirs, ours


def finish(lab: Lab, dag_id: str, **conf: object) -> None:
    run_id = lab.daemon.trigger(dag_id, conf=conf)
    ended = lab.daemon.wait(run_id)
    shown = lab.daemon.run(run_id)
    assert ended["state"] == "success", [task["error"] for task in shown["tasks"]]


def previews(lab: Lab, dag_id: str) -> bool:
    """Return whether the fire times of a custom timetable are known, so that its host is up."""
    return run("dags", "next", dag_id, home=lab.daemon.home).status == 0


def test_code_of_every_kind_runs_in_its_own_interpreter(lab, tmp_path):
    theirs, ours = both(lab, tmp_path)
    for name, folder, sees in (("theirs", theirs, lab.theirs), ("ours", ours, OURS)):
        finish(lab, f"{name}_all", path=str(folder / "gate"))
        eventually(partial(previews, lab, f"{name}_hourly"))
        eventually(partial(lab.noted, folder, "callback"))
        seen = {kind: lab.noted(folder, kind) for kind in (*KINDS, f"text_{name}_all")}
        assert seen == {kind: {sees} for kind in seen}
    assert lab.theirs != OURS


def test_a_broken_interpreter_breaks_only_its_own_files(lab, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    header = '# aioflow: python = "{}"\n'
    body = "from aioflow import dag, task\n@task\ndef t() -> None: ...\n@dag{}\ndef {}(): t()\n"
    lab.daemon.add("broken.py", header.format("broken") + body.format("", "a"))
    lab.daemon.add("unknown.py", header.format("labb") + body.format("", "b"))
    lab.daemon.add("differs.py", body.format('(python="lab")', "c"))
    (lab.daemon.dags / "team").mkdir()
    lab.daemon.add("team/aioflow.toml", 'python = "broken"')
    lab.daemon.add("team/by_folder.py", body.format("", "d"))
    lab.daemon.add("team/ours.py", header.format("") + body.format("", "e"))

    assert lab.problem("broken.py").startswith("file.python_unusable python 'broken' (")
    assert "there is no such file" in lab.problem("broken.py")
    assert "python 'labb'" in lab.problem("unknown.py")
    assert "choose one of broken, lab;" in lab.problem("unknown.py")
    assert lab.problem("differs.py").startswith("file.python_differs line ")
    assert '# aioflow: python = "lab"' in lab.problem("differs.py")
    assert lab.problem("team/by_folder.py").startswith("file.python_unusable")
    assert lab.problem("team/ours.py").startswith("None")

    checked = run("dags", "check", lab.daemon.dags / "broken.py", home=lab.daemon.home)
    assert (checked.status, "file.python_unusable" in checked.out) == (1, True)


@pytest.mark.nightly
def test_a_version_in_another_interpreter_is_another_version(lab, tmp_path):
    both(lab, tmp_path)
    was = lab.daemon.version("ours_works")
    lab.daemon.add("aioflow.toml", 'python = "lab"')
    eventually(lambda: lab.daemon.version("ours_works") != was)
    (lab.daemon.dags / "aioflow.toml").unlink()
    eventually(lambda: lab.daemon.version("ours_works") == was)


@pytest.mark.nightly
def test_after_a_kill_the_waits_of_an_interpreter_go_on_in_it(lab, tmp_path):
    theirs, _ = both(lab, tmp_path)
    gate = theirs / "gate"
    run_id = lab.daemon.trigger("theirs_waits", conf={"path": str(gate)})
    eventually(lambda: lab.noted(theirs, "waits"))

    lab.daemon.kill()
    with cpu_budget.uncharged():
        lab.daemon.start()
    gate.touch()

    assert lab.daemon.wait(run_id)["state"] == "success"
    assert lab.noted(theirs, "woken") == lab.noted(theirs, "opens") == {lab.theirs}


def hosts(lab: Lab) -> list[psutil.Process]:
    """Return the processes that run in the other environment."""
    found = []
    for process in lab.daemon.tree()[1:]:
        command = process.cmdline()
        if command and command[0].startswith(str(lab.folder)):
            found.append(process)
    return found


@pytest.mark.nightly
def test_another_path_moves_waits_and_leaves_running_tries(lab, tmp_path):
    theirs, _ = both(lab, tmp_path)
    gates = [theirs / "waits_gate", theirs / "stays_gate"]
    late = "late_rates.py"
    site = site_of(lab.python)
    (site / late).write_text("")
    ids = [
        lab.daemon.trigger(f"theirs_{kind}", conf={"path": str(gate)})
        for kind, gate in zip(("waits", "stays"), gates, strict=True)
    ]
    eventually(lambda: lab.noted(theirs, "waits") and Path(f"{gates[1]}.begun").exists())

    shutil.copytree(lab.folder / "lab", lab.folder / "second", symlinks=True)
    other = lab.folder / "second" / "bin" / "python"
    put_package(site_of(other), "rates", "3.0")
    new = lab.folder / "new"
    new.symlink_to(lab.folder / "second")
    new.rename(lab.link)
    now = lab.seen_by(other).replace(" 2.0 ", " 3.0 ")
    try:
        eventually(lambda: now in lab.noted(theirs, "waits"))
        finish(lab, "theirs_works")
        assert now in lab.noted(theirs, "task")
        for gate in gates:
            gate.touch()
        for run_id in ids:
            assert lab.daemon.wait(run_id)["state"] == "success"
        assert lab.noted(theirs, "opens") == {now}
        assert lab.noted(theirs, "stayed") == {lab.theirs}
    finally:
        new.symlink_to(lab.folder / "lab")
        new.rename(lab.link)
    eventually(partial(works_in, lab, theirs, lab.theirs))  # before another test uses the link


def works_in(lab: Lab, folder: Path, environment: str) -> bool:
    """Run a task. Return whether a task has run in this environment so far."""
    finish(lab, "theirs_works")
    return environment in lab.noted(folder, "task")


@pytest.mark.nightly
def test_tasks_wait_for_an_environment_that_lost_aioflow_and_no_try_fails(lab, tmp_path):
    both(lab, tmp_path)
    finish(lab, "theirs_works")
    site = site_of(lab.python)
    aside = lab.folder / "aside"
    (site / "aioflow").rename(aside)
    try:
        eventually(lambda: "No module named 'aioflow'" in lab.problem("theirs.py"))
        run_id = lab.daemon.trigger("theirs_works")
        why = run("runs", "why", run_id, home=lab.daemon.home)
        assert "No module named 'aioflow'" in why.out, why.out + why.err
        finish(lab, "ours_works")
    finally:
        aside.rename(site / "aioflow")
    assert lab.daemon.wait(run_id)["state"] == "success"
    [task] = lab.daemon.run(run_id)["tasks"]
    assert task["try_number"] == 1
    eventually(lambda: lab.problem("theirs.py").startswith("None"))


@pytest.mark.nightly
def test_a_host_of_an_interpreter_is_small(lab, tmp_path):
    theirs, _ = both(lab, tmp_path)
    gate = theirs / "gate"
    run_id = lab.daemon.trigger("theirs_waits", conf={"path": str(gate)})
    eventually(lambda: lab.noted(theirs, "waits"))

    sizes = [process.memory_info().rss / 2**20 for process in hosts(lab)]
    gate.touch()
    lab.daemon.wait(run_id)
    assert sizes
    assert max(sizes) <= 45, sizes
