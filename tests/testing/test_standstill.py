"""Reports of a simulation that takes real time, and no report otherwise."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from typing import Any

import anyio.to_thread
import pytest

from aioflow import dag, task
from aioflow.author.dag import forget_registered
from aioflow.testing import BEGINS_AT, Sim, fake_time
from aioflow.testing.fake_time import Standstill


@pytest.fixture(autouse=True)
def _told_soon(monkeypatch):
    forget_registered()
    monkeypatch.setattr(fake_time, "REPORT_AFTER_SECONDS", 0.2)


class Reports(list[str]):
    """Collects the reports, and releases user code once a report names it.

    On a busy machine, earlier reports may name other code.
    """

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self.came = threading.Event()
        self._awaited = awaited

    def take(self, text: str) -> None:
        if self._awaited in text:
            self.append(text)
            self.came.set()


async def test_a_body_that_computes_is_named_with_its_line():
    reports = Reports("a thread in computes() at")

    @task
    def computes() -> None:
        reports.came.wait(60)

    @dag
    def busy() -> None:
        computes()

    with Sim(on_standstill=reports.take) as sim:
        await sim.start(busy)

    assert reports[0].startswith("at 2026-01-01 00:00:00 the simulation has been blocked for")
    assert f"s of real time and waits for:\n  - a thread in computes() at {__file__}:" in reports[0]


async def test_a_thread_of_a_coroutine_is_named_with_its_line():
    reports = Reports("a thread in blocks() at")

    def blocks() -> None:
        reports.came.wait(60)

    @task
    async def asks() -> None:
        await anyio.to_thread.run_sync(blocks)

    @dag
    def busy() -> None:
        asks()

    with Sim(on_standstill=reports.take) as sim:
        await sim.start(busy)

    assert f"a thread in blocks() at {__file__}:" in reports[0]


async def test_a_coroutine_that_blocks_the_loop_is_named_with_its_line():
    reports = Reports("the event loop in blocks() at")

    @task
    async def blocks() -> None:
        reports.came.wait(60)  # like a driver that does not use asyncio

    @dag
    def busy() -> None:
        blocks()

    with Sim(on_standstill=reports.take) as sim:
        await sim.start(busy)

    assert f"the event loop in blocks() at {__file__}:" in reports[0]


async def test_a_silent_socket_that_slows_down_time_is_named():
    reports = Reports("word from the ")

    @task
    async def listens() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ours, theirs:
            while not reports:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(60):
                        await asyncio.get_running_loop().sock_recv(ours, 1)

    @dag
    def slow() -> None:
        listens()

    with Sim(on_standstill=reports.take) as sim:
        await (await sim.start(slow)).finished()

    assert reports[0].endswith("at each step of time")


class _Loop:
    """A loop as a report sees it: its time, and the real seconds it has waited in vain."""

    ident, is_selecting = threading.get_ident(), False
    working: frozenset[int] = frozenset()

    def __init__(self, seconds: float, vain_seconds: float) -> None:
        self.vain_seconds = vain_seconds
        self._seconds = seconds

    def time(self) -> float:
        return self._seconds


@pytest.mark.parametrize(
    ("moved_to", "vain_seconds", "says"), [(0, 0, True), (1, 4, False), (1, 6, True)]
)
def test_a_simulation_that_is_merely_long_says_nothing(moved_to, vain_seconds, says):
    reports: list[str] = []
    loop: Any = _Loop(moved_to, vain_seconds)
    watched = Standstill(loop, lambda: BEGINS_AT, reports.append)

    watched._report((0.0, 0.0), 10.0)

    assert len(reports) == says


TRIED = """
import threading
import pytest
from typing import Any
from aioflow import dag, task
from aioflow.testing import fake_time

fake_time.REPORT_AFTER_SECONDS = 0.2

@task
def computes() -> None:
    threading.Event().wait(1)

@dag
def busy() -> None:
    computes()

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_busy(sim, anyio_backend):
    await sim.start(busy)
"""


@pytest.mark.process
def test_the_fixture_writes_to_the_terminal_while_pytest_captures(tmp_path):
    (tmp_path / "test_busy.py").write_text(TRIED)
    plugins = ("-p", "anyio", "-p", "aioflow.pytest_plugin")
    played = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "1 passed" in played.stdout, played.stdout
    assert (
        "test_busy.py::test_busy[asyncio]: at 2026-01-01 00:00:00 the simulation has"
        in played.stderr
    )
