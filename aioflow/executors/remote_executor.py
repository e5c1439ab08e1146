"""The daemon's side of executors other than the local one: tries in the workers of a backend.

A backend provides workers, see ``executors.backend``. The core decides which try runs where. This
module is in between: it tracks the tries of each worker, as ``worker_process`` does for a process
of this machine, and reports their outcomes. If a worker dies, its begun try is lost, and its
claimed tries return to the engine.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from aioflow.clock import backoff_seconds
from aioflow.errors import LinkClosed
from aioflow.executors.backend import (
    ExecutorBackend,
    ExecutorLease,
    WorkerChannel,
    WorkerInfo,
)
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.home_queries import OWN_QUERIES, HomeQueries, Reservation
from aioflow.executors.worker_process import Heartbeat, Process, TryKey, key_of
from aioflow.model.ids import RunNo
from aioflow.model.states import Failure
from aioflow.model.workers import WorkerDemand, WorkerLocation, WorkerNo, WorkerSpec
from aioflow.protocol.commands import Hello
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
from aioflow.protocol.reports import CancelQuery, Query, Recalled, Report
from aioflow.worker.link import complete_frames, frames
from aioflow.worker.query.messages import UNDECODABLE

__all__ = (
    "RemoteExecutor",
    "RemoteExecutors",
    "RemoteWorker",
    "location_of",
    "page_of",
)

SILENT_DEATHS_LIMIT = 3
"""Number of consecutive workers of a spec that die without any report until a try fails."""

_NO_FROZEN_SECONDS = 1e8
"""Heartbeat limit that is never reached, because the backend reports silent workers."""

_LOCATION_LIMIT, _URL_LIMIT = 200, 2_000
_LONGEST_SECONDS = 1e8
_IDLE_SECONDS, _PATIENCE_SECONDS = 10.0, 70.0
"""Defaults for a backend that fails to state its values."""

FIRST_DELAY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 60.0
"""Longest delay before a failed backend is started again, or a failed call of it is repeated.

