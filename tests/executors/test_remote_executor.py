"""The daemon's side of a backend: the fate of tries when workers come, go and are lost."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import asynccontextmanager
from functools import partial

import anyio
import msgspec
import pytest

from aioflow.clock import SystemClock
from aioflow.errors import StoreUnavailable
from aioflow.executors import home_queries, remote_executor
from aioflow.executors.backend import ExecutorLease, WorkerInfo
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.local_executor import LocalExecutor
from aioflow.executors.remote_executor import RemoteExecutors, location_of, page_of
from aioflow.model.dag import Body
from aioflow.model.workers import WorkerDemand, WorkerLocation, WorkerSpec
from aioflow.processes import Children
from aioflow.protocol.commands import Reply, RunInfo, StartTask
from aioflow.protocol.effects import (
    RecallTries,
    RetireWorker,
    SetWorkerDemand,
    StartTry,
    StopTry,
)
from aioflow.protocol.inputs import (
    ExecutorUnavailable,
    WorkerGone,
    WorkerIdle,
    WorkerUnresponsive,
    WorkerUp,
)
from aioflow.protocol.reports import Failed, Pong, Query, Recalled, Succeeded
from aioflow.results import result_path, write_value
from aioflow.telemetry.task_log import TaskLog
from aioflow.worker.query.result_transfer import (
    FETCH_QUERY,
    STORE_QUERY,
    ResultPiece,
    ResultWanted,
)
from tests.executors.far_executor import PAGE, FarExecutor
from tests.executors.processes import SLOT, is_alive, program, running, until

pytestmark = pytest.mark.process

LEASE = ExecutorLease(home_id="home", node_no=1, epoch=1, secret="s")
FAR = WorkerSpec("far")
SLEEPS = "time.sleep(600)"


def start(number, source="", *, worker, **options):
    info = RunInfo(7, "r7", "d", "v1", "d.py", None, 0, None, 100)
    order = StartTask(7, number, 1, number, -1, 1, kwargs=source.encode())
    return StartTry(Body.FUNCTION, worker, info, order, **{"expected_us": 10**9, **options})


class Node:
    """Everything that is reported to the engine, and a backend whose link can be broken."""

    def __init__(self, home, *, source=SLOT, workers=2, patience_seconds=60.0):
        self.reports = []
        self.runs = {}  # of tasks
        self.outages = 0
        self.tasklog = TaskLog(home / "logs", SystemClock())
        self.children = Children(home, program=program(source))
        self.context = ExecutorContext(
            children=self.children,
            code=home / "code",
            results=home / "results",
            tasklog=self.tasklog,
            report=self.reports.extend,
            clock=SystemClock(),
            on_query=lambda sender, query: None,
            run_of_task=self.run_of_task,
        )
        near = LocalExecutor(self.children, max_workers=workers)
        self.far = FarExecutor(near, home, patience_seconds=patience_seconds)
        self.executors = RemoteExecutors(self.context, {"far": self.far}, 2)

    async def run_of_task(self, task_no):
        if self.outages:
            self.outages -= 1
            raise StoreUnavailable("away")
        return self.runs.get(task_no)

    def of(self, kind, number=None):
        return [
            one
            for one in self.reports
            if isinstance(one, kind) and number in {None, getattr(one, "task_no", None)}
        ]

    def want(self, count, spec=FAR):
        demands = (WorkerDemand(spec, count),) if count else ()
        self.executors.set_demand(SetWorkerDemand(demands))

    async def worker(self, count=1):
        self.want(count)
        await until(lambda: len(self.of(WorkerUp)) >= count)
        return self.of(WorkerUp)[count - 1].worker

    def start(self, number, source="", **options):
        self.executors.start_try(start(number, source, **options))

    def has_seen(self, count):
        return len(self.of(WorkerUp)) >= count

    async def began(self, number):
        workers = [w for one in self.executors._all.values() for w in one.workers.values()]
        await until(lambda: any(worker.process.runs((number, 1)) for worker in workers))

    async def gone(self, worker):
        """Wait until a worker has ended, and the fate of its tries has been reported."""
        await until(lambda: WorkerGone(worker) in self.reports)
        await until(lambda: worker not in self.executors._all["far"].workers)

    def recalled(self):
        return [number for report in self.of(Recalled) for number, _ in report.tries]


@asynccontextmanager
async def node(tmp_path, **options):
    n = Node(tmp_path, **options)
    async with running(n.children, n.tasklog), anyio.create_task_group() as group:
        await group.start(n.executors.run, LEASE)
        yield n
        group.cancel_scope.cancel()


PID = "value = msgspec.msgpack.encode(os.getpid())"


async def test_tries_run_in_the_worker_that_came_up(tmp_path):
    async with node(tmp_path) as n:
        worker = await n.worker()
        assert worker >= 2  # lower numbers are local slots
        (up,) = n.of(WorkerUp)
        assert up.spec == FAR
        (there,) = n.executors._all["far"].workers.values()
        assert up.location == WorkerLocation(
            socket.gethostname(), f"process {there.info.pid} at far"
        )
        assert n.executors.pages() == {("far", up.location): PAGE}
        for number in range(1, 20):
            n.start(number, "print('hello')", worker=worker, claimed=number > 1)
        await until(lambda: n.of(Succeeded, 19))

    assert [one.task_no for one in n.of(Succeeded)] == list(range(1, 20))


async def test_a_try_for_a_worker_that_has_gone_is_returned(tmp_path):
    async with node(tmp_path) as n:
        n.start(1, worker=77)
        n.executors.stop_try(StopTry(Body.FUNCTION, 77, 1, 1, "cancelled"))
        n.executors.recall(RecallTries(77, ((1, 1),)))
        n.executors.retire(RetireWorker(77))

    assert n.recalled() == [1]


async def test_a_killed_worker_interrupts_the_begun_try_and_returns_the_claimed_ones(tmp_path):
    async with node(tmp_path) as n:
        worker = await n.worker()
        n.start(1, f"{PID}; link.send([Succeeded(1, 1, 1, 2, value)])", worker=worker)
        await until(lambda: n.of(Succeeded, 1))
        pid = msgspec.msgpack.decode(n.of(Succeeded, 1)[0].body)
        n.start(2, SLEEPS, worker=worker)
        n.start(3, worker=worker, claimed=True)
        await n.began(2)
        os.kill(pid, signal.SIGKILL)
        await n.gone(worker)

    (failed,) = n.of(Failed)
    assert (failed.task_no, failed.interrupted) == (2, True)
    assert n.recalled() == [3]
    # In the other order, a returned claimed try might be assigned to the same worker again.
    assert n.reports.index(WorkerGone(worker)) < n.reports.index(Recalled(((3, 1),)))


async def test_tries_whose_reports_died_with_their_worker_return_uncounted(tmp_path):
    begins = "open({path!r}, 'w').close(); " + SLEEPS
    async with node(tmp_path) as n:
        worker = await n.worker()
        n.start(1, f"{PID}; link.send([Succeeded(1, 1, 1, 2, value)])", worker=worker)
        await until(lambda: n.of(Succeeded, 1))
        pid = msgspec.msgpack.decode(n.of(Succeeded, 1)[0].body)
        n.far.muted.add(worker)
        n.start(2, begins.format(path=str(tmp_path / "begun")), worker=worker)
        n.start(3, worker=worker, claimed=True)
        await until((tmp_path / "begun").exists)
        os.kill(pid, signal.SIGKILL)
        await n.gone(worker)

    assert not n.of(Failed)
    assert n.recalled() == [2, 3]


async def test_a_try_that_kills_its_worker_before_its_report_is_charged_in_the_end(tmp_path):
    async with node(tmp_path) as n:
        for count in range(1, 5):
            n.want(1)
            await until(partial(n.has_seen, count))
            worker = n.of(WorkerUp)[count - 1].worker
            if count == 1:  # a worker that has reported an earlier try
                n.start(1, worker=worker)
                await until(lambda: n.of(Succeeded, 1))
            n.far.muted.add(worker)
            n.start(2, "os.kill(os.getpid(), signal.SIGKILL)", worker=worker)
            await n.gone(worker)

    assert n.recalled() == [2, 2, 2]
    (failed,) = n.of(Failed)
    assert (failed.task_no, failed.interrupted) == (2, True)


async def test_a_worker_that_exits_charges_its_try(tmp_path):
    async with node(tmp_path) as n:
        worker = await n.worker()
        n.start(1, "os._exit(3)", worker=worker)
        await n.gone(worker)
        await until(lambda: len(n.of(WorkerUp)) == 2)  # it is replaced

    (failed,) = n.of(Failed)
    assert (failed.failure.reason, failed.interrupted) == ("exit", False)


async def test_a_stopped_try_ends_with_its_worker_and_reports_nothing(tmp_path):
    async with node(tmp_path) as n:
        worker = await n.worker()
        n.start(1, SLEEPS, worker=worker)
        n.start(2, worker=worker, claimed=True)
        await n.began(1)
        n.executors.stop_try(StopTry(Body.FUNCTION, worker, 1, 1, "cancelled"))
        await n.gone(worker)

    assert not n.of(Failed)
    assert n.recalled() == [2]


async def test_a_try_that_takes_too_long_fails_with_its_timeout(tmp_path):
    async with node(tmp_path) as n:
        worker = await n.worker()
        n.start(1, SLEEPS, worker=worker, timeout_us=50_000)
        await n.gone(worker)

    (failed,) = n.of(Failed)
    assert (failed.failure.type, failed.interrupted) == ("TaskTimeout", False)


async def test_a_lost_worker_that_is_back_goes_on_with_its_try(tmp_path):
    async with node(tmp_path) as n:
        worker = await n.worker()
        go_on = tmp_path / "go-on"
        n.start(1, f"while not os.path.exists({str(go_on)!r}): time.sleep(0.001)", worker=worker)
        await n.began(1)
        n.far.lose(worker)
        n.far.lose(worker)
        (told,) = n.of(WorkerUnresponsive)
        assert (told.worker, told.why) == (worker, "the link is broken")
        assert told.until - told.since == 60_000_000
        go_on.touch()
        await anyio.sleep(0.05)
        assert not n.of(Succeeded)
        n.far.find_again(worker)
        await until(lambda: n.of(Succeeded, 1))

    assert n.of(WorkerUnresponsive)[-1] == WorkerUnresponsive(worker)
    assert not n.of(Failed)


async def test_a_lost_worker_that_was_killed_does_not_count_as_back(tmp_path):
    async with node(tmp_path) as n:
        worker = await n.worker()
        n.start(1, SLEEPS, worker=worker)
        await n.began(1)
        n.far.lose(worker)
        n.executors.stop_try(StopTry(Body.FUNCTION, worker, 1, 1, "cancelled"))
        n.far.find_again(worker)  # only now the order arrives, so its body may still run
        await n.gone(worker)

    assert [bool(one.why) for one in n.of(WorkerUnresponsive)] == [True]


async def test_a_lost_worker_is_given_up_after_the_patience_and_never_reports_again(tmp_path):
    async with node(tmp_path, patience_seconds=0.1) as n:
        worker = await n.worker()
        n.start(1, SLEEPS, worker=worker)
        n.start(2, worker=worker, claimed=True)
        await n.began(1)
        n.far.lose(worker)
        await n.gone(worker)
        (failed,) = n.of(Failed)
        assert (failed.failure.message, failed.interrupted) == ("the link is broken", True)
        assert n.recalled() == [2]
        n.start(3, worker=worker)
        assert n.recalled() == [2, 3]
        said = len(n.reports)
        n.far.find_again(worker)  # too late: it is killed now, and nothing of it counts
        await until(lambda: worker not in n.far._near._up)
        later = [one for one in n.reports[said:] if not isinstance(one, WorkerUp | WorkerIdle)]
        assert not later


async def test_a_worker_that_is_back_for_a_moment_only_is_given_up(tmp_path):
    async with node(tmp_path, patience_seconds=0.1) as n:
        worker = await n.worker()
        n.start(1, SLEEPS, worker=worker)
        await n.began(1)
        n.far.lose(worker)
        await anyio.sleep(0.01)
        n.far.find_again(worker)
        n.far.lose(worker)
        assert [bool(one.why) for one in n.of(WorkerUnresponsive)] == [True, False, True]
        await n.gone(worker)

    assert [one.task_no for one in n.of(Failed)] == [1]


async def test_a_worker_that_was_lost_twice_and_is_back_is_not_given_up(tmp_path):
    async with node(tmp_path, patience_seconds=0.2) as n:
        worker = await n.worker()
        n.far.lose(worker)
        await anyio.sleep(0.01)
        n.far.find_again(worker)
        n.far.lose(worker)
        await anyio.sleep(0.05)
        n.far.find_again(worker)
        await anyio.sleep(0.3)
        assert WorkerGone(worker) not in n.reports


async def test_a_worker_without_work_is_reported_and_ends_when_it_is_retired(tmp_path):
    async with node(tmp_path) as n:
        worker = await n.worker()
        await until(lambda: WorkerIdle(worker) in n.reports)
        n.want(0)
        n.executors.retire(RetireWorker(worker))
        await n.gone(worker)

    assert not n.of(Failed)


async def test_a_busy_worker_is_not_reported_as_idle(tmp_path):
    async with node(tmp_path) as n:
        n.far.idle_seconds = 0.05
        worker = await n.worker()
        n.start(1, "time.sleep(0.5)", worker=worker)
        await n.began(1)
        del n.reports[:]
        await until(lambda: n.of(Succeeded, 1))
        assert not n.of(WorkerIdle)
        await until(lambda: n.of(WorkerIdle))


async def test_a_worker_that_is_not_to_stay_idle_at_all_is_reported_now_and_then(
    tmp_path, monkeypatch
):
    async with node(tmp_path) as n:
        n.far.idle_seconds = 0.0
        worker = await n.worker()
        await until(lambda: n.of(WorkerIdle))
        await anyio.sleep(0.2)
        assert n.of(WorkerIdle) == [WorkerIdle(worker)]
        monkeypatch.setattr(remote_executor, "_IDLE_AGAIN_SECONDS", 0.0)
        await until(lambda: len(n.of(WorkerIdle)) == 3)  # the engine may not have retired it


async def test_workers_that_die_before_a_report_charge_the_third_try(tmp_path):
    async with node(tmp_path, source="[welcome] = link.receive(); link.receive()") as n:
        for count in (1, 2, 3):
            n.want(1)
            await until(partial(n.has_seen, count))
            worker = n.of(WorkerUp)[count - 1].worker
            n.start(1, worker=worker)
            await n.gone(worker)

    assert n.recalled() == [1, 1]
    (failed,) = n.of(Failed)
    assert failed.interrupted


def framed(message):
    return len(message).to_bytes(4, "little") + message


PONG = msgspec.msgpack.encode(Pong())
BAD_TEXT = msgspec.msgpack.encode(Query(1, 7, "??", b"")).replace(b"??", b"\xff\xfe")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        framed(b"\x91\xc1"),
        framed(b"\x91" + BAD_TEXT),
        framed(b"\x91\x96" + PONG[1:] + b"\x91" * 100_000 + b"\xc0"),
    ],
    ids=["too long", "no msgpack", "bad text", "too deep"],
)
async def test_a_worker_that_sends_nonsense_is_killed(tmp_path, data):
    async with node(tmp_path) as n:
        worker = await n.worker()
        n.executors._all["far"].frame(worker, data)
        await n.gone(worker)
        n.want(1)
        await until(lambda: len(n.of(WorkerUp)) == 2)  # others can still be had


ASKS = """
orders.clear()
link.send([Query(9, {run_no}, {kind!r}, {body!r})])
got = None
while got is None:
    got = next((one for one in orders if isinstance(one, Reply) and one.question == 9), None)
    time.sleep(0.001)
