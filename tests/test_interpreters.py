"""The interpreters in the settings: what each of them is, and why some are unusable."""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import asynccontextmanager, contextmanager

import anyio
import pytest

from aioflow import processes
from aioflow.clock import SystemClock
from aioflow.errors import InterpreterUnusable
from aioflow.processes import Children, Launch, interpreters
from aioflow.processes.environment import foreign_environment
from aioflow.processes.interpreters import Interpreters
from aioflow.worker.identity import protocol_digest
from tests.executors.processes import program, running, until

pytestmark = pytest.mark.process

GOOD = {
    "python": [3, 13, 0],
    "root": "/lab",
    "release": "1.2",
    "distribution": "aioflow-worker",
    "protocol": protocol_digest(),
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(interpreters, "LOOK_SECONDS", 0.02)


def put(path, text):
    """Write a program that stands for an interpreter, by a rename as an installer does."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.chmod(0o755)
    new.rename(path)


def says(**said):
    """Return a program that reports these facts about itself to the probe."""
    text = shlex.quote(json.dumps(said))
    return f"#!/bin/sh\necho noise\nprintf '%s%s' \"$3\" {text}\n"


class Node:
    """The interpreters of a daemon, the first of which is ``lab``."""

    def __init__(self, home):
        self.path = home / "python"
        self.paths = {"lab": str(self.path)}
        self.reread = None
        self.changes = []
        self.children = Children(home / "home", program=program("os._exit(0)"))
        self.known = Interpreters(
            self.children, SystemClock(), self.paths, reread=lambda: self.reread
        )
        self.known.listen(self.changes.append)

    async def find(self, name="lab"):
        with anyio.fail_after(60):
            return await self.known.find(name)

    async def problem(self, name="lab"):
        with pytest.raises(InterpreterUnusable) as caught:
            await self.find(name)
        return str(caught.value)


@asynccontextmanager
async def node(tmp_path, source=None):
    it = Node(tmp_path)
    if source is not None:
        put(it.path, source)
    async with running(it.children, it.known):
        yield it


async def test_one_that_fits_is_started_with_the_root_of_its_environment(tmp_path):
    async with node(tmp_path, says(**GOOD)) as n:
        launch = await n.find()

    assert launch == Launch("lab", 1, str(n.path), "/lab")
    assert launch.program == (str(n.path), "-P", "-m", "aioflow.worker")
    assert n.changes == ["lab"]


@contextmanager
def unprivileged():
    """Run as an unprivileged user if this user is root, because root may search every folder."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


async def test_a_folder_that_must_not_be_searched_breaks_only_its_interpreter(tmp_path):
    closed = tmp_path / "closed" / "bin"
    closed.mkdir(parents=True)
    async with node(tmp_path, says(**GOOD)) as n:
        n.known._paths["lab"] = str(closed / "python")
        put(closed / "python", says(**GOOD))
        closed.parent.chmod(0)
        try:
            with unprivileged():
                problem = await n.problem()
        finally:
            closed.parent.chmod(0o700)

    assert "the daemon's user cannot read it (Permission denied)" in problem


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        pytest.param(None, "there is no such file", id="missing"),
        pytest.param("", "Exec format error", id="no-program"),
        pytest.param("#!/no/such/shell\n", "No such file or directory", id="no-shell"),
        pytest.param("#!/bin/sh\necho I am lost; exit 3", "no Python, or a damaged one: I am lost"),
        pytest.param("#!/bin/sh\nexit 3", "exit status 3", id="silent"),
        pytest.param("#!/bin/sh\necho ${3}[]", "a damaged one", id="nonsense"),
        pytest.param(
            says(python=[3, 8, 18]), "it is Python 3.8.18, and aioflow needs 3.11", id="old"
        ),
        pytest.param(
            says(python=[3, 12, 1], error="ModuleNotFoundError: No module named 'aioflow'"),
            r"No module named 'aioflow'\); run: .*/python -m pip install aioflow-worker==",
            id="without-aioflow",
        ),
        pytest.param(
            says(**GOOD | {"protocol": "other"}),
            "it has aioflow-worker 1.2, whose messages this daemon of release .* does not",
            id="other-messages",
        ),
    ],
)
async def test_an_unusable_one_says_why_and_what_to_do(tmp_path, source, problem):
    async with node(tmp_path, source) as n:
        assert re.search(problem, await n.problem())
        # The failed start of the other interpreter does not prevent starts of our own.
        async with n.children.child("slot", on_reports=lambda _: None, on_output=_ignore) as child:
            await child.ended()
    assert n.known.launch("lab") is None
    assert n.changes == ["lab"]


async def _ignore(_):
    pass


