"""The contract of executor backends, as tests that every backend has to pass.

In a test module of the backend, for pytest::

    class TestMine(ExecutorContract):
        spec = WorkerSpec("mine")

        @asynccontextmanager
        async def backend(self, folder: Path) -> AsyncIterator[ExecutorBackend]:
            yield MyBackend("mine", {"address": ...})

Each test runs its own event loop, so no pytest plug-in is needed. The workers run aioflow's real
worker program, with a DAG file of this module.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from msgspec.structs import replace

from aioflow.author.codec import decode
from aioflow.executors.backend import (
    ExecutorBackend,
    ExecutorLease,
    WorkerChannel,
    WorkerDemand,
    WorkerInfo,
    WorkerNo,
    WorkerSpec,
)
from aioflow.model.dag import TaskSpec
from aioflow.model.ids import TaskNo
from aioflow.model.states import Failure
from aioflow.protocol.commands import Hello, Recall, Reply, RunInfo, StartTask
from aioflow.protocol.reports import Failed, Query, Recalled, Report, Succeeded, TaskStarted
from aioflow.worker.code.fetch import CODE_QUERY, read_version
from aioflow.worker.link import complete_frames, frames

__all__ = (
    "ExecutorContract",
    "Recorder",
)

VERSION = "contract"
LARGE_OUTPUT_BYTES = 64 * 1024 * 1024
_OUTPUT_LINES = 20_000
_BLOCKED_SECONDS = 1.0

_DAG_FILE = f"""
import os, signal, subprocess, sys, time
from aioflow import dag, task

@task
def returns() -> int:
    return 42

@task
def sleeps() -> int:
    time.sleep(600)
    return 0

@task
def exits() -> None:
    os._exit(3)

@task
def crashes() -> None:
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)

@task
def prints() -> None:
    for n in range({_OUTPUT_LINES}):
        print(f"line {{n}}")