value = msgspec.msgpack.encode(got)
"""


async def asked(n, worker, kind, body, *, number=1, run_no=7):
    """Return the reply to a query of a worker's try."""
    n.start(number, ASKS.format(kind=kind, body=body, run_no=run_no), worker=worker)
    await until(lambda: n.of(Succeeded, number))
    (ended,) = n.of(Succeeded, number)
    return msgspec.msgpack.decode(ended.body, type=Reply)


def wanted(task_no, offset=0, start_no=1):
    return msgspec.msgpack.encode(ResultWanted(task_no, start_no, offset))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("code", b"\xa2\xff\xfe"),
        ("code", b"\xc1"),
        ("fetch_result", b"\xa2\xff\xfe"),
        ("fetch_result", wanted(1, 2**63)),
        ("fetch_result", b"\x94\x01\x01\x00" + b"\x91" * 100_000 + b"\xc0"),
        ("store_result", b"\xa2\xff\xfe"),
    ],
    ids=["bad text", "bad code", "bad fetch", "offset", "too deep", "bad store"],
)
async def test_a_query_that_makes_no_sense_is_refused_and_the_worker_goes_on(tmp_path, kind, body):
    write_value(result_path(tmp_path / "results", 1, 1), b"result")
    async with node(tmp_path) as n:
        worker = await n.worker()
        assert (await asked(n, worker, kind, body)).error
        n.start(2, worker=worker)
        await until(lambda: n.of(Succeeded, 2))


