"""Executors and triggerer with the program that they really start, and an ordinary DAG."""

from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec
import pytest

from aioflow.catalog import Catalog
from aioflow.catalog.parse import Limits
from aioflow.catalog.snapshot import Snapshots
from aioflow.clock import SystemClock
from aioflow.executors.async_host import AsyncExecutor
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.shared_host import HEALTH_SECONDS, UNKNOWN_LOCATION
from aioflow.executors.worker_pool import WorkerPool
from aioflow.processes import Children
from aioflow.protocol.commands import RunInfo, StartTask
from aioflow.protocol.effects import StartTry
from aioflow.protocol.inputs import FileParsed, HostLost, HostUp, LoopBlocked
from aioflow.protocol.reports import Failed, Succeeded
from aioflow.telemetry.task_log import TaskLog
from tests.executors.processes import running, until

pytestmark = pytest.mark.process

DAG = """
import os, signal, time
from aioflow import Retry, dag, default_deferrable, task

@task
def add() -> int:
    print("adding")
    return 40 + 2

@task
def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)

@task
async def hello() -> str:
    print("hosted")
    return "hello"

@task
async def block() -> None:
    time.sleep(1000)

@task
async def keep() -> None:
    sum(range(10**13))  # in C, and no other thread runs

@task
def told_in_a_worker() -> bool:
    return default_deferrable()

@task(doc=f"defers: {default_deferrable()}")
async def told_in_a_host() -> bool:
    return default_deferrable()

@task(retries=2)
def thrice(): ...

@task(retry=Retry(delay="1m"))
def patient(): ...

@dag
def d() -> None:
    add()
    crash()
    hello()
    thrice()
    patient()
    block()
    keep()
    told_in_a_worker()
    told_in_a_host()
"""


class Node:
    """Everything around the engine, but not the engine itself."""

    def __init__(
        self, home, *, default_deferrable=False, default_tries=3, health_seconds=HEALTH_SECONDS
    ):
        self.reports = []
        folder = home / "dags"
        folder.mkdir()
        (folder / "d.py").write_text(DAG)
        clock = SystemClock()
        self.children = Children(home)
        self.tasklog = TaskLog(home / "logs", clock)
        self.catalog = Catalog(
            [folder],
            Snapshots(home / "code"),
            self.children,
            self.reports.extend,
            clock,
            limits=Limits(default_deferrable=default_deferrable, default_tries=default_tries),
        )
        context = ExecutorContext(
            children=self.children,
            code=home / "code",
            results=home / "results",
            tasklog=self.tasklog,
            report=self.reports.extend,
            clock=clock,
            on_query=lambda child, ask: None,
            default_deferrable=default_deferrable,
            default_tries=default_tries,
        )
        self.slots = WorkerPool(context, 1)
        self.hosted = AsyncExecutor(context, health_seconds=health_seconds)

    def of(self, kind, number):
        return [r for r in self.reports if isinstance(r, kind) and r.task_no == number]

    def start(self, task_id, **options):
        """Start one task of the DAG. Return its number."""
        [parsed] = [report for report in self.reports if isinstance(report, FileParsed)]
        [dag] = parsed.dags
        task_index = [task.task_id for task in dag.tasks].index(task_id)
        body = dag.tasks[task_index].body
        number = 100 + task_index
        info = RunInfo(7, "r7", "d", parsed.version, "d.py", None, 0, None, 100)
        executor = self.slots if body == "def" else self.hosted
        order = StartTask(7, number, 1, task_index, -1, 1)
        if body != "def":
            options["process_no"] = self.hosted.host_process.process_no
        executor.start_try(StartTry(body, 0 if body == "def" else -1, info, order, **options))
        return number

    async def run(self, task_id, **options):
        """Run one task of the DAG. Return its final report."""
        number = self.start(task_id, **options)
        await until(lambda: self.of(Succeeded, number) or self.of(Failed, number))
        [ended] = self.of(Succeeded, number) or self.of(Failed, number)
        assert ended.began_at is not None
        return ended


