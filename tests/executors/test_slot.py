"""Slot workers, one process each: damage by a body is reported, and affects no other task."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest

from aioflow.clock import SystemClock
from aioflow.executors import worker_process
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.worker_pool import WorkerPool
from aioflow.model.dag import Body
from aioflow.processes import Child, Children
from aioflow.protocol.commands import Reply, RunInfo, StartTask
from aioflow.protocol.effects import RecallTries, StartTry, StopTry
from aioflow.protocol.inputs import WorkerUnresponsive
from aioflow.protocol.reports import (
    Failed,
    Query,
    Recalled,
    ResultWriteFailed,
    Succeeded,
    TaskStarted,
)
from aioflow.telemetry.task_log import TaskLog
from tests.executors.processes import SLOT, is_alive, program, running, until

pytestmark = pytest.mark.process


def info(version="v1", run_no=7):
    return RunInfo(run_no, f"r{run_no}", "d", version, "d.py", None, 0, None, 100)


def start(number, source="", *, at=0, version="v1", run_no=7, expected_us=10**9, **options):
    """Return a try. It is expected to be long, lest a slow machine recall claimed tries."""
    order = StartTask(run_no, number, 1, number, -1, 1, kwargs=source.encode())
    return StartTry(
        Body.FUNCTION, at, info(version, run_no), order, expected_us=expected_us, **options
    )


class LeapingClock(SystemClock):
    """A system clock that can be moved forward."""

    leapt_us = 0

    def monotonic_us(self):
        return super().monotonic_us() + self.leapt_us


class Node:
    """A worker pool, and the reports that it made."""

    def __init__(self, home, slots, **options):
        self.reports, self.asked = [], []
        self.clock = LeapingClock()
        self.tasklog = TaskLog(home / "logs", SystemClock())
        self.children = Children(home, program=program(SLOT))
        context = ExecutorContext(
            children=self.children,
            code=home / "code",
            results=home / "results",
            tasklog=self.tasklog,
            report=self.reports.extend,
            clock=self.clock,
            on_query=lambda child, ask: self.asked.append((child, ask)),
        )
        self.executor = WorkerPool(context, slots, **options)

    def unloaded(self):
        """Return the spare processes, which have loaded no version yet."""
        return self.executor._processes._unloaded

    def of(self, kind, number=None):
        """Return the reports of a kind, optionally those of one task."""
        return [
            report
            for report in self.reports
            if isinstance(report, kind) and number in {None, getattr(report, "task_no", None)}
        ]

    def recalled(self):
        return [number for report in self.of(Recalled) for number, _ in report.tries]

    async def ended(self, *numbers):
        await until(lambda: all(self.of(Succeeded, n) or self.of(Failed, n) for n in numbers))

    async def began(self, number):
        processes = self.executor._processes._all
        await until(lambda: any(process.runs((number, 1)) for process in processes))

    async def value(self, number):
        await self.ended(number)
        [report] = self.of(Succeeded, number)
        return msgspec.msgpack.decode(report.body)


@asynccontextmanager
async def node(tmp_path, slots=1, **options):
    node = Node(tmp_path, slots, **options)
    async with running(node.children, node.tasklog, node.executor):
        yield node


PID = "value = msgspec.msgpack.encode(os.getpid())"


def until_there(path):
    """Return the source of a body that blocks until a file exists."""
    return f"while not os.path.exists({str(path)!r}): time.sleep(0.001)"


async def test_tries_of_a_worker_run_in_order_and_report_their_begin(tmp_path):
    async with node(tmp_path) as n:
        for number in range(1, 50):
            n.executor.start_try(start(number, "time.sleep(0.001)", claimed=number > 1))
        await n.ended(*range(1, 50))

    assert [report.task_no for report in n.of(Succeeded)] == list(range(1, 50))
    told = [(type(report), report.task_no) for report in n.reports]
    assert all(
        told.index((TaskStarted, r.task_no)) < told.index((Succeeded, r.task_no))
        for r in n.of(TaskStarted)
    )


async def test_a_start_that_came_with_its_end_is_reported_by_the_end(tmp_path):
    both = "link.send([TaskStarted(2, 1, 5), Succeeded(2, 1, 5, 6)])"
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, both))
        n.executor.start_try(start(2, claimed=True))
        await n.ended(1, 2)

    assert not n.of(TaskStarted, 2)
    assert [report.began_at for report in n.of(Succeeded, 2)] == [5]


async def test_only_the_start_of_a_claimed_try_is_reported(tmp_path):
    """The other try has had its slot since it was granted."""
    first, second = tmp_path / "first", tmp_path / "second"
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, until_there(first)))
        n.executor.start_try(start(2, until_there(second), claimed=True))
        await n.began(1)
        first.touch()
        await n.began(2)
        second.touch()
        await n.ended(1, 2)

    assert [report.task_no for report in n.of(TaskStarted)] == [2]


async def test_workers_run_side_by_side(tmp_path, monkeypatch):
    meet = """
