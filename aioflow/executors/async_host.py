"""The async host: one process with one event loop for all ``async def`` bodies."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import anyio
from anyio.abc import TaskStatus

from aioflow.core.state.child_roles import ASYNC
from aioflow.executors.executor_context import ExecutorContext, may_query
from aioflow.executors.host_inspection import DescriptionRequests, HostLoad
from aioflow.executors.shared_host import HEALTH_SECONDS, SharedHost
from aioflow.executors.worker_process import log_key
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.model.triggers import TriggerDescription
from aioflow.protocol.commands import ForgetRun, RunInfo, StopTask
from aioflow.protocol.effects import ConfirmCall, StartTry, StopTry
from aioflow.protocol.inputs import Input
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    CancelQuery,
    Deferred,
    Described,
    EventEmitted,
    EventsHandled,
    Failed,
    ItemYielded,
    Labelled,
    NextEventRequested,
    NotSuspended,
    Output,
    Query,
    RecordDropped,
    Report,
    ResultWriteFailed,
    RunCalled,
    SensorNotReady,
    Skipped,
    StreamOpened,
    Succeeded,
    TaskReport,
    TaskStopped,
)
from aioflow.telemetry.task_log import LogKey, TryLog

__all__ = ("AsyncExecutor",)

_ENDED = (
    Succeeded,
    Failed,
    Skipped,
    SensorNotReady,
    Deferred,
    Awaiting,
    EventsHandled,
    NotSuspended,
)

_PASSED = (
    CallAnswered,
    EventEmitted,
    ItemYielded,
    Labelled,
    NextEventRequested,
    RecordDropped,
    ResultWriteFailed,
    RunCalled,
    StreamOpened,
)

_logger = logging.getLogger(__name__)


class AsyncExecutor:
    """Runs coroutines in the host process of one role; see ``core.state.child_roles``.

    If the host dies, ``HostLost`` names the task whose code was running. Starts are dropped while
    there is no host, or if they were decided for another host. After ``HostUp`` the engine sends
    everything that has to run again. The host itself enforces the timeouts of tries.
    """

    hosts_triggers = False

    def __init__(
        self,
        context: ExecutorContext,
        *,
        role: str = ASYNC,
        health_seconds: float = HEALTH_SECONDS,
        idle_seconds: float = math.inf,
    ) -> None:
        self._context = context
        self._role = role
        self._host = SharedHost(
            role,
            context,
            on_reports=self._on_reports,
            on_output=self._on_data,
            on_lost=self._forget_all,
            health_seconds=health_seconds,
            idle_seconds=idle_seconds,
            is_idle=lambda: not self._printing and not self._suspended,
            may_replace=lambda: not self._printing,
        )
        # Starts whose coroutines are suspended in the host.
        self._suspended: set[tuple[TaskNo, StartNo]] = set()
        self._describing = DescriptionRequests(self._host.put)
        self._known_runs: dict[RunNo, RunInfo] = {}
        # Starts that may still print, and the open logs of those that have printed (few ever do).
        self._printing: dict[tuple[TaskNo, StartNo], LogKey] = {}
        self._logs: dict[tuple[TaskNo, StartNo], TryLog] = {}

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run a host until cancelled or idle. Signal ``task_status`` when the first host is up."""
        await self._host.run(task_status=task_status)

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def start_try(self, effect: StartTry) -> None:
        """Start or resume a coroutine, if the engine decided that for the current process."""
        if not self._host.accepts(effect.process_no):
            return
        start, info = effect.start, effect.info
        if info.run_no not in self._known_runs:
            self._known_runs[info.run_no] = info
            self._host.put(info)
        if effect.resume is not None:  # the same coroutine continues under another start number
            self._suspended.discard((start.task_no, effect.resume.was_start_no))
            self._close_log(start.task_no, effect.resume.was_start_no)
        self._printing[start.task_no, start.start_no] = log_key(start)
        self._host.put(start if effect.resume is None else effect.resume)

    def confirm(self, effect: ConfirmCall) -> None:
        """Tell a coroutine that its durable call is recorded, or its yielded item stored."""
        self._host.put(effect.recorded)

    def stop_try(self, effect: StopTry) -> None:
        """Cancel a coroutine. Further reports about it are ignored."""
        self._suspended.discard((effect.task_no, effect.start_no))
        self._host.put(StopTask(effect.task_no, effect.start_no, effect.reason))

    def forget(self, run_no: RunNo) -> None:
        """Drop a run that has ended, also in the host."""
        if self._known_runs.pop(run_no, None) is not None:
            self._host.put(ForgetRun(run_no))

    @property
    def host_process(self) -> SharedHost:
        """The process that runs the coroutines."""
        return self._host

    @property
    def load(self) -> HostLoad:
        """Load of the host."""
        return self._host.load

    def _log(self, start: tuple[TaskNo, StartNo]) -> TryLog | None:
        if start not in self._logs and start in self._printing:
            self._logs[start] = self._context.tasklog.open(self._printing[start])
        return self._logs.get(start)

    def _close_log(self, task_no: TaskNo, start_no: StartNo) -> None:
        self._printing.pop((task_no, start_no), None)
        log = self._logs.pop((task_no, start_no), None)
        if log is not None:
            log.close()

    async def describe(self, tasks: Sequence[TaskNo]) -> dict[TaskNo, TriggerDescription]:
        """Return the last and next poke times of those of these tasks that poke in this host."""
        return await self._describing.request(tasks) if self._host.is_up else {}

    # ── a sender of queries, see executor_context.QuerySender ────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Return ``True`` while replies can still reach the host."""
        return self._host.is_open

    def serves(self, run_no: RunNo) -> bool:
        """Return whether the host was sent this run."""
        return run_no in self._known_runs

    def info(self, run_no: RunNo) -> RunInfo | None:
        """Return the details of a run as sent to the host; ``None`` if none were sent."""
        return self._known_runs.get(run_no)

    def send(self, messages: Sequence[object]) -> None:
        """Send replies to the host."""
        self._host.send(messages)

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def _on_reports(self, reports: list[Report]) -> None:
        passed: list[Input] = []
        for report in reports:
            if isinstance(report, Output):
                if (log := self._log((report.task_no, report.start_no))) is not None:
                    log.offer(report.data, is_stderr=report.is_stderr)
            elif isinstance(report, TaskStopped):
                self._close_log(report.task_no, report.start_no)
            elif isinstance(report, _ENDED):
                self._handle_ended(report)
                passed.append(report)
            elif isinstance(report, _PASSED):
                passed.append(report)
            elif isinstance(report, Described):
                self._describing.answered(report)
            elif isinstance(report, Query):
                if may_query(self, report):
                    self._context.on_query(self, report)
            elif isinstance(report, CancelQuery):
                self._context.on_query(self, report)
            else:
                _logger.warning("the %s host reported %s", self._role, type(report).__name__)
        if passed:
            self._context.report(passed)

    def _handle_ended(self, report: TaskReport) -> None:
        start = report.task_no, report.start_no
        self._close_log(*start)
        if isinstance(report, Awaiting):
            self._suspended.add(start)
        elif self._suspended:
            self._suspended.discard(start)

    async def _on_data(self, data: bytes) -> None:
        """Log output from the pipe. It comes from C libraries and grandchildren, not from tries."""
        shown = self._context.tasklog.masks.masked(data)[:500]
        _logger.info("the %s host printed: %r", self._role, shown)

    def _forget_all(self) -> None:
        self._context.on_query(self, CancelQuery(-1))
        self._known_runs.clear()
        self._suspended.clear()
        for key in list(self._printing):
            self._close_log(*key)