@asynccontextmanager
async def node(home, **options):
    node = Node(home, **options)
    async with running(node.children, node.tasklog, node.catalog, node.slots, node.hosted):
        await node.catalog.first_sweep_done.wait()
        yield node


async def test_a_function_runs_in_a_slot_and_its_output_is_stored(tmp_path):
    async with node(tmp_path) as n:
        ended = await n.run("add")
    assert msgspec.msgpack.decode(ended.body) == 42
    assert await n.tasklog.read(7, 0) == b"adding\n"


async def test_a_coroutine_runs_in_the_async_host_and_its_output_is_stored(tmp_path):
    async with node(tmp_path) as n:
        ended = await n.run("hello")
        assert msgspec.msgpack.decode(ended.body) == "hello"
        await until(lambda: n.tasklog.path(7, 2).exists())
    assert await n.tasklog.read(7, 2) == b"hosted\n"


@pytest.mark.parametrize("value", [False, True, None])
async def test_every_child_knows_whether_operators_defer_by_default(tmp_path, value):
    async with node(tmp_path, default_deferrable=value) as n:
        in_a_worker = await n.run("told_in_a_worker")
        in_a_host = await n.run("told_in_a_host")
    [parsed] = [report for report in n.reports if isinstance(report, FileParsed)]

    assert msgspec.msgpack.decode(in_a_worker.body) is (value or False)
    assert msgspec.msgpack.decode(in_a_host.body) is (value or False)
    assert parsed.dags[0].tasks[-1].doc == f"defers: {value or False}"


@pytest.mark.parametrize("tries", [1, 3])
async def test_a_task_that_does_not_say_is_tried_as_often_as_the_daemon_is_set(tmp_path, tries):
    async with node(tmp_path, default_tries=tries) as n:
        [parsed] = [report for report in n.reports if isinstance(report, FileParsed)]

    said = {task.task_id: task.retry.tries for task in parsed.dags[0].tasks}
    assert said == dict.fromkeys(said, tries) | {"thrice": 3, "patient": tries}


async def test_a_crash_costs_its_own_try_only(tmp_path):
    async with node(tmp_path) as n:
        failed = await n.run("crash")
        assert failed.failure.reason == "crashed"
        assert "SIGSEGV" in failed.failure.message
        ended = await n.run("add")
    assert isinstance(ended, Succeeded)


async def test_a_coroutine_that_blocks_its_loop_is_named_and_the_host_replaced(tmp_path):
    async with node(tmp_path, health_seconds=3.0) as n:
        number = n.start("block")
        await until(lambda: sum(isinstance(report, HostUp) for report in n.reports) == 2)
        ended = await n.run("hello")

    [lost] = [report for report in n.reports if isinstance(report, HostLost)]
    assert (lost.culprit, lost.failure.reason) == (number, "blocked")
    line = DAG.partition("time.sleep(1000)")[0].count("\n") + 1
    assert lost.failure.message.endswith(f"was blocked for 3 s at d.py:{line} in block")
    assert isinstance(ended, Succeeded)


@pytest.mark.nightly
async def test_code_in_c_that_lets_no_thread_run_is_named_from_outside_while_it_runs(tmp_path):
    async with node(tmp_path, health_seconds=3.0) as n:
        await n.run("told_in_a_host")  # the file is imported, which may take long, too
        before, number = len(n.reports), n.start("keep")

        def stalls():
            return [report for report in n.reports[before:] if isinstance(report, LoopBlocked)]

        await until(stalls)
        assert not any(isinstance(report, HostLost) for report in n.reports)
        await until(lambda: any(isinstance(report, HostLost) for report in n.reports))

    assert {(stall.role, stall.culprit, stall.source_location) for stall in stalls()} == {
        ("async", number, UNKNOWN_LOCATION)
    }
    assert len({stall.incident for stall in stalls()}) == 1
    [lost] = [report for report in n.reports if isinstance(report, HostLost)]
    assert (lost.culprit, lost.failure.reason) == (number, "blocked")
