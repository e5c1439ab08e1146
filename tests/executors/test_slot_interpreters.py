"""Slot workers of other interpreters: a process that never responds affects no try."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import asynccontextmanager

import pytest

from aioflow.clock import SystemClock
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.worker_pool import WorkerPool
from aioflow.processes import Children, interpreters
from aioflow.processes.interpreters import Interpreters
from aioflow.protocol.reports import Failed, Recalled, Succeeded
from aioflow.telemetry.task_log import TaskLog
from tests.executors.processes import DAEMONISE, PRELUDE, SLOT, is_alive, program, running, until
from tests.executors.test_slot import Node as SlotNode
from tests.executors.test_slot import start, until_there
from tests.test_interpreters import GOOD, put

pytestmark = pytest.mark.process

PID = "value = msgspec.msgpack.encode(os.getpid())"
PARENT = "value = msgspec.msgpack.encode(os.environ.get('VIRTUAL_ENV', ''))"


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(interpreters, "LOOK_SECONDS", 0.02)


def python(child, root="/lab"):
    """Return a program that reports a suitable Python, and runs ``child`` as each child process."""
    said = shlex.quote(json.dumps(GOOD | {"root": root}))
    return f"""#!/bin/sh
if [ "$1" = -c ]; then printf '%s%s' "$3" {said}; exit; fi
{child}
"""


RUNS = f"exec {sys.executable} -c {shlex.quote(PRELUDE + DAEMONISE + SLOT)}"


class Node(SlotNode):
    """A worker pool with another interpreter, and the reports that it made."""

    def __init__(self, home, slots):
        self.reports = []
        self.path = home / "python"
        self.tasklog = TaskLog(home / "logs", SystemClock())
        self.children = Children(home, program=program(SLOT))
        clock = SystemClock()
        self.known = Interpreters(self.children, clock, {"lab": str(self.path)})
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
        self.executor = WorkerPool(context, slots)
        self.known.listen(self.executor.interpreter_changed)

    def start(self, number, source="", **options):
        self.executor.start_try(start(number, source, role="async@lab", version="lab1", **options))


@asynccontextmanager
async def node(tmp_path, child=RUNS, slots=1):
    node = Node(tmp_path, slots)
    put(node.path, python(child))
    async with running(node.children, node.known, node.tasklog, node.executor):
        yield node


async def test_tries_run_in_the_interpreter_of_their_version(tmp_path):
    async with node(tmp_path, slots=2) as n:
        n.start(1, PARENT)
        n.executor.start_try(start(2, PARENT, at=1))
        assert await n.value(1) == "/lab"
        assert await n.value(2) != "/lab"
        n.start(3, PID)
        n.start(4, PID, claimed=True)
        assert await n.value(3) == await n.value(4)


@pytest.mark.parametrize(
    "child", ["exit 1", "kill -9 $$", "rm $0; exit 1", f"exec {sys.executable} -c 'print()'"]
)
async def test_a_process_that_never_answers_costs_no_try(tmp_path, child):
    async with node(tmp_path, child) as n:
        n.start(1)
        n.start(2, claimed=True)
        await until(lambda: sorted(n.recalled()) == [1, 2])
        n.executor.start_try(start(3, PID))  # the slot is free for others
        await n.ended(3)

    assert n.of(Succeeded, 3)
    assert not n.of(Failed)
    assert not n.of(Succeeded, 1)


async def test_a_mended_interpreter_runs_what_comes_next(tmp_path):
    async with node(tmp_path, "exit 1") as n:
        n.start(1)
        await until(lambda: n.of(Recalled))
        put(n.path, python(RUNS))
        await until(lambda: n.known.launch("lab"))
        n.start(2, PARENT)
        assert await n.value(2) == "/lab"


async def test_after_a_change_new_tries_run_in_it_and_running_ones_stay(tmp_path):
    async with node(tmp_path, slots=2) as n:
        gate = tmp_path / "gate"
        n.start(1, f"{until_there(gate)}\n{PARENT}")
        n.start(2, PID, at=1)
        idle = await n.value(2)
        await n.began(1)
        put(n.path, python(RUNS, root="/new"))
        await until(lambda: n.known.generation("lab") == 2)
        await until(lambda: not is_alive(idle))
        n.start(3, PARENT, at=1)
        n.start(4, PARENT, claimed=True)  # behind the running one
        assert await n.value(3) == "/new"
        gate.touch()
        assert await n.value(1) == "/lab"
        assert await n.value(4) == "/new"


async def test_a_change_while_a_process_starts_leads_to_another_process(tmp_path):
    gate = tmp_path / "gate"
    slow = f"while ! [ -e {gate} ]; do sleep 0.01; done\n{RUNS}"
    async with node(tmp_path, slow) as n:
        n.start(1, PARENT)
        await until(lambda: n.executor._processes._starting_others["lab"])
        put(n.path, python(RUNS, root="/new"))
        await until(lambda: n.known.generation("lab") == 2)
        gate.touch()
        assert await n.value(1) == "/new"
