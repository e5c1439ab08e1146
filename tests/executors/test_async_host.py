"""The async host: one process for all coroutines, whose death names the culprit."""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from aioflow.clock import SystemClock
from aioflow.executors.async_host import AsyncExecutor
from aioflow.executors.executor_context import ExecutorContext
from aioflow.model.dag import Body
from aioflow.processes import Children
from aioflow.protocol.commands import Reply, ResumeCoroutine, RunInfo, StartTask
from aioflow.protocol.effects import StartTry, StopTry
from aioflow.protocol.inputs import HostLost, HostUp
from aioflow.protocol.reports import Query, Succeeded
from aioflow.telemetry.task_log import TaskLog
from tests.executors.processes import program, running, until

pytestmark = pytest.mark.process

# Handles commands one at a time. The source in the kwargs of a start is executed at once.
HOST = """
import msgspec
[welcome] = link.receive()
box = int(os.environ["AIOFLOW_BLACKBOX_FD"])
orders = []

def reply(start, value):
    link.send([Succeeded(start.task_no, start.start_no, 1, 2, msgspec.msgpack.encode(value))])

try:
    while True:
        for order in link.receive():
            if isinstance(order, Ping):
                link.send([Pong()])
                continue
            orders.append(order)
            if isinstance(order, StartTask):
                exec(order.kwargs)
except LinkClosed:
    pass
"""
TELL = "reply(order, [type(o).__name__ for o in orders])"


class HeldClock(SystemClock):
    """A clock whose sleeps last until the test releases them."""

    def __init__(self):
        self.go = anyio.Event()

    async def sleep(self, seconds):
        await self.go.wait()
        await super().sleep(seconds)


class Node:
    def __init__(self, home, *, clock=None, **options):
        self.reports, self.asked = [], []
        self.tasklog = TaskLog(home / "logs", SystemClock())
        self.children = Children(home, program=program(HOST))
        context = ExecutorContext(
            children=self.children,
            code=home / "code",
            results=home / "results",
            tasklog=self.tasklog,
            report=self.reports.extend,
            clock=clock or SystemClock(),
            on_query=lambda child, ask: self.asked.append((child, ask)),
        )
        self.executor = AsyncExecutor(context, **options)

    def start(self, number, source, *, process_no=None):
        info = RunInfo(7, "r", "d", "v", "d.py", None, 0, None, 100)
        order = StartTask(7, number, 1, number, -1, 1, kwargs=source.encode())
        self._start(info, order, process_no=process_no)

    def resume(self, number, was):
        info = RunInfo(7, "r", "d", "v", "d.py", None, 0, None, 100)
        order = StartTask(7, number, was + 1, number, -1, 1)
        resume = ResumeCoroutine(7, number, was, was + 1, None)
        self._start(info, order, resume=resume)

    def _start(self, info, order, *, process_no=None, **options):
        current = self.executor.host_process.process_no
        process_no = current if process_no is None else process_no
        effect = StartTry(Body.COROUTINE, -1, info, order, process_no=process_no, **options)
        self.executor.start_try(effect)

    def of(self, kind):
        return [report for report in self.reports if isinstance(report, kind)]

    async def value(self, number):
        await until(lambda: [r for r in self.of(Succeeded) if r.task_no == number])
        [report] = [r for r in self.of(Succeeded) if r.task_no == number]
        return msgspec.msgpack.decode(report.body)


@asynccontextmanager
async def node(tmp_path, **options):
    node = Node(tmp_path, **options)
    async with running(node.children, node.tasklog, node.executor):
        yield node


async def test_it_says_when_it_is_up(tmp_path):
    async with node(tmp_path) as n:
        assert n.reports == [HostUp("async", n.executor.host_process.process_no)]


async def test_a_run_is_described_before_its_first_task_and_forgotten_at_its_end(tmp_path):
    async with node(tmp_path) as n:
        n.start(1, TELL)
        n.start(2, TELL)
        assert await n.value(2) == ["RunInfo", "StartTask", "StartTask"]
        n.executor.stop_try(StopTry(Body.COROUTINE, -1, 1, 1, "cancelled"))
        n.executor.forget(7)
        n.executor.forget(7)
        n.start(3, TELL)
        assert (await n.value(3))[3:] == ["StopTask", "ForgetRun", "RunInfo", "StartTask"]


async def test_its_death_names_whose_code_was_running(tmp_path):
    crash = """
os.pwrite(box, order.task_no.to_bytes(8, sys.byteorder), 0)
os.kill(os.getpid(), signal.SIGSEGV)
"""
    async with node(tmp_path) as n:
        n.start(41, "reply(order, None)")
        n.start(42, crash)
        await until(lambda: len(n.of(HostUp)) == 2)
        n.start(43, TELL)
        assert await n.value(43) == ["RunInfo", "StartTask"]

    kinds = [type(report).__name__ for report in n.reports]
    assert kinds == ["HostUp", "Succeeded", "HostLost", "HostUp", "Succeeded"]
    [lost] = n.of(HostLost)
    assert (lost.role, lost.culprit, lost.failure.reason) == ("async", 42, "crashed")