open(os.path.join(os.environ["HOME"], str(key[0])), "w").close()
while len(set(os.listdir(os.environ["HOME"])) & {"1", "2"}) < 2:
    time.sleep(0.001)
"""
    monkeypatch.setenv("HOME", str(tmp_path))
    async with node(tmp_path, slots=2) as n:
        n.executor.start_try(start(1, meet, at=0))
        n.executor.start_try(start(2, meet, at=1))
        await n.ended(1, 2)


async def test_a_run_is_described_once_and_forgotten_when_it_has_ended(tmp_path):
    tell = "value = msgspec.msgpack.encode([type(o).__name__ for o in orders])"
    async with node(tmp_path) as n:
        n.executor.start_try(start(1))
        n.executor.start_try(start(2, tell))
        assert await n.value(2) == ["RunInfo"]
        n.executor.forget(7)
        n.executor.start_try(start(3, tell))
        assert await n.value(3) == ["RunInfo", "ForgetRun", "RunInfo"]


async def test_a_process_that_knows_many_runs_forgets_the_one_it_had_nothing_of_for_longest(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(worker_process, "RUNS_LIMIT", 2)
    tell = """
told = [(type(o).__name__, o.run_no) for o in orders]
value = msgspec.msgpack.encode(told[-2:])
"""
    async with node(tmp_path) as n:
        for number, run_no in ((1, 7), (2, 8), (3, 7)):
            n.executor.start_try(start(number, run_no=run_no))
            await n.ended(number)
        n.executor.start_try(start(4, tell, run_no=9))
        assert await n.value(4) == [["ForgetRun", 8], ["RunInfo", 9]]
        n.executor.start_try(start(5, tell, run_no=8))
        assert await n.value(5) == [["ForgetRun", 7], ["RunInfo", 8]]


async def test_a_run_is_not_forgotten_while_a_try_of_it_is_on_its_way(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "RUNS_LIMIT", 2)
    tell = "value = msgspec.msgpack.encode([type(o).__name__ for o in orders])"
    async with node(tmp_path) as n:
        for number, run_no in ((1, 7), (2, 8), (3, 9)):
            n.executor.start_try(start(number, tell, run_no=run_no, claimed=number > 1))
        assert "ForgetRun" not in await n.value(3)


async def test_work_that_alternates_between_versions_costs_a_process_for_each_of_them(tmp_path):
    async with node(tmp_path, slots=2) as n:
        pids = {"v1": set(), "v2": set(), "v3": set(), "v4": set(), "v5": set()}
        for number in range(1, 41):
            version = f"v{number % 5 + 1}"
            n.executor.start_try(start(number, PID, at=number % 2, version=version))
            pids[version].add(await n.value(number))

    assert [len(of_version) for of_version in pids.values()] == [1] * 5
    assert len(set.union(*pids.values())) == 5


async def test_a_slot_that_waits_for_a_process_gets_one_that_another_slot_returns(
    tmp_path, monkeypatch
):
    async with node(tmp_path, slots=2) as n:
        await until(lambda: len(n.unloaded()) == 2)

        def fail(*arguments, **options):
            raise BlockingIOError(11, "Resource temporarily unavailable")

        monkeypatch.setattr(n.children, "_spawn", fail)
        n.executor.start_try(start(1, until_there(tmp_path / "go") + "\n" + PID))
        n.executor.start_try(start(2, at=1, version="v2"))
        await n.began(1)
        await n.ended(2)
        n.executor.start_try(start(3, PID, at=1))
        (tmp_path / "go").touch()
        assert await n.value(1) == await n.value(3)


async def test_one_process_stands_ready_for_a_version_that_has_none(tmp_path):
    async with node(tmp_path) as n:
        for number in range(1, 5):
            await until(n.unloaded)
            [ready] = [process._child.pid for process in n.unloaded()]
            n.executor.start_try(start(number, PID, version=f"v{number}"))
            assert await n.value(number) == ready


async def test_idle_processes_that_take_too_much_memory_go_the_least_recently_used_first(tmp_path):
    async with node(tmp_path) as n:
        n.executor._processes._memory_bytes = 0  # no more than the number of slots
        pids = {}
        for number, version in ((1, "v1"), (2, "v2"), (3, "v1"), (4, "v1")):
            n.executor.start_try(start(number, PID, version=version))
            pids[number] = await n.value(number)

    assert len({pids[1], pids[2], pids[3]}) == 3
    assert pids[3] == pids[4]  # one for each slot stays


async def test_idle_processes_that_are_not_used_for_long_are_dismissed(tmp_path):
    async with node(tmp_path, idle_seconds=0.05) as n:
        pids = []
        for number in range(1, 5):
            n.executor.start_try(start(number, PID, version=f"v{number}"))
            pids.append(await n.value(number))
        await until(lambda: not any(map(is_alive, pids[:3])))
        assert is_alive(pids[3])


async def test_an_idle_process_gives_way_where_the_machine_has_no_room_for_another(
    tmp_path, monkeypatch
):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, PID))
        idle = await n.value(1)
        await until(n.unloaded)
        spawn = n.children._spawn

        def fail_beside_the_idle_one(*arguments, **options):
            if is_alive(idle):
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return spawn(*arguments, **options)

        monkeypatch.setattr(n.children, "_spawn", fail_beside_the_idle_one)
        n.executor.start_try(start(2, version="v2"))
        await n.ended(2)
        n.executor.start_try(start(3, version="v3"))
        await n.ended(3)

    assert not n.of(Failed)


async def test_another_version_gets_another_process(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, PID))
        n.executor.start_try(start(2, PID))
        first, same = await n.value(1), await n.value(2)
        n.executor.start_try(start(3, PID, version="v2"))
        other = await n.value(3)

    assert first == same
    assert first != other


# ── death ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", "crashed", id="segfault"),
        pytest.param("os._exit(3)", "exit", id="exit"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", "killed", id="killed"),
    ],
)
async def test_a_death_fails_what_had_begun_and_gives_back_what_had_not(tmp_path, source, reason):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1))
        n.executor.start_try(start(2, source, claimed=True))
        n.executor.start_try(start(3, claimed=True))
        n.executor.start_try(start(4, claimed=True))
        await until(n.recalled)
        n.executor.start_try(start(5))
        await n.ended(5)

    [failed] = n.of(Failed)
    assert failed.task_no == 2
    assert failed.failure.reason == reason
    assert failed.retryable
    assert n.recalled() == [3, 4]
    assert not n.of(TaskStarted, 3)


async def test_the_last_output_of_a_body_is_quoted_when_its_process_dies(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, "os.write(2, b'Fatal: no more beans'); os._exit(9)"))
        await n.ended(1)

    assert n.of(Failed)[0].failure.message == (
        "the process ended with exit status 9: Fatal: no more beans"
    )


async def test_a_process_that_dies_before_it_says_a_word_is_not_tried_for_ever(tmp_path):
    children = Children(tmp_path, program=program("os._exit(5)"))
    n = Node(tmp_path, 1)
    context = ExecutorContext(
        children=children,
        code=tmp_path,
        results=tmp_path,
        tasklog=n.tasklog,
        report=n.reports.extend,
        clock=SystemClock(),
        on_query=lambda child, ask: None,
    )
    executor = WorkerPool(context, 1)
    async with running(children, executor):
        while not n.of(Failed):
            seen = len(n.reports)
            executor.start_try(start(1))
            await until(lambda: len(n.reports) > seen)  # noqa: B023 - awaited here

    [failed] = n.of(Failed)
    assert failed.interrupted
    assert failed.failure.reason == "exit"


async def test_without_processes_to_be_had_tries_wait(tmp_path, monkeypatch):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1))
        await n.ended(1)
        await until(lambda: n.unloaded())
        spawn, failures = n.children._spawn, []

        def fail(*arguments, **options):
            if len(failures) < 2:
                failures.append(1)
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return spawn(*arguments, **options)

        monkeypatch.setattr(n.children, "_spawn", fail)
        n.executor.start_try(start(2, version="v2"))  # the unloaded process takes it
        await n.ended(2)
        n.executor.start_try(start(3, version="v3"))
        await n.ended(3)

    assert len(failures) == 2
    assert n.of(Succeeded, 3)


# ── time ────────────────────────────────────────────────────────────────────────────────


async def test_a_try_over_its_time_is_killed_with_all_it_started(tmp_path):
    offspring = tmp_path / "offspring"
    source = f"daemonise({str(offspring)!r})\nsubprocess.run(['sleep', '1000'])"
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, source, timeout_us=5_000_000))
        n.executor.start_try(start(2, claimed=True))
        await n.ended(1)
        assert not is_alive(int(offspring.read_text()))
        n.executor.start_try(start(3))
        await n.ended(3)

    [failed] = n.of(Failed)
    assert failed.failure.reason == "timeout"
    assert not failed.interrupted
    assert failed.began_at == 1
    assert n.recalled() == [2]


async def test_the_time_of_a_try_counts_from_its_begin(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, until_there(tmp_path / "go"), expected_us=10**12))
        n.executor.start_try(start(2, "time.sleep(0.2)", claimed=True, timeout_us=60_000_000))
        await n.began(1)
        n.clock.leapt_us = 3_600_000_000
        (tmp_path / "go").touch()
        await n.ended(1, 2)

    assert not n.of(Failed)


async def test_a_result_that_waits_for_the_disk_costs_no_time(tmp_path):
    kept = "link.send([ResultWriteFailed(*key, True)])\n"
    async with node(tmp_path) as n:
        source = kept + until_there(tmp_path / "written")
        n.executor.start_try(start(1, source, timeout_us=60_000_000, expected_us=1_000_000))
        await until(lambda: n.of(ResultWriteFailed))
        n.clock.leapt_us = 3_600_000_000
        n.executor.start_try(start(2, claimed=True))
        await until(lambda: n.recalled() == [2])
        (tmp_path / "written").touch()
        await n.ended(1)

    assert n.of(Succeeded, 1)
    assert not n.of(Failed)


async def test_a_short_timeout_after_a_long_one_holds(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, timeout_us=3_600_000_000))
        await n.ended(1)
        limits = {"timeout_us": 100_000, "limit_us": 3_000_000}
        n.executor.start_try(start(2, "time.sleep(100)", **limits))
        await n.ended(2)

    assert n.of(Failed)[0].failure.reason == "timeout"
    assert n.of(Failed)[0].failure.message == (
        "the try took longer than its execution_timeout of 3 s, "
        "0.1 s of which were left when it resumed, and was killed"
    )


async def test_claimed_tries_behind_a_slow_one_are_given_back(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, until_there(tmp_path / "go"), expected_us=1_000))
        n.executor.start_try(start(2, claimed=True))
        n.executor.start_try(start(3, claimed=True))
        await until(n.recalled)
        assert not n.of(Succeeded)
        (tmp_path / "go").touch()
        await n.ended(1)

    assert sorted(n.recalled()) == [2, 3]


async def test_claimed_tries_behind_one_as_slow_as_expected_stay(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, "time.sleep(2)", expected_us=2_000_000))
        n.executor.start_try(start(2, claimed=True))
        await n.ended(1, 2)

    assert not n.recalled()


# ── frozen, or only busy ────────────────────────────────────────────────────────────────


def silences(n):
    return [(report.worker, report.since is not None) for report in n.of(WorkerUnresponsive)]


async def test_a_worker_that_is_frozen_is_killed_and_its_try_interrupted(tmp_path):
    async with node(tmp_path, frozen_seconds=0.4) as n:
        n.executor.start_try(start(1, PID))
        pid = await n.value(1)
        n.executor.start_try(start(2, "time.sleep(1000)"))
        n.executor.start_try(start(3, claimed=True))
        await n.began(2)
        os.kill(pid, signal.SIGSTOP)
        await n.ended(2)
        n.executor.start_try(start(4))
        await n.ended(4)
        assert not is_alive(pid)

    [failed] = n.of(Failed)
    assert failed.interrupted
    assert "neither answered nor used CPU" in failed.failure.message
    assert n.recalled() == [3]
    assert silences(n) == [(0, True)]
    [silent] = n.of(WorkerUnresponsive)
    assert silent.since < silent.until


@pytest.mark.nightly
async def test_a_worker_that_is_frozen_for_a_while_continues_and_is_not_charged(tmp_path):
    async with node(tmp_path, frozen_seconds=8) as n:
        n.executor.start_try(start(1, PID))
        pid = await n.value(1)
        n.executor.start_try(start(2, until_there(tmp_path / "go")))
        await n.began(2)
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: silences(n) == [(0, True)])
        os.kill(pid, signal.SIGCONT)
        await until(lambda: silences(n) == [(0, True), (0, False)])
        (tmp_path / "go").touch()
        await n.ended(2)

    assert n.of(Succeeded, 2)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "source",
    [
        pytest.param("sum(range(110_000_000))", id="in C, which lets no thread run"),
        pytest.param(
            "until = time.monotonic() + 1.5\nwhile time.monotonic() < until: pass",
            id="in Python",
            marks=pytest.mark.nightly,
        ),
        pytest.param("time.sleep(1.5)", id="asleep", marks=pytest.mark.nightly),
    ],
)
async def test_a_worker_that_is_only_busy_is_never_taken_for_frozen(tmp_path, source):
    async with node(tmp_path, frozen_seconds=0.8) as n:
        n.executor.start_try(start(1, source))
        await n.ended(1)

    assert n.of(Succeeded, 1)


async def test_a_worker_that_hangs_in_the_kernel_keeps_no_slot(tmp_path, monkeypatch):
    async with node(tmp_path, frozen_seconds=0.4) as n:
        n.executor.start_try(start(1, PID))
        pid = await n.value(1)
        n.executor.start_try(start(2, "time.sleep(1000)"))
        await n.began(2)
        with monkeypatch.context() as patch:
            patch.setattr(Child, "kill", lambda _: None)  # it does not die
            os.kill(pid, signal.SIGSTOP)
            await n.ended(2)
            n.executor.start_try(start(3))
            await n.ended(3)
            assert is_alive(pid)

    [failed] = n.of(Failed)
    assert failed.interrupted


async def test_a_process_frozen_while_idle_gives_its_next_try_back_uncharged(tmp_path):
    async with node(tmp_path, frozen_seconds=0.4) as n:
        n.executor.start_try(start(1, PID))
        os.kill(await n.value(1), signal.SIGSTOP)
        n.executor.start_try(start(2))
        await until(n.recalled)

    assert n.recalled() == [2]
    assert not n.of(Failed)


async def test_reports_of_a_leftover_thread_do_not_affect_the_slot(tmp_path):
    talk = f"""
