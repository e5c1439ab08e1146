"""The daemon's side of the triggerer: assignment, capacity, and the triggers of each host."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Self

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow.core.state.child_roles import QUARANTINE, TRIGGERS, is_own, kind_of
from aioflow.core.state.packed_maps import Interner, Numbers, Pages, Rows, packed
from aioflow.executors.executor_context import ExecutorContext, may_query
from aioflow.executors.host_inspection import DescriptionRequests, FireTimePreviews, HostLoad
from aioflow.executors.shared_host import HEALTH_SECONDS, SharedHost
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import TriggerDescription
from aioflow.protocol.commands import ForgetRun, RunInfo, StartTrigger, StopTrigger
from aioflow.protocol.effects import AssignTrigger, ConfirmEvents, ReleaseTrigger
from aioflow.protocol.inputs import Input, TriggerCapacityChanged
from aioflow.protocol.reports import (
    CancelQuery,
    Described,
    FireTimesPreviewed,
    NextFireTime,
    Output,
    Query,
    Report,
    TriggerEnded,
    TriggerFired,
)
from aioflow.telemetry.log import about
from aioflow.telemetry.task_log import LogKey, TryLog

__all__ = ("CAPACITY", "Triggerer")

CAPACITY = 100_000
"""Maximum number of triggers assigned to one host."""

SHUTDOWN = "shutdown"
"""Reason for releasing a trigger because its daemon shuts down."""

REPLACE_SECONDS = 0.35
REASSIGN_SECONDS = 50e-6
"""Estimated delay of the other triggers if their host is replaced.

It consists of ``REPLACE_SECONDS`` and this time for each trigger. A step that has already blocked
for as long may well block for as long again.
"""

_SHOWN_BYTES = 2_000
"""Limit for output that belongs to no task."""

_HEAP_SLACK = 64
"""How many entries the queue's heap may have beyond twice the number of waiting triggers."""

_logger = logging.getLogger(__name__)


class _Hosted(msgspec.Struct, frozen=True, array_like=True):
    """Record of a trigger in the host. It is stored packed, because there may be a million."""

    assignment_id: int
    run_no: RunNo
    task_no: TaskNo
    task_index: int
    map_index: int
    start_no: StartNo
    try_number: int
    class_no: int

    @classmethod
    def of(cls, host: StartTrigger, class_no: int) -> Self:
        """Return the record of a command. The class path is interned, as many triggers share it."""
        return cls(
            host.assignment_id,
            host.run_no,
            host.task_no,
            host.task_index,
            host.map_index,
            host.start_no,
            host.try_number,
            class_no,
        )

    def log_key(self) -> LogKey:
        """Return the log key of the trigger's output."""
        return LogKey(
            run_no=self.run_no,
            task_index=self.task_index,
            map_index=self.map_index,
            task_no=self.task_no,
            start_no=self.start_no,
            try_number=self.try_number,
        )


_decode = msgspec.msgpack.Decoder(_Hosted).decode
_decode_host = msgspec.msgpack.Decoder(StartTrigger).decode