async def test_a_worker_that_asks_for_more_and_more_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(home_queries, "ASKED_BYTES", 10_000)
    async with node(tmp_path) as n:
        worker = await n.worker()
        asks = f"link.send([Query(9, 7, {STORE_QUERY!r}, bytes(20_000))]); {SLEEPS}"
        n.start(1, asks, worker=worker)
        await n.gone(worker)


async def test_a_worker_reads_results_of_its_own_runs_only(tmp_path):
    for number in (2, 50, 51, 52):
        write_value(result_path(tmp_path / "results", number, 1), b"result")
    async with node(tmp_path) as n:
        n.runs, n.outages = {50: 7, 51: 8}, 1
        worker = await n.worker()
        for number, task_no in ((1, 50), (2, 2)):  # of its run, and its own
            found = await asked(n, worker, FETCH_QUERY, wanted(task_no), number=number)
            assert msgspec.msgpack.decode(found.body, type=ResultPiece).data == b"result"
        for number, task_no in ((3, 51), (4, 52)):
            refused = await asked(n, worker, FETCH_QUERY, wanted(task_no), number=number)
            assert refused.error == f"task number {task_no} does not belong to run number 7"
            assert not refused.body
        other = await asked(n, worker, FETCH_QUERY, wanted(51), number=5, run_no=8)
        assert "does not belong to this worker" in other.error
        assert not n.outages


