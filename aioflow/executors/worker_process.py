"""A process of a slot. It runs ``def`` bodies of one DAG version, one after another.

A try assigned to the process is *sent* (claimed) until it has *begun*. When the process dies, a try
that had begun fails, and tries that were only sent return to the engine. The output of the process
is split and written to the logs of its tries.

A frozen process neither answers pings nor uses processor time. The process answers from a separate
thread, which no Python code can block. C code may hold the GIL for as long as it likes, but then it
uses processor time. A process that was stopped, or that hangs in the kernel, uses none.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeGuard

import anyio

from aioflow.executors.executor_context import ExecutorContext, may_query
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.model.states import Failure
from aioflow.processes import CommandBuffer, Launch
from aioflow.protocol.commands import ForgetRun, Hello, Ping, Recall, RunInfo, StartTask
from aioflow.protocol.effects import StartTry
from aioflow.protocol.inputs import Input
from aioflow.protocol.reports import (
    Deferred,
    Ended,
    EventsHandled,
    Failed,
    Labelled,
    Pong,
    Query,
    Recalled,
    Report,
    ResultWriteFailed,
    SensorNotReady,
    Skipped,
    Succeeded,
    TaskStarted,
)
from aioflow.telemetry.task_log import Attribution, LogKey, TaskLog, TryLog
from aioflow.worker.stdio import IDLE

__all__ = (
    "FROZEN_SECONDS",
    "NO_PROCESS",
    "Connection",
    "Heartbeat",
    "Process",
    "TryKey",
    "WorkerOutput",
    "key_of",
    "log_key",
)

FROZEN_SECONDS = 90.0
"""A busy worker that has neither answered nor computed for this long is killed."""

_BEAT_SECONDS = 5.0
_BEATS_AT_LEAST = 4
_NOTICED_BEATS = 2
_DEATH_BEATS = 4
_COMPUTING_SHARE = 0.02
"""Share of a beat that a process must have computed to count as computing.