If a backend has run for this long, its earlier failures do not count any more.
"""

_IDLE_LOOKS = 4
_SHORTEST_LOOK_SECONDS = 0.05
_IDLE_AGAIN_SECONDS = 1.0
"""Seconds, in addition to ``idle_seconds``, until a worker that stays idle is reported again."""

Stated = TypeVar("Stated")

_logger = logging.getLogger(__name__)


class RemoteWorker:
    """One worker of a backend, with the tries that were sent to it. See ``worker_process``.

    Args:
        on_unkilled: Called if the backend fails to kill the worker.

    Attributes:
        is_killed: Whether the daemon has ordered the worker's end.
        asked_bytes, answering, reserved: See ``home_queries.Asker``.
    """

    def __init__(
        self,
        number: WorkerNo,
        spec: WorkerSpec,
        channel: WorkerChannel,
        info: WorkerInfo,
        context: ExecutorContext,
        backend: ExecutorBackend,
        on_code_query: Callable[[RemoteWorker, Query], None],
        on_unkilled: Callable[[RemoteWorker], None],
    ) -> None:
        self.number = number
        self.spec = spec
        self.info = info
        self.location = location_of(info)
        self.process = Process(context, Heartbeat(_NO_FROZEN_SECONDS))
        self.idle_since_us: int | None = None
        self.lost: anyio.CancelScope | None = None
        self._channel = channel
        self._backend = backend
        self._on_code_query = on_code_query
        self._on_unkilled = on_unkilled
        self.is_killed = False
        self.asked_bytes = 0
        self.answering = anyio.Lock()
        self.reserved: Reservation | None = None
        self._received = bytearray()
        self._decoder = msgspec.msgpack.Decoder(list[Report])
        self._over = anyio.Event()
        self._failure: Failure | None = None

    # ── its connection, see worker_process.Connection ───────────────────────────────────

    @property
    def log_nonce(self) -> str:
        """See ``Connection``."""
        return self.info.log_nonce

    @property
    def is_open(self) -> bool:
        """See ``Connection``."""
        return not self._over.is_set()

    @property
    def is_lost(self) -> bool:
        """Whether contact with the worker is lost."""
        return self.lost is not None

    @property
    def backlog(self) -> int:
        """Number of bytes that wait to be sent to the worker; 0 if its channel does not tell."""
        try:
            return int(getattr(self._channel, "backlog", 0))
        except Exception:
            _logger.exception("a channel of executor %s has failed", self.spec.executor)
            return 0

    def send(self, messages: Sequence[object]) -> None:
        """See ``Connection``. If the channel fails, kill the worker, because it lacks a message."""
        if self.is_open and not all(
            self._guarded(self._channel.send, bytes(frame)) for frame in frames(messages)
        ):
            self.kill()

    def kill(self) -> None:
        """See ``Connection``."""
        self.is_killed = True
        if not self.try_to_kill():
            self._on_unkilled(self)

    def try_to_kill(self) -> bool:
        """Order the end of the worker.

        Return whether the backend accepted it or the worker is dead.
        """
        return not self.is_open or self._guarded(self._backend.kill, self.number)

    def dismiss(self) -> None:
        """See ``Connection``."""
        if self.is_open:
            self._guarded(self._backend.retire, self.number)

    def processor_seconds(self) -> float:
        """See ``Connection``."""
        return 0.0

    def memory_bytes(self) -> int:
        """See ``Connection``."""
        return 0

    # ── what comes from it ──────────────────────────────────────────────────────────────

    def receive(self, data: bytes) -> None:
        """Handle bytes of the worker's link. If they are not valid reports, kill the worker."""
        self._received += data
        reports: list[Report] = []
        try:
            for frame in complete_frames(self._received):
                reports += self._decoder.decode(frame)
        except (LinkClosed, *UNDECODABLE) as exc:
            _logger.error("worker %d of %s is killed: %s", self.number, self.spec.executor, exc)  # noqa: TRY400
            self._received.clear()
            self.kill()
            return
        self._on_reports([one for one in reports if not self._is_code_query(one)])

    def _is_code_query(self, report: Report) -> bool:
        """Return whether a report is a query for code or a large result.

        If so, have it answered.
        """
        if not isinstance(report, Query) or report.kind not in OWN_QUERIES:
            return False
        self._on_code_query(self, report)
        return True

    def _on_reports(self, reports: list[Report]) -> None:
        if reports:
            self.process.on_reports(reports)

    def end(self, failure: Failure) -> None:
        """Record that the worker is dead. Only the first call has an effect."""
        if self.is_open:
            self._failure = failure
            self._over.set()
            self._guarded(self._channel.close)

    def _guarded(self, call: Callable[..., None], *arguments: object) -> bool:
        return _call_guarded(self.spec.executor, call, *arguments)

    async def ended(self) -> Failure:
        """Wait until the worker is dead. Return why it ended."""
        await self._over.wait()
        assert self._failure is not None  # noqa: S101 - set before the event
        return self._failure