@pytest.mark.parametrize("source", ["sleep 1000", "yes"], ids=["silent", "endless-output"])
async def test_one_that_does_not_answer_is_killed(tmp_path, monkeypatch, source):
    monkeypatch.setattr(interpreters, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(processes, "OUTPUT_GRACE_SECONDS", 0.1)
    async with node(tmp_path, f"#!/bin/sh\n{source}\n") as n:
        assert "did not answer within 0.2 s" in await n.problem()


async def test_one_that_every_user_can_write_is_not_run(tmp_path):
    async with node(tmp_path) as n:
        put(n.path, f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        n.path.chmod(0o777)
        assert "chmod o-w" in await n.problem()
    assert not (tmp_path / "ran").exists()


async def test_an_unknown_name_says_which_are_known(tmp_path):
    async with node(tmp_path) as n:
        problem = await n.problem("labb")
    assert "python 'labb' (not in the settings) cannot be used: choose one of lab; or" in problem


async def test_a_mended_one_is_usable_again_and_is_another_one(tmp_path):
    async with node(tmp_path) as n:
        await n.problem()
        put(n.path, says(**GOOD))
        with anyio.fail_after(60):
            launch = await n.known.wait_until_usable("lab")
        assert launch.generation == n.known.generation("lab") == 2
        put(n.path, "#!/bin/sh\nexit 3")
        await until(lambda: n.known.complaint("lab"))
        assert n.known.generation("lab") == 3
        assert n.changes == ["lab"] * 3


async def test_an_unusable_one_is_tried_again_though_its_files_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(interpreters, "RETRY_SECONDS", 0.05)
    fail = f"#!/bin/sh\ntest -e {tmp_path}/mended || exit 3\n"
    async with node(tmp_path, fail + says(**GOOD).removeprefix("#!/bin/sh\n")) as n:
        await n.problem()
        (tmp_path / "mended").touch()
        with anyio.fail_after(60):
            await n.known.wait_until_usable("lab")


async def test_a_package_installed_beside_it_makes_it_another_one(tmp_path):
    place = tmp_path / "lib" / "python3.13" / "site-packages"
    place.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    it = Node(tmp_path / "bin")
    put(it.path, says(**GOOD))
    async with running(it.children, it.known):
        await it.find()
        (place / "new_package.dist-info").mkdir()
        await until(lambda: it.known.generation("lab") == 2)


async def test_another_path_in_the_settings_is_another_one(tmp_path):
    async with node(tmp_path, says(**GOOD)) as n:
        await n.find()
        other = tmp_path / "other"
        put(other, says(**GOOD | {"root": "/other"}))
        n.reread = {"lab": str(other), "new": str(n.path)}
        await until(lambda: (n.known.launch("lab") or Launch("", 0, "")).root == "/other")
        assert n.known.generation("lab") == 2
        assert (await n.find("new")).path == str(n.path)
        n.reread = {}
        await until(lambda: n.known.complaint("lab"))
        assert "(not in the settings) cannot be used: add [pythons.N" in n.known.complaint("lab")


async def test_one_whose_children_die_before_they_answer_is_unusable_for_a_while(
    tmp_path, monkeypatch
):
    async with node(tmp_path, says(**GOOD)) as n:
        for _ in range(interpreters.SILENT_DEATHS_LIMIT - 1):
            n.known.died_silently(await n.find(), "exit status 1: No module named 'x'")
        assert (await n.find()).generation == 1  # it may have been killed from outside
        n.known.died_silently(await n.find(), "exit status 1: No module named 'x'")
        assert "its processes die when they start: exit status 1" in await n.problem()
        monkeypatch.setattr(interpreters, "RETRY_SECONDS", 0.0)
        n.known._states["lab"].due_us = 0
        with anyio.fail_after(60):
            await n.known.wait_until_usable("lab")


async def test_an_answer_clears_earlier_deaths(tmp_path):
    async with node(tmp_path, says(**GOOD)) as n:
        launch = await n.find()
        for _ in range(2 * interpreters.SILENT_DEATHS_LIMIT):
            n.known.died_silently(launch, "killed")
            n.known.answered(await n.find())
        assert await n.find() == launch


def test_children_of_another_interpreter_find_its_packages_and_programs_only():
    ours = {
        "PATH": "/bin",
        "PYTHONPATH": "/ours",
        "PYTHONHOME": "/x",
        "VIRTUAL_ENV": "/v",
        "A": "1",
    }

    assert foreign_environment(ours, "/lab/bin/python", "/lab") == {
        "PATH": "/lab/bin:/bin",
        "VIRTUAL_ENV": "/lab",
        "A": "1",
    }
    assert foreign_environment(ours, "/usr/bin/python3", "", ("PYTHONPATH",)) == {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": "/ours",
        "A": "1",
    }