def talk():
    {until_there(tmp_path / "talk")}
    link.send([Query(5, 7, "results", b"what")])
threading.Thread(target=talk).start()
"""
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, talk))
        await n.ended(1)
        n.executor.start_try(start(2, PID, version="v2"))
        pid = await n.value(2)
        n.executor.start_try(start(3, "time.sleep(1000)", version="v2"))
        await n.began(3)
        (tmp_path / "talk").touch()
        await until(lambda: n.asked)
        n.executor.stop_try(StopTry(Body.FUNCTION, 0, 3, 1, "cancelled"))
        await until(lambda: not is_alive(pid))


# ── stop and recall ─────────────────────────────────────────────────────────────────────


async def test_stopping_what_runs_kills_it_and_gives_back_what_waits(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, "subprocess.run(['sleep', '1000'])", expected_us=10**9))
        n.executor.start_try(start(2, claimed=True))
        await n.began(1)
        n.executor.stop_try(StopTry(Body.FUNCTION, 0, 1, 1, "cancelled"))
        n.executor.start_try(start(3))  # the slot is free as soon as the engine says so
        await n.ended(3)

    assert n.recalled() == [2]
    assert not n.of(Failed)


async def test_stopping_what_has_not_begun_is_silent(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, until_there(tmp_path / "go")))
        n.executor.start_try(start(2, claimed=True))
        n.executor.start_try(start(3, claimed=True))
        await n.began(1)
        n.executor.stop_try(StopTry(Body.FUNCTION, 0, 2, 1, "cancelled"))
        await until(lambda: (2, 1) not in n.executor._workers[0]._process._sent)
        (tmp_path / "go").touch()
        await n.ended(1, 3)

    assert not n.recalled()
    assert not n.of(TaskStarted, 2)
    assert n.of(Succeeded, 1)


async def test_stopping_what_waits_for_a_process_is_silent(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1))
        n.executor.stop_try(StopTry(Body.FUNCTION, 0, 1, 1, "cancelled"))
        n.executor.start_try(start(2))
        await n.ended(2)

    assert not n.of(Succeeded, 1)


async def test_a_recalled_try_is_either_returned_or_run(tmp_path):
    numbers = range(1, 400)
    async with node(tmp_path) as n:
        for number in numbers:
            n.executor.start_try(start(number, claimed=number > 1))
        for number in numbers:
            n.executor.recall(RecallTries(0, ((number, 1),)))
            await anyio.lowlevel.checkpoint()
        await until(lambda: len(n.recalled()) + len(n.of(Succeeded)) == len(numbers))

    assert sorted([*n.recalled(), *(r.task_no for r in n.of(Succeeded))]) == list(numbers)


# ── questions ───────────────────────────────────────────────────────────────────────────

ASK = """
link.send([Query(5, {run_no}, "results", b"what")])
answers = []
while not answers:
    answers = [o for o in orders if isinstance(o, Reply)]
    time.sleep(0.001)