async def test_a_death_while_no_user_code_runs_is_attributed_to_nothing(tmp_path):
    async with node(tmp_path) as n:
        n.start(1, "os.pwrite(box, b'\\xff' * 8, 0)\nreply(order, os.getpid())")
        os.kill(await n.value(1), signal.SIGKILL)
        await until(lambda: n.of(HostLost))

    assert n.of(HostLost)[0].culprit == -1
    assert n.of(HostLost)[0].failure.reason == "killed"


async def test_a_coroutine_that_blocks_the_loop_is_charged_for_it(tmp_path):
    block = """
os.pwrite(box, order.task_no.to_bytes(8, sys.byteorder), 0)
time.sleep(1000)
"""
    clock = HeldClock()
    async with node(tmp_path, clock=clock, health_seconds=1.0) as n:
        n.start(41, "reply(order, None)")
        n.start(42, block)
        await until(lambda: n.executor._host._child.culprit() == 42)
        clock.go.set()
        await until(lambda: len(n.of(HostUp)) == 2)

    [lost] = n.of(HostLost)
    assert (lost.role, lost.culprit, lost.failure.reason) == ("async", 42, "blocked")
    assert "1 s" in lost.failure.message


async def test_a_host_that_was_stopped_is_replaced_and_no_try_charged(tmp_path):
    clock = HeldClock()
    async with node(tmp_path, clock=clock, health_seconds=1.0) as n:
        n.start(1, "reply(order, os.getpid())")
        pid = await n.value(1)
        n.start(2, "os.pwrite(box, b'\\xff' * 8, 0)\nos.kill(os.getpid(), signal.SIGSTOP)")
        await until(lambda: state_of(pid) == "T")
        clock.go.set()
        await until(lambda: len(n.of(HostUp)) == 2)

    [lost] = n.of(HostLost)
    assert (lost.culprit, lost.failure.reason) == (-1, "blocked")


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_try_assigned_to_a_lost_process_does_not_start_in_the_next(tmp_path):
    async with node(tmp_path) as n:
        lost_no = n.executor.host_process.process_no
        n.start(1, "os._exit(1)")
        await until(lambda: len(n.of(HostUp)) == 2)
        n.start(2, TELL, process_no=lost_no)  # its commit took longer than the replacement
        n.start(3, TELL)
        assert await n.value(3) == ["RunInfo", "StartTask"]

    assert [report.task_no for report in n.of(Succeeded)] == [3]


async def test_orders_without_a_host_are_dropped(tmp_path):
    async with node(tmp_path) as n:
        n.start(1, "os._exit(1)")
        await until(lambda: n.of(HostLost))
        n.start(2, TELL)
        await until(lambda: len(n.of(HostUp)) == 2)
        n.start(3, TELL)
        assert await n.value(3) == ["RunInfo", "StartTask"]

    assert [report.task_no for report in n.of(Succeeded)] == [3]


async def test_output_goes_to_the_log_of_its_try(tmp_path):
    say = "link.send([Output(order.task_no, 1, b'hello'), Output(99, 1, b'stray')])\n" + TELL
    async with node(tmp_path) as n:
        n.start(5, say)
        await n.value(5)
    assert await n.tasklog.read(7, 5) == b"hello"


async def test_the_log_of_a_try_is_closed_when_nothing_of_it_is_left(tmp_path):
    left = "TaskStopped(order.task_no, 1)"
    goes = f"link.send([Output(order.task_no, order.start_no, b'bye'), {left}])\n"
    async with node(tmp_path) as n:
        n.start(5, "stopped = order")
        n.executor.stop_try(StopTry(Body.COROUTINE, -1, 5, 1, "cancelled"))
        n.start(6, "order = stopped\n" + goes + "order = orders[-1]\n" + TELL)
        await n.value(6)
        assert not n.executor._printing

    assert await n.tasklog.read(7, 5) == b"bye"


async def test_a_coroutine_that_continues_under_another_number_has_one_log(tmp_path):
    async with node(tmp_path) as n:
        n.start(5, TELL)
        await n.value(5)
        for was in range(1, 5):
            n.resume(5, was)

        assert n.executor._printing.keys() == {(5, 5)}


async def test_a_coroutine_may_ask_about_its_own_run_only(tmp_path):
    ask = "link.send([Query(1, 7, 'results', b''), Query(2, 8, 'results', b'')])\n"
    async with node(tmp_path) as n:
        n.start(1, ask + TELL)
        await n.value(1)
        [(child, asked)] = n.asked
        assert asked == Query(1, 7, "results", b"")
        child.send([Reply(1, b"yes")])
        n.start(2, "reply(order, [(o.question, o.error) for o in orders if isinstance(o, Reply)])")
        answers = await n.value(2)

    assert [question for question, _ in answers] == [2, 1]
    assert "does not belong to this process" in answers[0][1]