class RemoteExecutor:
    """Runs ``def`` bodies in the workers of one backend. Implements ``backend.WorkerEvents``.

    The commands never block and never fail: outcomes are reported. Exceptions of the backend are
    logged, and shown by the tasks that wait for it.
    """

    def __init__(
        self,
        name: str,
        context: ExecutorContext,
        backend: ExecutorBackend,
        next_worker_no: Callable[[], WorkerNo],
        queries: HomeQueries,
    ) -> None:
        self.workers: dict[WorkerNo, RemoteWorker] = {}
        self._name = name
        self._context = context
        self._backend = backend
        self._next_worker_no = next_worker_no
        self._queries = queries
        self._group: TaskGroup | None = None
        self._silent_deaths: dict[WorkerSpec, int] = {}
        self._demands: tuple[WorkerDemand, ...] = ()
        self._is_watching = False
        self._refusals = 0
        self._is_asking_again = False
        self._untold: set[str] = set()

    async def run(
        self, lease: ExecutorLease, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Run the backend until cancelled. If it fails, report that, and restart it later."""
        failures, clock = 0, self._context.clock
        async with anyio.create_task_group() as self._group:
            task_status.started()
            while True:
                began = clock.monotonic_us()
                try:
                    await self._serve_backend(lease)
                    why = "its service has ended"
                except Exception as exc:
                    _logger.exception("executor %s has failed", self._name)
                    why = f"{type(exc).__name__}: {exc}"
                self._lose_all(f"executor {self._name!r} has failed: {why}"[:500])
                if clock.monotonic_us() - began >= LONGEST_DELAY_SECONDS * 1e6:
                    failures = 0
                await clock.sleep(_delay(failures))
                failures += 1

    async def _serve_backend(self, lease: ExecutorLease) -> None:
        async with anyio.create_task_group() as group:
            await group.start(self._backend.run, lease, self)
            self.set_demand(self._demands)

    def _lose_all(self, why: str) -> None:
        for demand in self._demands:
            self.unavailable(demand.spec, why)
        for number in list(self.workers):
            self.worker_lost(number, why)

    # ── commands of the engine ──────────────────────────────────────────────────────────

    def start(self, effect: StartTry) -> None:
        """Send a try to its worker. If the worker is dead, return the try."""
        worker = self.workers.get(effect.worker)
        if worker is None or not worker.is_open or not worker.process.can_take(effect.info.version):
            self._context.report([Recalled((key_of(effect),))])
            return
        worker.idle_since_us = None
        worker.process.start(effect)

    def stop(self, number: WorkerNo, key: TryKey) -> None:
        """End a try at once, and kill all that its process has started.

        Nothing more is reported.
        """
        if (worker := self.workers.get(number)) is not None:
            worker.process.stop(key)

    def recall(self, effect: RecallTries) -> None:
        """Recall claimed tries. Those that have begun in the meantime continue."""
        if (worker := self.workers.get(effect.worker)) is not None:
            worker.process.recall(effect.tries)

    def forget(self, run_no: RunNo) -> None:
        """Drop a run that has ended, also in all workers."""
        for worker in self.workers.values():
            worker.process.forget(run_no)

    def set_demand(self, demands: Iterable[WorkerDemand]) -> None:
        """Notify the backend how many workers have work."""
        self._demands = tuple(demands)
        self._pass_demand_on()

    def _pass_demand_on(self) -> None:
        """Pass the demand on. If the backend raises, show that in its tasks and retry later."""
        name = self._name
        if self._guard(self._backend.set_demand, self._demands):
            if self._refusals:
                self._refusals = 0
                for demand in self._demands:
                    self.unavailable(demand.spec, "")
            return
        for demand in self._demands:
            why = f"executor {name!r} has failed when it was asked for workers, and is asked again"
            self.unavailable(demand.spec, why)
        if self._group is not None and not self._is_asking_again:
            self._is_asking_again = True
            self._group.start_soon(self._ask_again)

    async def _ask_again(self) -> None:
        await self._context.clock.sleep(_delay(self._refusals))
        self._refusals += 1
        self._is_asking_again = False
        self._pass_demand_on()

    def _kill_again(self, worker: RemoteWorker) -> None:
        if self._group is not None:
            self._group.start_soon(self._kill_until_dead, worker)

    async def _kill_until_dead(self, worker: RemoteWorker) -> None:
        """Repeat the order to end a worker until the backend accepts it."""
        for failures in itertools.count():
            await self._context.clock.sleep(_delay(failures))
            if worker.try_to_kill():
                return

    def _stated(
        self, name: str, read: Callable[[ExecutorBackend], Stated], otherwise: Stated
    ) -> Stated:
        """Return a value that the backend states, or a default if reading the value fails."""
        try:
            return read(self._backend)
        except Exception:
            if name not in self._untold:
                self._untold.add(name)
                _logger.exception("executor %s does not state its %s", self._name, name)
            return otherwise

    @property
    def page(self) -> str:
        """Address of a page about the engine; empty if the backend has none."""
        return self._stated("url", lambda backend: page_of(getattr(backend, "url", "")), "")

    @property
    def _idle_seconds(self) -> float:
        return self._stated(
            "idle_seconds", lambda backend: _duration(backend.idle_seconds), _IDLE_SECONDS
        )

    @property
    def _patience_seconds(self) -> float:
        return self._stated(
            "patience_seconds",
            lambda backend: _duration(backend.patience_seconds),
            _PATIENCE_SECONDS,
        )

    def retire(self, number: WorkerNo) -> None:
        """Have the backend end a worker without tries."""
        self._guard(self._backend.retire, number)

    def _guard(self, call: Callable[..., None], *arguments: object) -> bool:
        return _call_guarded(self._name, call, *arguments)

    # ── events of the backend, see backend.WorkerEvents ─────────────────────────────────

    def next_worker_no(self) -> WorkerNo:
        """See ``WorkerEvents``."""
        return self._next_worker_no()

    def worker_up(
        self, worker_no: WorkerNo, spec: WorkerSpec, channel: WorkerChannel, info: WorkerInfo
    ) -> None:
        """See ``WorkerEvents``."""
        assert self._group is not None  # noqa: S101 - called by the backend that ``run`` runs
        worker = RemoteWorker(
            worker_no,
            spec,
            channel,
            info,
            self._context,
            self._backend,
            self._queue_code_query,
            self._kill_again,
        )
        self.workers[worker_no] = worker
        worker.process.on_idle = partial(self._note_idle, worker)
        worker.process.adopt(worker, self._hello(info))
        self._note_idle(worker)
        self._context.report([WorkerUp(worker_no, spec, worker.location)])
        _logger.info(
            "worker %d of %s is up: process %d on %s %s",
            worker_no,
            spec.executor,
            info.pid,
            info.host,
            info.address,
        )
        self._group.start_soon(self._serve, worker)

    def frame(self, worker_no: WorkerNo, data: bytes) -> None:
        """See ``WorkerEvents``."""
        worker = self.workers.get(worker_no)
        if worker is not None and worker.is_open:
            worker.receive(data)

    async def output(self, worker_no: WorkerNo, data: bytes) -> None:
        """See ``WorkerEvents``."""
        worker = self.workers.get(worker_no)
        if worker is not None and worker.is_open:
            await worker.process.on_output(data)

    def worker_lost(self, worker_no: WorkerNo, why: str) -> None:
        """See ``WorkerEvents``."""
        worker = self.workers.get(worker_no)
        if worker is None or not worker.is_open:
            return
        if not why:
            # The worker was killed in the meantime, but the order is only now on its way, and its
            # body still runs.
            if worker.is_killed:
                return
            lost, worker.lost = worker.lost, None
            if lost is not None:
                lost.cancel()
                self._context.report([WorkerUnresponsive(worker_no)])
            return
        if worker.lost is None and self._group is not None:
            worker.lost = anyio.CancelScope()
            now = self._context.clock.now()
            until = now + round(self._patience_seconds * 1e6)
            self._context.report([WorkerUnresponsive(worker_no, now, until, why)])
            self._group.start_soon(self._await_lost, worker, worker.lost, why)

    def worker_gone(self, worker_no: WorkerNo, failure: Failure) -> None:
        """See ``WorkerEvents``."""
        worker = self.workers.get(worker_no)
        if worker is not None and worker.is_open:
            self._end(worker, failure)

    def unavailable(self, spec: WorkerSpec, why: str) -> None:
        """See ``WorkerEvents``."""
        self._context.report([ExecutorUnavailable(spec, why)])

    def _hello(self, info: WorkerInfo) -> Hello:
        hello = self._context.hello("slot")
        return msgspec.structs.replace(
            hello,
            code=info.code_folder or hello.code,
            results=info.results_folder or hello.results,
            fetches_code=bool(info.code_folder),
            transfers_results=bool(info.results_folder),
            copies="" if info.results_folder else hello.copies,
        )

    def _queue_code_query(self, worker: RemoteWorker, query: Query) -> None:
        if not self._queries.admits(worker, query):
            _logger.error("worker %d of %s is killed: it asks too much", worker.number, self._name)
            worker.kill()
        elif self._group is not None:
            self._group.start_soon(self._queries.answer, worker, query)

    def _end(self, worker: RemoteWorker, failure: Failure) -> None:
        """Report a worker as dead, so that it gets no further tries.

        Its tries are ended afterwards.

        Ending the tries may have to wait for a slow disk. If the death were reported only with
        them, the engine would claim tries for the dead worker again and again until then.
        """
        _logger.info(
            "worker %d of %s has ended: %s", worker.number, worker.spec.executor, failure.message
        )
        worker.end(failure)
        self._context.report([WorkerGone(worker.number)])

    # ── the life of a worker ────────────────────────────────────────────────────────────

    async def _serve(self, worker: RemoteWorker) -> None:
        """Monitor a worker's tries until the worker is dead. Then settle the tries."""
        process = worker.process
        async with anyio.create_task_group() as group:
            group.start_soon(process.watch_the_time)
            failure = await worker.ended()
            group.cancel_scope.cancel()
        if worker.lost is not None:
            worker.lost.cancel()
        failure = await process.conclude(failure)
        self._context.on_query(process, CancelQuery(-1))
        del self.workers[worker.number]
        spec, is_charged = worker.spec, False
        if process.died_silently and process.is_busy:
            deaths = self._silent_deaths.get(spec, 0) + 1
            is_charged = deaths >= SILENT_DEATHS_LIMIT
            self._silent_deaths[spec] = 0 if is_charged else deaths
        elif process.has_reported:
            self._silent_deaths.pop(spec, None)
        process.end_tries(failure, charge_first=is_charged)

    async def _await_lost(self, worker: RemoteWorker, lost: anyio.CancelScope, why: str) -> None:
        """Give up a lost worker after the patience of its backend. By then it has ended itself."""
        with lost:
            await self._context.clock.sleep(self._patience_seconds)
            worker.kill()
            self._end(worker, Failure(type="WorkerLost", message=why, reason="killed"))
        if worker.lost is lost:  # the worker may be lost again by now
            worker.lost = None

    def _note_idle(self, worker: RemoteWorker) -> None:
        worker.idle_since_us = self._context.clock.monotonic_us()
        if worker.process.is_spent:  # it has run its maximum of tries: another one replaces it
            self._context.report([WorkerIdle(worker.number)])
        if not self._is_watching and self._group is not None:
            self._is_watching = True
            self._group.start_soon(self._watch_idle)

    async def _watch_idle(self) -> None:
        """Report workers that have been idle for long enough, until no worker is idle."""
        clock, idle_seconds = self._context.clock, self._idle_seconds
        idle_us = round(idle_seconds * 1e6)
        while any(worker.idle_since_us is not None for worker in self.workers.values()):
            await clock.sleep(max(idle_seconds / _IDLE_LOOKS, _SHORTEST_LOOK_SECONDS))
            now = clock.monotonic_us()
            idle = [
                worker
                for worker in self.workers.values()
                if worker.idle_since_us is not None and worker.idle_since_us <= now - idle_us
            ]
            for worker in idle:
                worker.idle_since_us = now + round(_IDLE_AGAIN_SECONDS * 1e6)
            if idle:
                self._context.report([WorkerIdle(worker.number) for worker in idle])
        self._is_watching = False


class RemoteExecutors:
    """All executors of the settings, and those that tasks name but the settings do not contain.

    Args:
        first_worker_no: The first number for workers. Lower numbers are local slots.
    """

    def __init__(
        self,
        context: ExecutorContext,
        backends: Mapping[str, ExecutorBackend],
        first_worker_no: WorkerNo,
    ) -> None:
        self.first_worker_no = first_worker_no
        self._context = context
        numbers = partial(next, itertools.count(first_worker_no))
        queries = HomeQueries(context)
        self._all = {
            name: RemoteExecutor(name, context, backend, numbers, queries)
            for name, backend in backends.items()
        }

    async def run(
        self, lease: ExecutorLease, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Run all backends until cancelled. They run independently of each other."""
        async with anyio.create_task_group() as group:
            for executor in self._all.values():
                await group.start(executor.run, lease)
            task_status.started()
            await anyio.sleep_forever()

    def _owner(self, number: WorkerNo) -> RemoteExecutor | None:
        return next((one for one in self._all.values() if number in one.workers), None)

    def start_try(self, effect: StartTry) -> None:
        """Run a try in its worker, after the tries that the worker already has."""
        owner = self._owner(effect.worker)
        if owner is None:  # the worker has ended since the try was granted
            self._context.report([Recalled((key_of(effect),))])
        else:
            owner.start(effect)

    def stop_try(self, effect: StopTry) -> None:
        """End a try at once. Tries claimed after it are reported as ``Recalled``."""
        owner = self._owner(effect.worker)
        if owner is not None:
            owner.stop(effect.worker, (effect.task_no, effect.start_no))

    def recall(self, effect: RecallTries) -> None:
        """Recall claimed tries. Those that have begun in the meantime continue."""
        owner = self._owner(effect.worker)
        if owner is not None:
            owner.recall(effect)

    def forget(self, run_no: RunNo) -> None:
        """Drop a run that has ended, also in all workers."""
        for executor in self._all.values():
            executor.forget(run_no)

    def retire(self, effect: RetireWorker) -> None:
        """Have a backend end a worker without tries."""
        owner = self._owner(effect.worker)
        if owner is not None:
            owner.retire(effect.worker)

    def pages(self) -> dict[tuple[str, WorkerLocation], str]:
        """Return the addresses of the pages of all workers and engines that have a page."""
        found = {
            (name, worker.location): url
            for name, executor in self._all.items()
            for worker in executor.workers.values()
            if (url := page_of(worker.info.url))
        }
        engines = {(name, WorkerLocation()): executor.page for name, executor in self._all.items()}
        return found | {key: url for key, url in engines.items() if url}

    def set_demand(self, effect: SetWorkerDemand) -> None:
        """Pass on to each backend its part of the demand."""
        for name, executor in self._all.items():
            executor.set_demand(one for one in effect.demands if one.spec.executor == name)
        for demand in effect.demands:
            if (name := demand.spec.executor) not in self._all:
                why = f"the settings have no executor {name!r}; add a table [executors.{name}]"
                self._context.report([ExecutorUnavailable(demand.spec, why)])


def _call_guarded(executor: str, call: Callable[..., None], *arguments: object) -> bool:
    """Call a method of a backend. Return whether it succeeded.

    An error in a plug-in must not end the daemon.
    """
    try:
        call(*arguments)
    except Exception:
        _logger.exception("a call of executor %s has failed", executor)
        return False
    return True


def _delay(failures: int) -> float:
    return backoff_seconds(failures, first=FIRST_DELAY_SECONDS, longest=LONGEST_DELAY_SECONDS)


def location_of(info: WorkerInfo) -> WorkerLocation:
    """Return where a worker runs, as texts that are safe to store and show, whatever it reports."""
    worker = f"process {info.pid}" + (f" at {info.address}" if info.address else "")
    return WorkerLocation(_shown(info.host), _shown(worker))


def _duration(value: Any) -> float:
    """Return a duration that a backend states.

    Raises:
        ValueError: If the value is not a duration.
    """
    seconds = float(value)
    if not 0.0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(f"{seconds} is not a duration")
    return seconds


def page_of(url: object) -> str:
    """Return the address of a page that a backend names; empty if it is not safe to link to."""
    if not isinstance(url, str) or len(url) > _URL_LIMIT or not url.isprintable():
        return ""
    return url if url.startswith(("http://", "https://")) else ""


def _shown(text: str) -> str:
    printable = (sign if sign.isprintable() else "?" for sign in text[:_LOCATION_LIMIT])
    return "".join(printable)