value = msgspec.msgpack.encode([answers[0].body, answers[0].error])
"""


async def test_a_child_may_ask_about_its_own_run(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, ASK.format(run_no=7)))
        await until(lambda: n.asked)
        [(child, ask)] = n.asked
        assert ask == Query(5, 7, "results", b"what")
        assert child.info(7) == info()
        child.send([Reply(5, b"that")])
        assert await n.value(1) == [b"that", ""]


async def test_a_child_gets_nothing_of_another_run(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, ASK.format(run_no=8)))
        body, error = await n.value(1)

    assert not n.asked
    assert body == b""
    assert "does not belong to this process" in error


# ── replacement ─────────────────────────────────────────────────────────────────────────


async def test_a_process_is_replaced_after_so_many_tries(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "TRIES_LIMIT", 3)
    async with node(tmp_path) as n:
        pids = []
        for number in range(1, 7):
            n.executor.start_try(start(number, PID))
            pids.append(await n.value(number))

    assert len(set(pids)) == 2
    assert not n.of(Failed)


async def test_a_process_that_has_grown_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process, "MEMORY_LIMIT_BYTES", 200 * 1024 * 1024)
    monkeypatch.setattr(worker_process, "MEMORY_CHECK_TRIES", 1)
    async with node(tmp_path) as n:
        hoard = "global hoard\nhoard = b'x' * 300_000_000\n" + PID
        n.executor.start_try(start(1, hoard, expected_us=10**9))
        n.executor.start_try(start(2, PID))
        first, second = await n.value(1), await n.value(2)
        n.executor.start_try(start(3, PID))
        assert await n.value(3) != first

    assert first == second  # it was not idle in between


# ── output ──────────────────────────────────────────────────────────────────────────────


async def test_output_goes_to_the_try_that_printed_it(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, "print('one')"))
        n.executor.start_try(start(2))
        n.executor.start_try(start(3, "subprocess.run(['echo', 'three'])"))
        await n.ended(1, 2, 3)
    assert await n.tasklog.read(7, 1) == b"one\n"
    assert await n.tasklog.read(7, 2) == b""
    assert await n.tasklog.read(7, 3) == b"three\n"


async def test_output_is_there_while_the_try_still_runs(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, "print('begun', flush=True); time.sleep(1000)"))
        async with aclosing(n.tasklog.follow(7, 1)) as following:
            assert (await anext(following)).startswith(b"begun")
        assert not n.of(Succeeded)


async def test_a_flood_is_capped_and_costs_no_memory(tmp_path):
    before = resident_bytes()
    async with node(tmp_path) as n:
        n.executor.start_try(
            start(1, "for _ in range(200): os.write(1, b'x' * 1_000_000)", expected_us=10**9)
        )
        n.executor.start_try(start(2, "print('after')"))
        await until(lambda: n.of(Succeeded, 2), 50)
        assert resident_bytes() - before < 64 * 1024 * 1024
    assert n.of(Succeeded, 1)
    flood = await n.tasklog.read(7, 1)
    assert len(flood) < 10.1 * 1024 * 1024
    assert b"truncated" in flood[-100:]
    assert await n.tasklog.read(7, 2) == b"after\n"


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# ── shutdown ────────────────────────────────────────────────────────────────────────────


async def test_cancelling_the_executor_leaves_no_process(tmp_path):
    async with node(tmp_path, slots=2) as n:
        n.executor.start_try(start(1, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PID))
        n.executor.start_try(start(2, "time.sleep(1000)"))
        n.executor.start_try(start(3, PID, at=1))
        pids = [await n.value(1), await n.value(3)]
        await n.began(2)

    assert not any(map(is_alive, pids))
    assert not n.of(Failed)


async def test_a_worker_killed_from_outside_costs_an_interruption(tmp_path):
    async with node(tmp_path) as n:
        n.executor.start_try(start(1, PID))
        pid = await n.value(1)
        n.executor.start_try(start(2, "time.sleep(1000)"))
        await n.began(2)
        os.kill(pid, signal.SIGKILL)
        await n.ended(2)

    [failed] = n.of(Failed)
    assert failed.interrupted
    assert failed.failure.reason == "killed"
