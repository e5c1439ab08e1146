"""Callbacks in another interpreter wait, without counting an attempt, while it is unusable."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from aioflow import notifications
from aioflow.clock import SystemClock
from aioflow.errors import InterpreterUnusable
from aioflow.executors.executor_context import ExecutorContext
from aioflow.notifications import OutboxWorker, Pace, Targets
from aioflow.notifications.callback_process import calling
from aioflow.notifications.delivery import Job, PreparedDelivery
from aioflow.processes import Children, interpreters
from aioflow.processes.interpreters import Interpreters
from aioflow.protocol.commands import RunCallback
from aioflow.protocol.effects import DeliverOutbox
from aioflow.protocol.inputs import OutboxDelivered
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
            elif isinstance(order, RunCallback):
                link.send([CallbackReturned(order.number)])
except LinkClosed:
    pass
"""


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(interpreters, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(notifications, "_INTERPRETER_AGAIN_SECONDS", 0.02)


class Node:
    def __init__(self, home):
        self.reports = []
        self.source = home / "host.py"
        self.source.write_text(PRELUDE + HOST)
        self.path = home / "python"
        self.tasklog = TaskLog(home / "logs", SystemClock())
        self.children = Children(home, program=program(HOST))
        self.known = Interpreters(self.children, SystemClock(), {"lab": str(self.path)})
        self.context = ExecutorContext(
            children=self.children,
            code=home / "code",
            results=home / "results",
            tasklog=self.tasklog,
            report=self.reports.extend,
            clock=SystemClock(),
            on_query=lambda child, ask: None,
            interpreters=self.known,
        )

    def runs(self):
        put(self.path, python(f"exec {sys.executable} {self.source}"))


@asynccontextmanager
async def node(tmp_path, child):
    node = Node(tmp_path)
    put(node.path, python(child))
    async with running(node.children, node.known, node.tasklog):
        yield node


async def called(n, interpreter):
    """Start a process for callbacks. Return the error, or an empty text if there was none."""
    problem = ""
    try:
        async with calling(n.context, "v1", interpreter) as caller:
            assert caller.is_alive
    except* InterpreterUnusable as exc:
        found: BaseException = exc
        while isinstance(found, BaseExceptionGroup):
            [found] = found.exceptions
        problem = str(found)
    return problem


async def test_its_process_is_used_once_it_has_answered(tmp_path):
    async with node(tmp_path, "exit 1") as n:
        assert "being checked" in await called(n, "lab")
        await n.known.find("lab")
        for _ in range(interpreters.SILENT_DEATHS_LIMIT):
            assert "exit status 1" in await called(n, "lab")
            with anyio.move_on_after(20):
                await n.known._states["lab"].decided.wait()
        assert "its processes die when they start" in n.known.complaint("lab")
        n.runs()
        await n.known.wait_until_usable("lab")
        assert not await called(n, "lab")


async def test_a_callback_waits_for_its_interpreter_without_an_attempt(tmp_path):
    effect = DeliverOutbox(3, "callback", b"")
    what = {"callback": "on_success"}
    command = RunCallback(3, 7, b"")

    class Worker(OutboxWorker):
        attempts: list[int]

        async def _prepare(self, job):
            self.attempts.append(job.attempts)
            return PreparedDelivery(
                job=job, command=command, version="v1", what=what, interpreter="lab"
            )

    async with node(tmp_path, "exit 1") as n:
        unused: Any = None
        worker = Worker(
            n.context,
            unused,
            pace=Pace(processes=1),
            targets=Targets(),
            restore=unused,
            on_alert=unused,
        )
        worker.attempts = []
        async with running(worker):
            worker._put(Job(effect))
            await until(lambda: n.known.complaint("lab") and len(worker.attempts) > 3)
            n.runs()
            await until(lambda: n.reports)

    assert n.reports == [OutboxDelivered(3, False)]
    assert set(worker.attempts) == {0}