It is low, because the machine may be busy. A thread that waits for the GIL wakes up now and then,
but uses less.
"""


class Heartbeat:
    """Counts the beats for which one process has neither answered nor computed.

    Silence is counted in beats instead of clock time. So a daemon that was itself stopped for a
    while does not blame its workers.

    Attributes:
        beat_seconds: Interval between pings.
        silent_beats: Number of beats since the process last answered or computed.
        is_reported: Whether the engine was notified of the silence.
    """

    def __init__(self, limit_seconds: float) -> None:
        self.beat_seconds = beat_seconds(limit_seconds)
        self.silent_beats = 0
        self.is_reported = False
        # Allow one beat more, because the first beat may have begun just before the last sign of
        # life.
        self._allowed = limit_seconds / self.beat_seconds + 1
        self._used_seconds = 0.0

    def reset(self) -> None:
        """Reset the count, because the process gave a sign of life."""
        self.silent_beats = 0

    def beat(self, child: Connection) -> None:
        """Count one more beat. Restart the count if the process computed during the last beat."""
        if self.silent_beats:
            used, self._used_seconds = self._used_seconds, child.processor_seconds()
            if self._used_seconds - used >= _COMPUTING_SHARE * self.beat_seconds:
                self.silent_beats = 0
        self.silent_beats += 1

    @property
    def is_silent(self) -> bool:
        """Whether the process has been silent for long enough to report that."""
        return self.silent_beats > _NOTICED_BEATS

    @property
    def is_frozen(self) -> bool:
        """Whether the process has been silent for too long, so that it must be killed."""
        return self.silent_beats > self._allowed

    @property
    def survives_kill(self) -> bool:
        """Whether the process hangs in the kernel, since it should have died of the kill by now."""
        return self.silent_beats > self._allowed + _DEATH_BEATS

    @property
    def silent_us(self) -> int:
        """Duration of the silence so far, in µs."""
        return round(self.silent_beats * self.beat_seconds * 1e6)

    @property
    def left_us(self) -> int:
        """Time for which the process may still stay silent before it is killed, in µs."""
        beats = max(0.0, self._allowed + 1 - self.silent_beats)
        return round(beats * self.beat_seconds * 1e6)


def beat_seconds(limit_seconds: float) -> float:
    """Return the ping interval for a process that may be silent for ``limit_seconds``."""
    return min(_BEAT_SECONDS, limit_seconds / _BEATS_AT_LEAST)


_logger = logging.getLogger(__name__)


class WorkerOutput:
    """The output of one process. Its tries print in the order in which they were sent."""

    def __init__(self, tasklog: TaskLog, nonce: str) -> None:
        self._tasklog = tasklog
        self._attribution = Attribution(nonce)
        self._expected: dict[tuple[TaskNo, StartNo], StartTask] = {}
        self._log: TryLog | None = None

    def expect(self, start: StartTask) -> None:
        """Register a try that was sent to the process."""
        self._expected[start.task_no, start.start_no] = start

    async def keep(self, data: bytes) -> None:
        """Write a piece of output to the logs of its tries. Blocks while the disk is slow."""
        await self._keep_pieces(self._attribution.feed(data))

    async def finish(self) -> None:
        """Write the rest of the buffered output, after the process has died."""
        await self._keep_pieces(self._attribution.finish())
        if self._log is not None:
            self._log.close()

    async def _keep_pieces(
        self, pieces: Sequence[tuple[tuple[TaskNo, StartNo] | None, bytes]]
    ) -> None:
        for key, data in pieces:
            if not data:
                self._begin(key)
            elif self._log is not None:
                await self._log.write(data)
            else:
                _logger.warning(
                    "output outside of any try: %r", self._tasklog.masks.masked(data)[:500]
                )

    def _begin(self, key: tuple[TaskNo, StartNo] | None) -> None:
        if key == IDLE:
            if self._log is not None:
                self._log.close()  # readers that follow the log now see all of it
            return
        start = None if key is None else self._expected.get(key)
        if self._log is not None:
            self._log.close()
        self._log = None if start is None else self._tasklog.open(log_key(start))
        if start is not None:
            # Tries sent before this one have ended or were recalled, so they print nothing more.
            done = list(itertools.takewhile(lambda other: other != key, self._expected))
            for earlier in done:
                del self._expected[earlier]


def log_key(start: StartTask) -> LogKey:
    """Return the log key for the output of an execution."""
    return LogKey(
        run_no=start.run_no,
        task_index=start.task_index,
        map_index=start.map_index,
        task_no=start.task_no,
        start_no=start.start_no,
        try_number=start.try_number,
    )


TRIES_LIMIT = 100_000
"""Number of tries after which a process is replaced, to limit the effect of leaks.

The slot's next try then waits about 0.3 s for a start and an import. This must happen to fewer than
one try in a hundred.
"""
MEMORY_LIMIT_BYTES = 1024 * 1024 * 1024
"""Memory at which a process is replaced as well, see ``MEMORY_CHECK_TRIES``."""
MEMORY_CHECK_TRIES = 64
"""Number of tries between two memory checks."""

RUNS_LIMIT = 128
"""Maximum number of runs that a process knows. A dropped run is sent again with its next try."""

STUCK_FACTOR = 10
STUCK_FLOOR_US = 5_000

_ENDED = (Succeeded, Failed, Skipped, SensorNotReady, Deferred, EventsHandled)

NO_PROCESS = Failure(type="Killed", message="the slot has no process", reason="killed")


TryKey: TypeAlias = tuple[TaskNo, StartNo]


class _Try:
    """A try that was sent to the process."""

    __slots__ = (
        "began",
        "began_us",
        "effect",
        "has_returned",
        "is_recalled",
        "is_stopped",
        "is_timed_out",
    )

    def __init__(self, effect: StartTry) -> None:
        self.effect = effect
        self.began: TaskStarted | None = None
        self.began_us = 0
        self.has_returned = False
        self.is_recalled = False
        self.is_stopped = False
        self.is_timed_out = False


class Connection(Protocol):
    """The connection to a process that runs tries: a local ``Child``, or a remote worker."""

    @property
    def log_nonce(self) -> str:
        """A nonce that distinguishes aioflow's marks in the output from the output of user code."""

    @property
    def is_open(self) -> bool:
        """Whether ``send`` can still reach the process."""

    def send(self, messages: Sequence[object]) -> None:
        """Send commands. Do nothing if the link has closed."""

    def kill(self) -> None:
        """Kill the process and all it started. Do nothing if it is dead."""

    def dismiss(self) -> None:
        """Tell an idle process to exit."""

    def processor_seconds(self) -> float:
        """Return the processor time that the process has used; 0 if it is unknown."""

    def memory_bytes(self) -> int:
        """Return the resident memory of the process; 0 if it is unknown."""