@pytest.mark.parametrize(
    ("task_no", "is_its_own"), [(1, True), (2, False), (50, False)], ids=["own", "waits", "other"]
)
async def test_a_worker_stores_results_of_its_begun_tries_only(tmp_path, task_no, is_its_own):
    path = result_path(tmp_path / "results", task_no, 1)
    write_value(path, b"old")
    piece = msgspec.msgpack.encode(ResultPiece(task_no, 1, 0, 3, b"new"))
    async with node(tmp_path) as n:
        n.runs = {1: 7, 2: 7, 50: 7}
        worker = await n.worker()
        asks = "while not waiting.qsize(): time.sleep(0.001)\n" + ASKS  # the other try is there
        n.start(1, asks.format(kind=STORE_QUERY, body=piece, run_no=7), worker=worker)
        n.start(2, worker=worker, claimed=True)
        await until(lambda: n.of(Succeeded, 1))
        (ended,) = n.of(Succeeded, 1)

    error = msgspec.msgpack.decode(ended.body, type=Reply).error
    assert error == "" if is_its_own else "only the result of a try" in error
    assert path.read_bytes() == (b"new" if is_its_own else b"old")


async def test_a_backend_that_fails_is_started_again_and_its_workers_are_given_up(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(remote_executor, "FIRST_DELAY_SECONDS", 0.01)
    async with node(tmp_path, patience_seconds=0.05) as n:
        worker = await n.worker()
        n.start(1, SLEEPS, worker=worker)
        await n.began(1)
        n.far._near._group.start_soon(_fail)
        await n.gone(worker)
        await until(lambda: len(n.of(WorkerUp)) == 2)

    (failed,) = n.of(Failed)
    assert failed.interrupted
    (told,) = n.of(ExecutorUnavailable)
    assert told.spec == FAR
    assert "executor 'far' has failed" in told.why


@pytest.mark.parametrize("broken", ["send", "kill", "close", "retire"])
async def test_an_error_in_a_plug_in_costs_no_more_than_its_worker(tmp_path, monkeypatch, broken):
    async with node(tmp_path) as n:
        worker = await n.worker()
        there = n.executors._all["far"].workers[worker]
        owner = there._channel if broken in {"send", "close"} else n.far
        call = getattr(owner, broken)

        def fails(*arguments):
            if broken != "send":
                call(*arguments)
            raise RuntimeError("a plug-in has failed")

        monkeypatch.setattr(owner, broken, fails)
        if broken == "retire":
            there.dismiss()
        else:
            n.start(1, SLEEPS, worker=worker)
            if broken != "send":
                await n.began(1)
            n.executors.stop_try(StopTry(Body.FUNCTION, worker, 1, 1, "cancelled"))
        await n.gone(worker)
        n.want(1)
        await until(lambda: len(n.of(WorkerUp)) == 2)


async def test_a_kill_that_the_plug_in_did_not_accept_is_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_executor, "FIRST_DELAY_SECONDS", 0.01)
    async with node(tmp_path) as n:
        worker = await n.worker()
        n.start(1, SLEEPS, worker=worker)
        await n.began(1)
        kill, refusals = n.far.kill, [RuntimeError("no"), RuntimeError("not yet")]

        def refuses(number):
            if refusals:
                raise refusals.pop()
            kill(number)

        monkeypatch.setattr(n.far, "kill", refuses)
        n.executors.stop_try(StopTry(Body.FUNCTION, worker, 1, 1, "cancelled"))
        await n.gone(worker)
        assert not refusals