@task
def prints_much() -> None:
    for _ in range({LARGE_OUTPUT_BYTES} // 65536):
        sys.stdout.write("x" * 65535 + "\\n")

@task
def leaves_a_process() -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(f"started {{child.pid}}.", flush=True)
    time.sleep(600)

@task
def returns_much() -> str:
    return "y" * 60_000

@dag
def contract():
    returns(); sleeps(); exits(); crashes(); prints(); prints_much(); leaves_a_process()
    returns_much()
"""
_TASKS = (
    "returns",
    "sleeps",
    "exits",
    "crashes",
    "prints",
    "prints_much",
    "leaves_a_process",
    "returns_much",
)
_RUN = RunInfo(1, "r1", "contract", VERSION, "contract.py", None, 0, None, 1)

Kind = TypeVar("Kind")


class Recorder:
    """The daemon as a backend sees it: implements ``WorkerEvents``, and checks their order.

    Attributes:
        workers: Channel and facts of each worker that came up, by number.
        specs: The spec for which each worker was started.
        gone: How each dead worker ended.
        reports: The reports of each worker.
        printed: The output of each worker.
        lost: Each lost worker with the reason, in order. The reason is empty if the worker is back.
        whys: Why workers are unavailable, by spec.
        may_print: Output is accepted while this is set.
    """

    def __init__(self, folder: Path) -> None:
        self.workers: dict[WorkerNo, tuple[WorkerChannel, WorkerInfo]] = {}
        self.specs: dict[WorkerNo, WorkerSpec] = {}
        self.gone: dict[WorkerNo, Failure] = {}
        self.reports: dict[WorkerNo, list[Report]] = {}
        self.printed: dict[WorkerNo, bytearray] = {}
        self.lost: list[tuple[WorkerNo, str]] = []
        self.whys: dict[WorkerSpec, str] = {}
        self.may_print = anyio.Event()
        self.may_print.set()
        self._folder = folder
        self._numbers: list[WorkerNo] = []
        self._buffers: dict[WorkerNo, bytearray] = {}
        self._changed = anyio.Event()
        self._task_no = 0
        self._decoder = msgspec.msgpack.Decoder(list[Report])

    # ── WorkerEvents ────────────────────────────────────────────────────────────────────

    def next_worker_no(self) -> WorkerNo:
        """See ``WorkerEvents``."""
        self._numbers.append(100 + len(self._numbers))
        return self._numbers[-1]

    def worker_up(
        self, worker_no: WorkerNo, spec: WorkerSpec, channel: WorkerChannel, info: WorkerInfo
    ) -> None:
        """See ``WorkerEvents``."""
        assert worker_no in self._numbers, "a number that next_worker_no did not return"
        assert worker_no not in self.workers, "worker_up twice"
        assert info.log_nonce, "the nonce is missing"
        assert info.host, "the host is missing"
        self.workers[worker_no] = channel, info
        self.specs[worker_no] = spec
        self.reports[worker_no], self.printed[worker_no] = [], bytearray()
        self._buffers[worker_no] = bytearray()
        hello = Hello(
            "slot",
            info.code_folder or str(self._folder / "code"),
            info.results_folder or str(self._folder / "results"),
            fetches_code=bool(info.code_folder),
        )
        self.send(worker_no, hello, _RUN)
        self._note()

    def frame(self, worker_no: WorkerNo, data: bytes) -> None:
        """See ``WorkerEvents``."""
        self._check_alive(worker_no)
        self._buffers[worker_no] += data
        for frame in complete_frames(self._buffers[worker_no]):
            for report in self._decoder.decode(frame):
                if isinstance(report, Query) and report.kind == CODE_QUERY:
                    body = read_version(self._folder / "code" / VERSION)
                    self.send(worker_no, Reply(report.question, body))
                self.reports[worker_no].append(report)
        self._note()

    async def output(self, worker_no: WorkerNo, data: bytes) -> None:
        """See ``WorkerEvents``."""
        self._check_alive(worker_no)
        self.printed[worker_no] += data
        self._note()
        await self.may_print.wait()

    def worker_lost(self, worker_no: WorkerNo, why: str) -> None:
        """See ``WorkerEvents``."""
        self._check_alive(worker_no)
        self.lost.append((worker_no, why))
        self._note()

    def worker_gone(self, worker_no: WorkerNo, failure: Failure) -> None:
        """See ``WorkerEvents``."""
        self._check_alive(worker_no)
        self.gone[worker_no] = failure
        self._note()

    def unavailable(self, spec: WorkerSpec, why: str) -> None:
        """See ``WorkerEvents``."""
        self.whys[spec] = why
        self._note()

    def _check_alive(self, worker_no: WorkerNo) -> None:
        assert worker_no in self.workers, "an event before worker_up"
        assert worker_no not in self.gone, "an event after worker_gone"

    # ── for tests ───────────────────────────────────────────────────────────────────────

    def _note(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait for a condition, which is checked after each event."""
        while not is_so():
            await self._changed.wait()

    def alive(self) -> list[WorkerNo]:
        """Return the workers that are up."""
        return [number for number in self.workers if number not in self.gone]

    async def worker(self, count: int = 1) -> WorkerNo:
        """Wait until ``count`` workers are up; return the newest."""
        await self.until(lambda: len(self.alive()) >= count)
        return self.alive()[-1]

    def send(self, worker_no: WorkerNo, *commands: object) -> None:
        """Send commands to a worker, in as few frames as possible."""
        channel, _ = self.workers[worker_no]
        channel.send(b"".join(frames(commands)))

    def start(self, worker_no: WorkerNo, name: str) -> TaskNo:
        """Send a try of a task of the DAG file to a worker; return its number."""
        self._task_no += 1
        self.send(worker_no, StartTask(1, self._task_no, 1, _TASKS.index(name), -1, 1))
        return self._task_no

    def found(self, worker_no: WorkerNo, kind: type[Kind]) -> list[Kind]:
        """Return the reports of this kind that a worker has sent."""
        return [report for report in self.reports[worker_no] if isinstance(report, kind)]

    async def began(self, worker_no: WorkerNo, task_no: TaskNo) -> None:
        """Wait until a try has begun."""
        await self.until(
            lambda: any(one.task_no == task_no for one in self.found(worker_no, TaskStarted))
        )

    async def value(self, worker_no: WorkerNo, task_no: TaskNo) -> Any:
        """Wait for the end of a try, and return its value."""
        ended: list[Any] = []

        def has_ended() -> bool:
            reports = (*self.found(worker_no, Succeeded), *self.found(worker_no, Failed))
            ended[:] = [one for one in reports if one.task_no == task_no]
            return bool(ended)

        await self.until(has_ended)
        assert isinstance(ended[0], Succeeded), f"the try has failed: {ended[0]}"
        return None if ended[0].body is None else decode(ended[0].body)

    async def until_gone(self, worker_no: WorkerNo) -> Failure:
        """Wait until a worker is dead; return how it ended."""
        await self.until(lambda: worker_no in self.gone)
        return self.gone[worker_no]


def is_alive(pid: int) -> bool:
    """Return whether a process is running on this machine: it exists, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class ExecutorContract:
    """The tests of the contract. Subclass this class in a test module.

    Attributes:
        spec: A spec of which the backend can have two workers at the same time.
        patience: Seconds for which a test waits for the backend before it fails.
        impossible: A task that the backend refuses; ``None`` to skip that test.
    """

    spec: WorkerSpec
    patience: float = 30.0
    impossible: TaskSpec | None = None

    def backend(self, folder: Path) -> AbstractAsyncContextManager[ExecutorBackend]:
        """Create a backend for one test, with an empty folder."""
        raise NotImplementedError

    async def lose(self, backend: ExecutorBackend, worker_no: WorkerNo) -> bool:
        """Cut the connection to a worker. Return ``False``, to skip the test, if impossible."""
        return False

    async def find_again(self, backend: ExecutorBackend, worker_no: WorkerNo) -> None:
        """Restore the connection to a lost worker."""
        raise NotImplementedError

    # ── the harness ─────────────────────────────────────────────────────────────────────

    def _run(self, test: Callable[[ExecutorBackend, Recorder], Awaitable[None]]) -> None:
        with tempfile.TemporaryDirectory(prefix="aioflow-contract-") as name:
            folder = Path(name)
            code = folder / "code" / VERSION
            code.mkdir(parents=True)
            (folder / "results").mkdir()
            (code / "contract.py").write_text(_DAG_FILE)
            anyio.run(self._within, folder, test)

    async def _within(
        self, folder: Path, test: Callable[[ExecutorBackend, Recorder], Awaitable[None]]
    ) -> None:
        async with self._serving(folder) as (backend, recorder):
            with anyio.fail_after(self.patience):
                await test(backend, recorder)

    @asynccontextmanager
    async def _serving(self, folder: Path) -> AsyncIterator[tuple[ExecutorBackend, Recorder]]:
        lease = ExecutorLease(
            home_id=f"contract-{folder.name}", node_no=1, epoch=1, secret="s" * 64
        )
        recorder = Recorder(folder)
        async with self.backend(folder) as backend, anyio.create_task_group() as group:
            await group.start(backend.run, lease, recorder)
            yield backend, recorder
            recorder.may_print.set()
            group.cancel_scope.cancel()
        for worker_no in recorder.alive():
            _, info = recorder.workers[worker_no]
            if info.host == socket.gethostname():
                assert not is_alive(info.pid), "a worker has outlived the backend"

    def _want(self, backend: ExecutorBackend, count: int) -> None:
        backend.set_demand([WorkerDemand(self.spec, count)] if count else [])

    # ── starts and ends ─────────────────────────────────────────────────────────────────

    def test_nothing_starts_without_demand(self) -> None:
        """No worker is started without demand, and an empty demand is accepted."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 0)
            with anyio.move_on_after(0.2):
                await recorder.worker()
            assert not recorder.workers

        self._run(test)

    def test_a_demanded_worker_runs_tries(self) -> None:
        """A worker comes up for its spec, and runs one try after the other."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            number = await recorder.worker()
            assert recorder.specs[number] == self.spec
            assert await recorder.value(number, recorder.start(number, "returns")) == 42
            assert (
                await recorder.value(number, recorder.start(number, "returns_much")) == "y" * 60_000
            )
            assert await recorder.value(number, recorder.start(number, "returns")) == 42

        self._run(test)

    def test_demand_starts_more_workers_but_not_more_than_demanded(self) -> None:
        """Two workers run at the same time, and a repeated demand starts no third one."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            first = await recorder.worker()
            self._want(backend, 2)
            second = await recorder.worker(2)
            for number in (first, second):
                await recorder.began(number, recorder.start(number, "sleeps"))
            self._want(backend, 2)
            with anyio.move_on_after(0.3):
                await recorder.worker(3)
            assert recorder.alive() == [first, second]

        self._run(test)

    def test_a_retired_worker_ends(self) -> None:
        """A retired worker ends, and another takes its place only if there is demand."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            number = await recorder.worker()
            self._want(backend, 0)
            backend.retire(number)
            backend.retire(number)
            await recorder.until_gone(number)
            backend.retire(number)
            self._want(backend, 1)
            assert await recorder.worker() != number

        self._run(test)

    def test_a_worker_without_demand_is_not_ended_by_the_backend(self) -> None:
        """Only the daemon retires a worker: a try may be on its way to a worker without demand."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            number = await recorder.worker()
            self._want(backend, 0)
            with anyio.move_on_after(0.3):
                await recorder.until_gone(number)
            assert await recorder.value(number, recorder.start(number, "returns")) == 42

        self._run(test)

    def test_claimed_tries_run_in_order_and_are_recalled(self) -> None:
        """Several tries sent at once begin in order; those that have not begun can be recalled."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            number = await recorder.worker()
            sent = [recorder.start(number, "returns") for _ in range(50)]
            sent.append(recorder.start(number, "sleeps"))
            claimed = [recorder.start(number, "returns") for _ in range(3)]
            await recorder.began(number, sent[-1])
            assert [one.task_no for one in recorder.found(number, TaskStarted)] == sent
            recorder.send(number, Recall(tuple((task_no, 1) for task_no in claimed)))
            await recorder.until(lambda: recorder.found(number, Recalled))
            (recalled,) = recorder.found(number, Recalled)
            assert [task_no for task_no, _ in recalled.tries] == claimed

        self._run(test)

    # ── deaths ──────────────────────────────────────────────────────────────────────────

    def test_a_killed_worker_is_dead_with_all_it_started(self) -> None:
        """Once a killed worker is reported gone, nothing that it started runs any more."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            number = await recorder.worker()
            recorder.start(number, "leaves_a_process")
            printed = recorder.printed[number]
            await recorder.until(lambda: b"." in printed.partition(b"started ")[2])
            left = int(printed.partition(b"started ")[2].partition(b".")[0])
            self._want(backend, 0)
            backend.kill(number)
            backend.kill(number)
            await recorder.until_gone(number)
            backend.kill(number)
            _, info = recorder.workers[number]
            if info.host == socket.gethostname():
                assert not is_alive(info.pid)
                assert not is_alive(left)

        self._run(test)

    def test_a_dead_worker_tells_how_it_ended_and_is_replaced(self) -> None:
        """An exit and a crash have different reasons. Another worker follows if there is demand."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            for name, reason in (("exits", "exit"), ("crashes", "crashed")):
                number = await recorder.worker()
                recorder.start(number, name)
                failure = await recorder.until_gone(number)
                assert failure.reason == reason, failure
            number = await recorder.worker()
            assert await recorder.value(number, recorder.start(number, "returns")) == 42

        self._run(test)

    def test_a_death_from_outside_charges_no_try(self) -> None:
        """A worker killed by its machine has the reason ``killed``, so its try is not charged."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            number = await recorder.worker()
            _, info = recorder.workers[number]
            if info.host != socket.gethostname():
                return
            await recorder.began(number, recorder.start(number, "sleeps"))
            os.kill(info.pid, 9)
            failure = await recorder.until_gone(number)
            assert failure.reason == "killed", failure

        self._run(test)

    # ── output ──────────────────────────────────────────────────────────────────────────

    def test_output_is_complete_and_in_order_before_the_end(self) -> None:
        """All output of a dead worker was passed on before ``worker_gone``, in order."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            number = await recorder.worker()
            recorder.start(number, "prints")
            recorder.start(number, "crashes")
            await recorder.until_gone(number)
            lines = bytes(recorder.printed[number]).splitlines()
            numbered = [line for line in lines if line.startswith(b"line ")]
            assert numbered == [b"line %d" % n for n in range(_OUTPUT_LINES)]
            assert b"last words" in lines

        self._run(test)

    def test_a_slow_daemon_slows_the_program_and_loses_nothing(self) -> None:
        """While the daemon accepts no output, the program waits. No output piles up or is lost."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            number = await recorder.worker()
            assert await recorder.value(number, recorder.start(number, "returns")) == 42
            recorder.may_print = anyio.Event()
            task_no = recorder.start(number, "prints_much")
            await recorder.began(number, task_no)
            with anyio.move_on_after(_BLOCKED_SECONDS):
                await recorder.value(number, task_no)
            assert not any(one.task_no == task_no for one in recorder.found(number, Succeeded))
            assert len(recorder.printed[number]) < LARGE_OUTPUT_BYTES // 2
            recorder.may_print.set()
            await recorder.value(number, task_no)
            whole = LARGE_OUTPUT_BYTES // 65536 * 65535
            await recorder.until(lambda: len(recorder.printed[number]) >= LARGE_OUTPUT_BYTES)
            assert recorder.printed[number].count(b"x") == whole

        self._run(test)

    # ── contact ─────────────────────────────────────────────────────────────────────────

    def test_a_lost_worker_is_found_again_or_gone(self) -> None:
        """A lost worker is reported and keeps its tries. Nothing is reported twice later."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            self._want(backend, 1)
            number = await recorder.worker()
            await recorder.began(number, recorder.start(number, "sleeps"))
            if not await self.lose(backend, number):
                return
            await recorder.until(lambda: recorder.lost)
            assert recorder.lost[0][0] == number
            assert recorder.lost[0][1]
            await self.find_again(backend, number)
            await recorder.until(lambda: number in recorder.gone or (number, "") in recorder.lost)
            if number not in recorder.gone:
                assert len(recorder.found(number, TaskStarted)) == 1

        self._run(test)

    # ── the rest ────────────────────────────────────────────────────────────────────────

    def test_it_states_its_limits(self) -> None:
        """The properties have sensible values, and an ordinary task is accepted."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            assert backend.name == self.spec.executor
            assert backend.max_workers >= 2
            assert backend.idle_seconds >= 0
            assert backend.patience_seconds >= 0
            ordinary = TaskSpec(
                task_id="t",
                executor=self.spec.executor,
                resources=self.spec.resources,
                executor_options=self.spec.options,
            )
            assert backend.check(ordinary) == ""
            if self.impossible is not None:
                why = backend.check(replace(self.impossible, executor=self.spec.executor))
                assert why, "an impossible task is accepted"

        self._run(test)

    def test_calls_without_effect_are_harmless(self) -> None:
        """Commands for unknown workers, and messages to a worker that is gone, do nothing."""

        async def test(backend: ExecutorBackend, recorder: Recorder) -> None:
            backend.kill(99)
            backend.retire(99)
            self._want(backend, 1)
            number = await recorder.worker()
            channel, _ = recorder.workers[number]
            backend.kill(number)
            self._want(backend, 0)
            await recorder.until_gone(number)
            with contextlib.suppress(StopIteration):
                channel.send(bytes(next(frames([_RUN]))))
            channel.close()
            channel.close()

        self._run(test)