class Process:
    """A worker process, created by ``WorkerProcesses``. It lives as long as its ``run``.

    If it uses an interpreter other than the daemon's own, it accepts tries only once it has
    answered.

    Args:
        heartbeat: Counts for how long the process is silent.
        launch: Its interpreter; ``None`` for the daemon's own.

    Attributes:
        on_idle: Called when the process has reported the end of all tries it was sent.
        version: Version whose code it has loaded; empty until its first try.
        has_reported: Whether it has ever reported anything.
        memory_bytes: Its resident memory at the last check.
        idle_since_us: When it last became idle, on the monotonic clock.
    """

    hosts_triggers = False

    def __init__(
        self, context: ExecutorContext, heartbeat: Heartbeat, launch: Launch | None = None
    ) -> None:
        self.launch = launch
        self.on_idle: Callable[[], None] = _nothing
        self.heartbeat = heartbeat
        self.version = ""
        self.has_reported = False
        self.memory_bytes = 0
        self.idle_since_us = 0
        self._context = context
        self._child: Connection | None = None
        self._killed_for: Failure | None = None
        self._outgoing: CommandBuffer | None = None
        self._is_accepting = self._is_retired = False
        self._on_up: Callable[[], None] | None = None
        self._known_runs: dict[RunNo, RunInfo] = {}
        self._sent: dict[TryKey, _Try] = {}
        self._begun: _Try | None = None
        self._tries = 0
        self._printing: WorkerOutput | None = None
        self._nap = anyio.CancelScope()
        self._nap_until: int | None = None

    # ── lifecycle ───────────────────────────────────────────────────────────────────────

    async def run(self, on_up: Callable[[], None]) -> Failure:
        """Start the process and call ``on_up``. Once the process is dead, return why it ended.

        Raises:
            OSError: In an exception group, if the process could not be started. It is a
                ``NoHeadroom`` if the machine has no capacity for another process.
            InterpreterUnusable: In an exception group, if there is no program at the path of its
                interpreter.
        """
        failure = NO_PROCESS
        try:
            async with self._context.children.child(
                "slot", on_reports=self.on_reports, on_output=self.on_output, launch=self.launch
            ) as child:
                self.adopt(child, self._context.hello("slot"))
                if self.launch is None:
                    on_up()
                else:
                    self._on_up = on_up
                    self._send(Ping(self._context.clock.monotonic_us()))
                async with anyio.create_task_group() as group:
                    group.start_soon(self.watch_the_time)
                    failure = await child.ended()
                    group.cancel_scope.cancel()
        finally:
            self._child = None
        return await self.conclude(failure)

    async def conclude(self, failure: Failure) -> Failure:
        """Write the rest of the output of a dead process. Return why it ended."""
        self._child = None
        if self._printing is not None:
            await self._printing.finish()
        return self._killed_for or failure

    async def on_output(self, data: bytes) -> None:
        """Write a piece of output. Blocks while the disk is slow."""
        if self._printing is not None:
            await self._printing.keep(data)

    def adopt(self, child: Connection, hello: Hello) -> None:
        """Send the first command to a process that has started, and accept tries for it."""
        self._child = child
        self._is_accepting = True
        self._outgoing = CommandBuffer(child)
        self._printing = WorkerOutput(self._context.tasklog, child.log_nonce)
        child.send([hello])

    def dismiss(self) -> None:
        """Tell an idle process to exit by itself."""
        self._is_accepting = False
        if self._child is not None:
            self._child.dismiss()

    def retire(self) -> None:
        """Accept no further tries, and end when the current ones are over."""
        self._is_retired = True

    def _kill(self) -> None:
        self._is_accepting = False
        if self._child is not None:
            self._child.kill()

    def beat(self) -> None:
        """Ping the process, and count the beat unless it has answered since the last ping."""
        if self._child is not None:
            self._send(Ping(self._context.clock.monotonic_us()))
            self.heartbeat.beat(self._child)

    def kill_frozen(self) -> Failure:
        """Kill the process because it was silent for too long. Return the failure of its tries."""
        if self._killed_for is None:
            seconds = self.heartbeat.silent_us / 1e6
            message = f"the worker neither answered nor used CPU for {seconds:g} s, and was killed"
            self._killed_for = Failure(type="Frozen", message=message, reason="killed")
            self._kill()
        return self._killed_for

    @property
    def is_spent(self) -> bool:
        """Whether the process must end: retired, too large, or after enough tries.

        This may check the memory, which happens after the first try, when the code is loaded, and
        then every ``MEMORY_CHECK_TRIES`` tries.
        """
        if self._child is not None and (
            not self.memory_bytes or self._tries % MEMORY_CHECK_TRIES == 0
        ):
            self.memory_bytes = self._child.memory_bytes()
        is_large = self.memory_bytes > MEMORY_LIMIT_BYTES
        return self._is_retired or is_large or self._tries >= TRIES_LIMIT

    @property
    def died_silently(self) -> bool:
        """Whether the dead process died by itself, before it had reported anything."""
        return self._is_accepting and not self.has_reported

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    @property
    def is_busy(self) -> bool:
        """Whether the process has tries that have not ended."""
        return bool(self._sent)

    def can_take(self, version: str, interpreter: str = "") -> bool:
        """Return whether the process accepts tries of a version that runs in this interpreter.

        A process that has loaded a version has the right interpreter.
        """
        if not self._is_accepting or self._is_retired:
            return False
        return self.version == version or (not self.version and self.interpreter == interpreter)

    @property
    def interpreter(self) -> str:
        """Name of its interpreter; empty for the daemon's own."""
        return "" if self.launch is None else self.launch.interpreter

    def start(self, effect: StartTry) -> None:
        """Send a try to the process, to run after the tries it already has."""
        info = effect.info
        self.version = info.version
        if self._known_runs.pop(info.run_no, None) is None:
            self._evict_run()
            self._send(info)
        self._known_runs[info.run_no] = info  # moved to the end, so it is dropped last
        key = key_of(effect)
        self._sent[key] = _Try(effect)
        if self._printing is not None:
            self._printing.expect(effect.start)
        self._send(effect.start)
        if self._begun is not None:
            self._begun.is_recalled = False  # another try waits behind it again
        self._rearm()

    def stop(self, key: TryKey) -> None:
        """End a try at once, and kill all that it has started. Nothing more is reported."""
        found = self._sent.get(key)
        if found is None:
            return  # the try has ended
        found.is_stopped = True
        if found.began is None:
            self._send(Recall((key,)))
        else:
            self._kill()

    def recall(self, keys: Sequence[TryKey]) -> None:
        """Recall those tries in ``keys`` that have not begun."""
        there = tuple(key for key in keys if key in self._sent)
        if there:
            self._send(Recall(there))

    def forget(self, run_no: RunNo) -> None:
        """Drop a run that has ended, also in the process."""
        if self._known_runs.pop(run_no, None) is not None:
            self._send(ForgetRun(run_no))

    def _evict_run(self) -> None:
        """Drop the least recently used run without tries, if the process knows too many runs."""
        if len(self._known_runs) < RUNS_LIMIT:
            return
        busy = {sent.effect.info.run_no for sent in self._sent.values()}
        idle = next((run_no for run_no in self._known_runs if run_no not in busy), None)
        if idle is not None:
            self.forget(idle)

    def _send(self, message: object) -> None:
        if self._outgoing is not None:
            self._outgoing.put(message)

    # ── a sender of queries, see executor_context.QuerySender ────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Whether replies can still reach the process."""
        return self._child is not None and self._child.is_open

    def serves(self, run_no: RunNo) -> bool:
        """Return whether the process was sent this run."""
        return run_no in self._known_runs

    def runs(self, key: TryKey) -> bool:
        """Return whether a try has begun in the process, and has not ended."""
        found = self._sent.get(key)
        return found is not None and found.began is not None

    def info(self, run_no: RunNo) -> RunInfo | None:
        """Return the details of a run as sent to the process; ``None`` if none were sent."""
        return self._known_runs.get(run_no)

    def send(self, messages: Sequence[object]) -> None:
        """Send replies to the process."""
        for message in messages:
            self._send(message)

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def on_reports(self, reports: list[Report]) -> None:
        """Handle reports of the process, and pass on those that the engine needs."""
        passed: list[Input] = []
        over = {_key_of(report) for report in reports if _implies_begin(report)}
        for report in reports:
            if isinstance(report, TaskStarted):
                self._handle_started(report, passed, is_implied=_key_of(report) in over)
            elif isinstance(report, _ENDED):
                self._handle_ended(report, passed)
            elif isinstance(report, Labelled | ResultWriteFailed):
                self._handle_progress(report, passed)
            elif isinstance(report, Recalled):
                self._handle_recalled(report, passed)
            elif isinstance(report, Query):
                if may_query(self, report):
                    self._context.on_query(self, report)
            elif not isinstance(report, Pong):
                _logger.warning("a slot worker reported %s", type(report).__name__)
        self.has_reported = True
        self.heartbeat.reset()
        if self._on_up is not None:
            on_up, self._on_up = self._on_up, None
            on_up()
        if passed:
            self._context.report(passed)
        self._rearm()
        if not self._sent and self._is_accepting:
            self.on_idle()

    def _handle_started(
        self, report: TaskStarted, passed: list[Input], *, is_implied: bool
    ) -> None:
        """Record the start of a try. Report the start only if the try was claimed.

        The slot of any other try was granted before, so its start changes nothing in the engine. If
        the end of a claimed try was received with its start, the end implies the start.
        """
        found = self._sent.get(_key_of(report))
        if found is None:
            return
        found.began = report
        found.began_us = self._context.clock.monotonic_us()
        self._begun = found
        if found.is_stopped:
            self._kill()  # the recall came too late
        elif found.effect.claimed and not is_implied:
            passed.append(report)

    def _handle_progress(self, report: Labelled | ResultWriteFailed, passed: list[Input]) -> None:
        found = self._sent.get(_key_of(report))
        if found is None or found.is_stopped:
            return
        found.has_returned = isinstance(report, ResultWriteFailed)
        passed.append(report)

    def _handle_ended(self, report: Ended, passed: list[Input]) -> None:
        found = self._sent.pop(_key_of(report), None)
        if found is None:
            return
        self._tries += 1
        if self._begun is found:
            self._begun = None
        if not found.is_stopped:
            passed.append(report)

    def _handle_recalled(self, report: Recalled, passed: list[Input]) -> None:
        found = [(key, self._sent.pop(key, None)) for key in report.tries]
        back = tuple(key for key, tried in found if tried is not None and not tried.is_stopped)
        if back:
            passed.append(Recalled(back))

    def end_tries(self, failure: Failure, *, charge_first: bool) -> None:
        """Report the outcomes of the tries that the process had when it died.

        Args:
            charge_first: If no try had begun, the first waiting try fails because of the death.
        """
        sent, self._sent = self._sent, {}  # later reports about these tries are ignored
        alive = {key: tried for key, tried in sent.items() if not tried.is_stopped}
        reports: list[Input] = [
            self._failed(tried, failure) for tried in alive.values() if tried.began is not None
        ]
        back = [key for key, tried in alive.items() if tried.began is None]
        if back and charge_first:
            reports.append(self._failed(alive[back.pop(0)], failure, interrupted=True))
        if back:
            reports.append(Recalled(tuple(back)))
        if reports:
            self._context.report(reports)

    def _failed(self, tried: _Try, failure: Failure, *, interrupted: bool = False) -> Failed:
        if tried.is_timed_out:
            message = _too_long(tried.effect)
            failure = Failure(type="TaskTimeout", message=message, reason="timeout")
        start = tried.effect.start
        return Failed(
            task_no=start.task_no,
            start_no=start.start_no,
            began_at=None if tried.began is None else tried.began.at,
            at=self._context.clock.now(),
            failure=failure,
            # The task is not to blame if something else killed the process.
            interrupted=interrupted or failure.reason == "killed",
        )

    # ── time ────────────────────────────────────────────────────────────────────────────

    async def watch_the_time(self) -> None:
        """Kill the process at the timeout of a try.

        If a try is slow, recall the tries behind it.
        """
        clock = self._context.clock
        while True:
            with anyio.CancelScope() as self._nap:
                self._nap_until = self._next_deadline()
                if self._nap_until is None:
                    await anyio.sleep_forever()
                else:
                    await clock.sleep(max(0, self._nap_until - clock.monotonic_us()) / 1e6)
            self._enforce()

    def _rearm(self) -> None:
        """Wake the timer task if a deadline is earlier than planned.

        It may also be woken too early.
        """
        due = self._next_deadline()
        if due is not None and (self._nap_until is None or due < self._nap_until):
            self._nap_until = due
            self._nap.cancel()

    def _next_deadline(self) -> int | None:
        tried = self._begun
        if tried is None or tried.is_timed_out:
            return None
        timeout_at = self._timeout_at(tried)
        if tried.is_recalled or len(self._sent) < 2:
            return timeout_at
        stuck_at = _stuck_at(tried)
        return stuck_at if timeout_at is None else min(timeout_at, stuck_at)

    def _timeout_at(self, tried: _Try) -> int | None:
        timeout_us = tried.effect.timeout_us
        return None if timeout_us is None or tried.has_returned else tried.began_us + timeout_us

    def _enforce(self) -> None:
        tried, now = self._begun, self._context.clock.monotonic_us()
        if tried is None:
            return
        timeout_at = self._timeout_at(tried)
        if timeout_at is not None and now >= timeout_at:
            tried.is_timed_out = True
            self._kill()
        elif not tried.is_recalled and len(self._sent) > 1 and now >= _stuck_at(tried):
            tried.is_recalled = True
            self._send(Recall(tuple(key for key, sent in self._sent.items() if not sent.began)))


def _nothing() -> None:
    """Do nothing. Used as ``on_idle`` until a slot uses the process."""


def key_of(effect: StartTry) -> TryKey:
    """Return the key (task and start number) of the try that an effect starts."""
    return (effect.start.task_no, effect.start.start_no)


def _key_of(report: TaskStarted | Ended | Labelled | ResultWriteFailed) -> TryKey:
    return (report.task_no, report.start_no)


def _implies_begin(report: Report) -> TypeGuard[Ended]:
    return isinstance(report, _ENDED) and report.began_at is not None


def _stuck_at(tried: _Try) -> int:
    return tried.began_us + STUCK_FACTOR * max(STUCK_FLOOR_US, tried.effect.expected_us)


def _too_long(effect: StartTry) -> str:
    """Return the message of a timeout. A resumed try may have used part of its limit before."""
    limit_us = effect.limit_us or effect.timeout_us or 0
    left_us = effect.timeout_us or 0
    waited = f", {left_us / 1e6:.3g} s of which were left when it resumed"
    return (
        f"the try took longer than its execution_timeout of {limit_us / 1e6:g} s"
        f"{waited if left_us < limit_us else ''}, and was killed"
    )
