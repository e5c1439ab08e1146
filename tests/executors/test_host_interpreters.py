"""Hosts of other interpreters: up once they respond, started few at a time, replaced on changes."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager

import anyio
import pytest

from aioflow.clock import SystemClock
from aioflow.executors import host_pool, shared_host
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.host_pool import HostPool
from aioflow.processes import Children, interpreters
from aioflow.processes.interpreters import Interpreters
from aioflow.protocol.inputs import HostLost, HostUp
from aioflow.telemetry.task_log import TaskLog
from tests.executors.processes import PRELUDE, program, running, until
from tests.executors.test_slot_interpreters import python
from tests.test_interpreters import put

pytestmark = pytest.mark.process

HOST = """
try:
    while True:
        for order in link.receive():
            if isinstance(order, Ping):
                link.send([Pong()])
except LinkClosed:
    pass
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(interpreters, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(host_pool, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(host_pool, "_DELAY_SECONDS", 0.02)
    monkeypatch.setattr(shared_host, "_FIRST_WORK_US", 0)


class Node:
    def __init__(self, home, idle_seconds, most):
        self.reports = []
        self.source = home / "host.py"
        self.source.write_text(PRELUDE + HOST)
        self.path = home / "python"
        self.tasklog = TaskLog(home / "logs", SystemClock())
        self.children = Children(home, program=program(HOST))
        clock = SystemClock()
        paths = {"lab": str(self.path), "gone": str(home / "gone")}
        self.known = Interpreters(self.children, clock, paths)
        context = ExecutorContext(
            children=self.children,
            code=home / "code",
            results=home / "results",
            tasklog=self.tasklog,
            report=self.reports.extend,
            clock=clock,
            on_query=lambda child, ask: None,
            interpreters=self.known,
        )
        self.pool = HostPool(
            context, interpreter_idle_seconds=idle_seconds, max_interpreter_hosts=most
        )
        self.known.listen(self.pool.interpreter_changed)

    def runs(self, child=None, root="/lab"):
        put(self.path, python(child or f"exec {sys.executable} {self.source}", root))

    def of(self, kind, role):
        return [one for one in self.reports if isinstance(one, kind) and one.role == role]

    async def up(self, role, times=1):
        await until(lambda: len(self.of(HostUp, role)) == times)


@asynccontextmanager
async def node(tmp_path, child=None, *, idle_seconds=600.0, most=8):
    node = Node(tmp_path, idle_seconds, most)
    node.runs(child)
    async with running(node.children, node.known, node.tasklog, node.pool):
        yield node


async def test_it_starts_when_requested_and_ends_when_idle(tmp_path):
    async with node(tmp_path, idle_seconds=0.1) as n:
        assert not n.of(HostUp, "async@lab")
        n.pool.start("async@lab")
        n.pool.start("async@lab")
        await until(lambda: n.of(HostLost, "async@lab"))
        assert len(n.of(HostUp, "async@lab")) == 1
        assert n.of(HostLost, "async@lab")[0].was_dismissed
        await until(lambda: len(n.pool.loads()) == 3)
        n.pool.start("async@lab")
        await n.up("async@lab", 2)


async def test_one_that_never_answers_is_not_up_and_comes_when_its_interpreter_is_mended(tmp_path):
    async with node(tmp_path, "exit 1") as n:
        for role in ("async@lab", "triggers@lab", "async@gone"):
            n.pool.start(role)
        await until(lambda: n.known.complaint("lab"))
        assert not [one for one in n.reports if "@" in one.role]
        n.runs()
        await n.up("async@lab")
        await n.up("triggers@lab")
        assert not n.of(HostUp, "async@gone")
        assert not [one for one in n.reports if isinstance(one, HostLost)]


async def test_it_is_replaced_after_a_change_of_its_interpreter(tmp_path):
    async with node(tmp_path) as n:
        for role in ("async@lab", "triggers@lab:dag"):
            n.pool.start(role)
            await n.up(role)
        n.runs(root="/new")
        for role in ("async@lab", "triggers@lab:dag"):
            await n.up(role, 2)
            [lost] = n.of(HostLost, role)
            assert lost.was_dismissed


async def test_one_that_has_nothing_to_do_leaves_for_one_that_is_requested(tmp_path):
    async with node(tmp_path, most=2) as n:
        for role in ("async@lab", "triggers@lab", "quarantine@lab"):
            n.pool.start(role)
        await n.up("quarantine@lab")
        assert len([one for one in n.reports if isinstance(one, HostLost)]) == 1


async def test_one_waits_while_there_are_too_many_and_all_have_work(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(shared_host, "_FIRST_WORK_US", 10**12)  # each may get its work any moment
    async with node(tmp_path, most=1) as n:
        n.pool.start("async@lab")
        await n.up("async@lab")
        n.pool.start("triggers@lab")
        with anyio.fail_after(60):
            while "pythons.max_hosts" not in caplog.text:
                await anyio.sleep(0.01)
        assert not n.of(HostUp, "triggers@lab")
        monkeypatch.setattr(shared_host, "_FIRST_WORK_US", 0)
        await n.up("triggers@lab")


@pytest.mark.parametrize("is_good", [True, False])
async def test_workers_are_requested_by_a_check_of_their_interpreter(tmp_path, is_good):
    async with node(tmp_path) as n:
        name = "lab" if is_good else "gone"
        n.pool.start(f"slot@{name}")
        await until(lambda: n.known.launch(name) or n.known.complaint(name))
        n.pool.start(f"slot@{name}")
        assert len(n.of(HostUp, f"slot@{name}")) == is_good