class Triggerer:
    """Runs triggers in the host process of one role. If it dies, ``HostLost`` names the culprit.

    For the role ``quarantine``, the process is started when the first trigger is assigned. Triggers
    beyond the capacity wait, ordered by priority and then by age. ``TriggerCapacityChanged``
    reports each of them to the engine. Assignments are dropped while there is no process, or if
    they were decided for another process. After ``HostUp`` the engine assigns all waiting triggers
    again.
    """

    hosts_triggers = True

    def __init__(
        self,
        context: ExecutorContext,
        *,
        role: str = TRIGGERS,
        health_seconds: float = HEALTH_SECONDS,
        capacity: int = CAPACITY,
        idle_seconds: float = math.inf,
    ) -> None:
        self._context = context
        self._capacity = capacity
        self._role = role
        self._wanted = anyio.Event()
        self._is_closing = False
        self._may_end = idle_seconds < math.inf
        self._storing: set[TriggerNo] = set()
        self._all_released = anyio.Event()
        self._host = SharedHost(
            role,
            context,
            on_reports=self._on_reports,
            on_output=self._on_data,
            on_lost=self._forget_all,
            health_seconds=health_seconds,
            patience_seconds=self._patience_seconds,
            class_of=self._class_of,
            idle_seconds=idle_seconds,
            is_idle=self._is_idle,
        )
        self._hosted: Pages[bytes] = Pages(Rows)
        self._waiting: Pages[bytes] = Pages(Rows)
        self._heap: list[tuple[int, TriggerNo]] = []
        self._logs: dict[TriggerNo, TryLog] = {}
        self._per_run: Pages[int] = Pages(Numbers)
        self._classes: Interner[str] = Interner()
        self._known_runs: dict[RunNo, RunInfo] = {}
        self._questions = itertools.count(1)
        self._describing = DescriptionRequests(self._host.put)
        self._previews = FireTimePreviews(self._host.put)
        self._expected: dict[TriggerNo, Timestamp] = {}

    @property
    def host_process(self) -> SharedHost:
        """The process that runs the triggers."""
        return self._host

    @property
    def load(self) -> HostLoad:
        """Load of the host, counting triggers that it was told to release but still has."""
        return msgspec.structs.replace(
            self._host.load,
            triggers=len(self._hosted),
            waiting=len(self._waiting),
            capacity=self._capacity,
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run a host until cancelled or idle.

        Signals ``task_status`` when the host is up, or if it is not needed yet.
        """
        if self._role == QUARANTINE and not self._wanted.is_set():
            task_status.started()
            task_status = anyio.TASK_STATUS_IGNORED
            await self._wanted.wait()
        await self._host.run(task_status=task_status)

    def _patience_seconds(self) -> float:
        """Return the maximum seconds for which one trigger may block the others.

        There is no limit in quarantine, where triggers have to accept blocking. There is none in a
        DAG's own host, which has no triggers of other DAGs. There is none during shutdown either,
        because no trigger is assigned again and the caller limits the duration.
        """
        others = len(self._hosted) - 1
        is_shared = kind_of(self._role) == TRIGGERS and not is_own(self._role)
        if not is_shared or self._is_closing or others < 1:
            return math.inf
        return REPLACE_SECONDS + others * REASSIGN_SECONDS

    def _class_of(self, number: int) -> str:
        body = self._hosted.get(number)
        if body is None:
            return self._previews.class_of(number)
        return self._classes[_decode(body).class_no]

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def host(self, effect: AssignTrigger) -> None:
        """Assign a trigger to the host. If the host already has it, the command is sent again."""
        host = effect.host
        if self._is_closing:
            return
        if not self._host.is_up:
            self._wanted.set()
            return
        if not self._host.accepts(effect.process_no):
            return
        if effect.info is not None and effect.info.run_no not in self._known_runs:
            self._known_runs[effect.info.run_no] = effect.info
            self._host.put(effect.info)
        if len(self._hosted) < self._capacity or host.trigger_no in self._hosted:
            if self._waiting:
                self._waiting.take(host.trigger_no)
            self._assign(host)
        else:
            if host.trigger_no not in self._waiting:
                heapq.heappush(self._heap, (-host.priority, host.trigger_no))
            self._waiting.put(host.trigger_no, packed(host))
            self._context.report(
                [TriggerCapacityChanged(host.trigger_no, host.assignment_id, has_capacity=False)]
            )

    def forget(self, run_no: RunNo) -> None:
        """Drop a run that has ended, also in the host."""
        if self._known_runs.pop(run_no, None) is not None:
            self._host.put(ForgetRun(run_no))

    def take_events(self, effect: ConfirmEvents) -> bool:
        """Resume a trigger whose events are stored. Return whether this host has it."""
        is_here = effect.confirmed.trigger_no in self._hosted
        if is_here:
            self._host.put(effect.confirmed)
        return is_here

    def end(self, effect: ReleaseTrigger) -> None:
        """Release a trigger. ``TriggerEnded`` confirms it, at once if the host does not have it."""
        end = effect.end
        if end.trigger_no in self._hosted:
            self._host.put(end)
            return
        if self._waiting.take(end.trigger_no) is not None:
            self._compact_heap()
        at = (end.trigger_no, end.assignment_id, self._context.clock.now())
        self._context.report([TriggerEnded(*at, reason=end.reason)])

    async def preview(
        self, host: StartTrigger, *, after: Timestamp, count: int
    ) -> FireTimesPreviewed | None:
        """Return the next fire times of a timetable or the failure; ``None`` without a process.

        Args:
            host: Data from which to create an instance of the timetable. This host need not run it.
            after: Only fire times after this timestamp are returned.
            count: Maximum number of fire times.
        """
        if not self._host.is_up:
            self._wanted.set()
            return None
        return await self._previews.request(host, after=after, count=count)

    @property
    def expected(self) -> Mapping[TriggerNo, Timestamp]:
        """The next fire time of each timetable in the host."""
        return self._expected

    async def shut_down(self) -> None:
        """Release all triggers because the daemon is shutting down. Return when all are released.

        No trigger is assigned any more. The releases are not reported. For the engine, the tasks
        stay deferred, and the next daemon assigns their triggers again. The caller limits the time.
        """
        self._is_closing = True
        self._waiting = Pages(Rows)
        for number, body in self._hosted.items():
            self._host.put(StopTrigger(number, _decode(body).assignment_id, SHUTDOWN))
        if self._hosted:
            await self._all_released.wait()

    # ── for display ─────────────────────────────────────────────────────────────────────

    async def describe(self, numbers: Sequence[TriggerNo]) -> dict[TriggerNo, TriggerDescription]:
        """Return the descriptions of the triggers that the host has; ``{}`` if it is too slow."""
        known = tuple(number for number in numbers if number in self._hosted)
        if not known or not self._host.is_up:
            return {}
        return await self._describing.request(known)

    # ── a sender of queries, see executor_context.QuerySender ────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Whether replies can still reach the host."""
        return self._host.is_open

    def serves(self, run_no: RunNo) -> bool:
        """Return whether the host has a trigger of this run."""
        return run_no in self._per_run

    def info(self, run_no: RunNo) -> RunInfo | None:
        """Return the details of a run as sent to the host for tasks that start deferred."""
        return self._known_runs.get(run_no)

    def send(self, messages: Sequence[object]) -> None:
        """Send replies to the host."""
        self._host.send(messages)

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def _assign(self, host: StartTrigger) -> None:
        before = self._hosted.take(host.trigger_no)
        if before is None:
            self._per_run.put(host.run_no, (self._per_run.get(host.run_no) or 0) + 1)
        else:
            self._classes.release(_decode(before).class_no)
        class_no = self._classes.acquire(host.class_path)
        self._hosted.put(host.trigger_no, packed(_Hosted.of(host, class_no)))
        self._host.put(host)

    def _on_reports(self, reports: list[Report]) -> None:
        passed: list[Input] = []
        for report in reports:
            if isinstance(report, TriggerFired):
                if report.is_last:
                    self._release(report)
                passed.append(report)
            elif isinstance(report, TriggerEnded):
                self._release(report)
                if report.reason != SHUTDOWN:
                    passed.append(report)
            else:
                self._handle_internal(report)
        if passed:
            self._context.report(passed)
            if self._may_end:
                self._note_storing(passed)

    def _note_storing(self, reports: Sequence[Input]) -> None:
        is_storing = self._context.is_storing
        for report in reports:
            if isinstance(report, TriggerFired) and is_storing(report.trigger_no):
                self._storing.add(report.trigger_no)

    def _is_idle(self) -> bool:
        """Return whether the host has no triggers, and the engine knows how the last ones ended.

        If the host ended earlier, the engine would assign these triggers again, and they would fire
        twice.
        """
        self._storing = set(filter(self._context.is_storing, self._storing))
        return not (self._hosted or self._waiting or self._storing)

    def _handle_internal(self, report: Report) -> None:
        """Handle a report that is not for the engine."""
        match report:
            case Output():
                self._keep(report)
            case NextFireTime():
                self._expect(report)
            case FireTimesPreviewed():
                self._previews.answered(report)
            case Described():
                self._describing.answered(report)
            case Query():
                if may_query(self, report):
                    self._context.on_query(self, report)
            case CancelQuery():
                self._context.on_query(self, report)
            case _:
                _logger.warning("the %s host reported %s", self._role, type(report).__name__)

    def _expect(self, report: NextFireTime) -> None:
        if self._find(report.trigger_no, report.assignment_id) is None:
            return
        self._expected.pop(report.trigger_no, None)
        if report.fire_time is not None:
            self._expected[report.trigger_no] = report.fire_time

    def _find(self, number: TriggerNo, assignment_id: int) -> _Hosted | None:
        """Return the trigger with this number, if ``assignment_id`` is its current assignment."""
        body = self._hosted.get(number)
        hosted = None if body is None else _decode(body)
        return hosted if hosted is not None and hosted.assignment_id == assignment_id else None

    def _release(self, ended: TriggerEnded | TriggerFired) -> None:
        body = self._hosted.take(ended.trigger_no)
        if body is None:
            return
        hosted = _decode(body)
        if (
            hosted.assignment_id != ended.assignment_id
        ):  # an earlier assignment ended, not the current one
            self._hosted.put(ended.trigger_no, body)
            return
        self._classes.release(hosted.class_no)
        self._expected.pop(ended.trigger_no, None)
        self._close_log(ended.trigger_no)
        left = (self._per_run.take(hosted.run_no) or 0) - 1
        if left > 0:
            self._per_run.put(hosted.run_no, left)
        if len(self._hosted) < self._capacity:
            self._assign_next()
        self._check_closed()

    def _check_closed(self) -> None:
        if self._is_closing and not self._hosted:
            self._all_released.set()

    def _assign_next(self) -> None:
        while self._heap:
            _, number = heapq.heappop(self._heap)
            body = self._waiting.take(number)
            if body is not None:  # otherwise the trigger was released in the meantime
                host = _decode_host(body)
                self._assign(host)
                self._context.report(
                    [TriggerCapacityChanged(number, host.assignment_id, has_capacity=True)]
                )
                return

    def _compact_heap(self) -> None:
        """Compact the heap if most of its entries are for triggers that no longer wait."""
        if len(self._heap) > 2 * len(self._waiting) + _HEAP_SLACK:
            due = {number: at for at, number in self._heap if number in self._waiting}
            self._heap = [(at, number) for number, at in due.items()]
            heapq.heapify(self._heap)

    def _keep(self, output: Output) -> None:
        """Add the output of a trigger to the log of its task."""
        number, assignment_id = output.task_no, output.start_no
        hosted = self._find(number, assignment_id)
        if hosted is None:
            return  # output of an abandoned assignment
        if hosted.task_index < 0:  # the trigger starts runs, and belongs to no task
            shown = self._context.tasklog.masks.masked(output.data)[:_SHOWN_BYTES]
            name = self._classes[hosted.class_no]
            with about(trigger_id=number, trigger=name):
                _logger.info("a trigger that starts runs printed: %r", shown)
            return
        log = self._logs.get(number)
        if log is None:
            log = self._logs[number] = self._context.tasklog.open(hosted.log_key())
        log.offer(output.data, is_stderr=output.is_stderr)

    def _close_log(self, number: TriggerNo) -> None:
        log = self._logs.pop(number, None)
        if log is not None:
            log.close()

    async def _on_data(self, data: bytes) -> None:
        """Log output from the pipe.

        It comes from C libraries and grandchildren, not from triggers.
        """
        shown = self._context.tasklog.masks.masked(data)[:_SHOWN_BYTES]
        _logger.info("the %s host printed: %r", self._role, shown)

    def _forget_all(self) -> None:
        self._context.on_query(self, CancelQuery(-1))
        self._hosted, self._waiting, self._per_run = Pages(Rows), Pages(Rows), Pages(Numbers)
        self._classes = Interner()
        self._heap.clear()
        for number in list(self._logs):
            self._close_log(number)
        self._known_runs.clear()
        self._expected.clear()
        self._previews.lost()
        self._check_closed()
