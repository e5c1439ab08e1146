"""One host per role: shared hosts stay; hosts of a DAG start on demand and end when idle."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import anyio
import pytest

from aioflow import DAG, Trigger, TriggerEvent
from aioflow.clock import SystemClock
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.host_pool import HostPool
from aioflow.processes import Children
from aioflow.protocol.commands import StartTrigger, StopTrigger
from aioflow.protocol.effects import AssignTrigger, ReleaseTrigger
from aioflow.protocol.inputs import HostLost, HostUp
from aioflow.protocol.reports import TriggerEnded
from aioflow.telemetry.task_log import TaskLog
from aioflow.testing.code import LoadedCodeCache
from aioflow.testing.hosts import InlineChildren
from tests.executors.processes import running, until

OWN = ["async:daily", "triggers:daily"]


class Waits(Trigger):
    """A trigger that waits during its whole assignment."""

    async def run(self):
        await anyio.sleep_forever()
        yield TriggerEvent(None)


class Node:
    def __init__(self, home, idle_seconds):
        self.reports = []
        code_cache = LoadedCodeCache()
        code_cache.put("v", cast(DAG, None))  # its classes are those of this module
        self.tasklog = TaskLog(home / "logs", SystemClock())
        context = ExecutorContext(
            children=cast(Children, InlineChildren(code_cache, lambda _: None)),
            code=home / "code",
            results=home / "results",
            tasklog=self.tasklog,
            report=self.reports.extend,
            clock=SystemClock(),
            on_query=lambda child, ask: None,
        )
        self.pool = HostPool(context, idle_seconds=idle_seconds)

    def roles_of(self, kind):
        return sorted(report.role for report in self.reports if isinstance(report, kind))

    def has_left(self, role):
        return role in self.roles_of(HostLost)

    def host(self, role, number):
        host = StartTrigger(number, 1, 7, number, "v", f"{__name__}:Waits", b"\x80", 0, None)
        triggerer = self.pool.triggerers[role]
        triggerer.host(AssignTrigger(host, None, role, triggerer.host_process.process_no))


@asynccontextmanager
async def node(tmp_path, idle_seconds=0.02):
    node = Node(tmp_path, idle_seconds)
    async with running(node.tasklog, node.pool):
        yield node


async def test_the_shared_hosts_are_up_when_it_runs_and_stay(tmp_path):
    async with node(tmp_path) as n:
        assert n.roles_of(HostUp) == ["async", "triggers"]
        n.pool.start(OWN[0])
        await until(lambda: n.roles_of(HostLost))
        assert [load.name for load in n.pool.loads()] == ["async", "triggers", "quarantine"]


@pytest.mark.parametrize("role", OWN)
async def test_an_own_host_comes_once_leaves_when_it_has_nothing_and_comes_again(tmp_path, role):
    async with node(tmp_path) as n:
        n.pool.start(role)
        n.pool.start(role)
        assert role in [load.name for load in n.pool.loads()]
        await until(lambda: n.roles_of(HostLost))
        [lost] = [report for report in n.reports if isinstance(report, HostLost)]
        assert (lost.role, lost.was_dismissed) == (role, True)
        assert role not in [load.name for load in n.pool.loads()]

        n.pool.start(role)
        await until(lambda: n.roles_of(HostUp).count(role) == 2)


async def test_one_that_is_named_before_it_runs_comes_with_the_others(tmp_path):
    n = Node(tmp_path, 60.0)
    for role in OWN:
        n.pool.start(role)
    async with running(n.tasklog, n.pool):
        await until(lambda: set(OWN) <= set(n.roles_of(HostUp)))


async def test_an_own_host_stays_while_it_has_a_trigger(tmp_path):
    role = OWN[1]
    async with node(tmp_path) as n:
        n.pool.start(role)
        await until(lambda: role in n.roles_of(HostUp))
        n.host(role, 3)
        for other in ("async:one", "async:two", "async:three"):  # one after the other
            n.pool.start(other)
            await until(partial(n.has_left, other))
        assert role not in n.roles_of(HostLost)

        n.pool.triggerers[role].end(ReleaseTrigger(StopTrigger(3, 1, "finished"), role))
        await until(lambda: role in n.roles_of(HostLost))
        assert [report.trigger_no for report in n.reports if isinstance(report, TriggerEnded)]