@pytest.mark.parametrize("value", [None, float("nan"), -1, float("inf")])
async def test_a_plug_in_that_does_not_state_its_times_has_the_usual_ones(
    tmp_path, monkeypatch, value
):
    monkeypatch.setattr(remote_executor, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(remote_executor, "_PATIENCE_SECONDS", 0.01)
    async with node(tmp_path) as n:
        n.far.idle_seconds = n.far.patience_seconds = value
        worker = await n.worker()
        await until(lambda: WorkerIdle(worker) in n.reports)
        n.far.lose(worker)
        await n.gone(worker)


async def _fail():
    raise RuntimeError("the scheduler is gone")


async def test_a_demand_for_an_executor_that_the_settings_lack_is_answered(tmp_path):
    async with node(tmp_path) as n:
        n.want(1, WorkerSpec("dask"))

    (told,) = n.of(ExecutorUnavailable)
    assert "[executors.dask]" in told.why


async def test_all_workers_end_with_the_daemon(tmp_path):
    async with node(tmp_path) as n:
        worker = await n.worker()
        n.start(1, SLEEPS, worker=worker)
        await n.began(1)
        pid = n.executors._all["far"].workers[worker].info.pid
        assert is_alive(pid)

    assert not is_alive(pid)


def test_what_a_worker_reports_of_itself_can_be_stored_and_shown():
    def located(**facts):
        return location_of(WorkerInfo(**{"host": "node-7", "pid": 4711, "log_nonce": "", **facts}))

    assert located() == WorkerLocation("node-7", "process 4711")
    assert located(address="tcp://10.0.0.7:1").worker == "process 4711 at tcp://10.0.0.7:1"
    assert located(host="a\0b\x1b[31m\udce9\u202e").host == "a?b?[31m??"
    assert [
        len(text) for text in msgspec.structs.astuple(located(host="h" * 999, address="a" * 999))
    ] == [200, 200]


@pytest.mark.parametrize(
    ("url", "is_linked"),
    [
        ("http://scheduler:8787/status", True),
        ("https://hub.example/proxy/8787", True),
        ("", False),
        ("javascript:alert(1)", False),
        ("file:///etc/passwd", False),
        ("http://host/\n", False),
        ("http://host/" + "x" * 2_000, False),
    ],
)
def test_only_pages_of_the_web_are_linked_to(url, is_linked):
    assert page_of(url) == (url if is_linked else "")
