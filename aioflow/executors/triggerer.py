"""The daemon's side of hosting triggers: assignment, capacity, and what a host has."""

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

from aioflow.core.state.child_roles import QUARANTINE, TRIGGERS
from aioflow.core.state.interner import Interner
from aioflow.core.state.pages import Numbers, Pages, Rows, packed
from aioflow.executors.describe import Describing
from aioflow.executors.executor_context import Wiring, may_ask
from aioflow.executors.host_heartbeat import HEALTH_SECONDS
from aioflow.executors.host_load import HostLoad
from aioflow.executors.preview import Foresight
from aioflow.executors.shared_host import SharedHost
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.timestamps import Timestamp
from aioflow.model.trigger_description import Watched
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
"""Triggers one host is given at once."""

SHUTDOWN = "shutdown"
"""The reason of a hosting that ends with its daemon."""

REPLACE_SECONDS = 0.35
REHOST_SECONDS = 50e-6
"""What another host in place of this one costs those that wait, and each one more of them. A
step that has stood for as long may well stand for as long again."""

_SHOWN_BYTES = 2_000
"""Of what is printed and belongs to no task."""

_PLACES_KEPT = 64
"""In the order of those that wait, besides twice as many as wait."""

_logger = logging.getLogger(__name__)


class _Hosted(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a trigger the host has, packed: there may be a million."""

    hosting: int
    run_no: RunNo
    task_no: TaskNo
    position: int
    map_index: int
    start_no: StartNo
    try_number: int
    class_no: int

    @classmethod
    def of(cls, host: StartTrigger, class_no: int) -> Self:
        """Return what is kept of an order; its class is one of many that share it."""
        return cls(
            host.hosting,
            host.run_no,
            host.task_no,
            host.position,
            host.map_index,
            host.start_no,
            host.try_number,
            class_no,
        )

    def log_key(self) -> LogKey:
        """Return whose output it is what the trigger prints."""
        return LogKey(
            run_no=self.run_no,
            position=self.position,
            map_index=self.map_index,
            task_no=self.task_no,
            start_no=self.start_no,
            try_number=self.try_number,
        )


_decode = msgspec.msgpack.Decoder(_Hosted).decode
_decode_host = msgspec.msgpack.Decoder(StartTrigger).decode


class Triggerer:
    """Hosts triggers in one process of a role. When it dies ``HostLost`` names the culprit.

    That of the role ``quarantine`` starts its process with the first trigger it is given.

    Triggers beyond its capacity wait, ordered by priority and then by age. The engine learns of
    each by ``TriggerCapacityChanged``. Commands sent while there is no process are dropped: after
    ``HostUp`` the engine assigns all waiting triggers again.
    """

    hosts_triggers = True

    def __init__(
        self,
        wiring: Wiring,
        *,
        role: str = TRIGGERS,
        health_seconds: float = HEALTH_SECONDS,
        capacity: int = CAPACITY,
        idle_seconds: float = math.inf,
    ) -> None:
        self._wiring = wiring
        self._capacity = capacity
        self._role = role
        self._wanted = anyio.Event()
        self._is_closing = False
        self._has_let_go = anyio.Event()
        self._host = SharedHost(
            role,
            wiring,
            on_reports=self._take,
            on_output=self._hear,
            on_lost=self._forget_all,
            health_seconds=health_seconds,
            patience_seconds=self._patience_seconds,
            class_of=self._class_of,
            idle_seconds=idle_seconds,
            is_idle=lambda: not self._hosted and not self._waiting,
        )
        self._hosted: Pages[bytes] = Pages(Rows)
        self._waiting: Pages[bytes] = Pages(Rows)
        self._order: list[tuple[int, TriggerNo]] = []
        self._logs: dict[TriggerNo, TryLog] = {}
        self._per_run: Pages[int] = Pages(Numbers)
        self._classes: Interner[str] = Interner()
        self._told: dict[RunNo, RunInfo] = {}
        self._questions = itertools.count(1)
        self._describing = Describing(self._host.put)
        self._foresight = Foresight(self._host.put)
        self._expected: dict[TriggerNo, Timestamp] = {}

    @property
    def load(self) -> HostLoad:
        """How the host fares, and what it has, those it was told to let go of included."""
        return msgspec.structs.replace(
            self._host.load,
            triggers=len(self._hosted),
            waiting=len(self._waiting),
            capacity=self._capacity,
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep a host until cancelled or idle.

        Signals ``task_status`` when it is up, or not yet wanted.
        """
        if self._role == QUARANTINE and not self._wanted.is_set():
            task_status.started()
            task_status = anyio.TASK_STATUS_IGNORED
            await self._wanted.wait()
        await self._host.run(task_status=task_status)

    def _patience_seconds(self) -> float:
        """How long one trigger may hold up those of other DAGs; in quarantine they put up with it.

        In the own host of a DAG there are none.
        So they do at the end, where none is hosted again: the caller bounds the time for that.
        """
        others = len(self._hosted) - 1
        if self._role != TRIGGERS or self._is_closing or others < 1:
            return math.inf
        return REPLACE_SECONDS + others * REHOST_SECONDS

    def _class_of(self, number: int) -> str:
        body = self._hosted.get(number)
        if body is None:
            return self._foresight.class_of(number)
        return self._classes[_decode(body).class_no]

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def host(self, effect: AssignTrigger) -> None:
        """Host a trigger; one that is hosted already is handed over anew."""
        host = effect.host
        if self._is_closing:
            return
        if not self._host.is_up:
            self._wanted.set()
            return
        if effect.info is not None and effect.info.run_no not in self._told:
            self._told[effect.info.run_no] = effect.info
            self._host.put(effect.info)
        if len(self._hosted) < self._capacity or host.trigger_no in self._hosted:
            if self._waiting:
                self._waiting.take(host.trigger_no)
            self._assign(host)
        else:
            if host.trigger_no not in self._waiting:
                heapq.heappush(self._order, (-host.priority, host.trigger_no))
            self._waiting.put(host.trigger_no, packed(host))
            self._wiring.report(
                [TriggerCapacityChanged(host.trigger_no, host.hosting, has_room=False)]
            )

    def forget(self, run_no: RunNo) -> None:
        """A run has ended."""
        if self._told.pop(run_no, None) is not None:
            self._host.put(ForgetRun(run_no))

    def take_events(self, effect: ConfirmEvents) -> bool:
        """Let a trigger go on: its events are stored. Return whether it is hosted here."""
        is_here = effect.taken.trigger_no in self._hosted
        if is_here:
            self._host.put(effect.taken)
        return is_here

    def end(self, effect: ReleaseTrigger) -> None:
        """Let go of a trigger, confirmed by ``TriggerEnded``; at once if no host has it."""
        end = effect.end
        if end.trigger_no in self._hosted:
            self._host.put(end)
            return
        if self._waiting.take(end.trigger_no) is not None:
            self._forget_places()
        at = (end.trigger_no, end.hosting, self._wiring.clock.now())
        self._wiring.report([TriggerEnded(*at, reason=end.reason)])

    async def foresee(
        self, host: StartTrigger, *, after: Timestamp, count: int
    ) -> FireTimesPreviewed | None:
        """Return when a timetable has its next slots, or why not; ``None`` without a process.

        Args:
            host: What it is made of, whether it is hosted here or not.
            after: Only slots behind this.
            count: At most so many.
        """
        if not self._host.is_up:
            self._wanted.set()
            return None
        return await self._foresight.ask(host, after=after, count=count)

    @property
    def expected(self) -> Mapping[TriggerNo, Timestamp]:
        """Which slot each of the timetables waits for that the host has."""
        return self._expected

    async def shut_down(self) -> None:
        """Have the host let go of all it has, as the daemon is to end; return when it has.

        Nothing is hosted any more, and nobody is told: to the engine what waits goes on waiting,
        and the next daemon hosts it again. How long it may take is the caller's business.
        """
        self._is_closing = True
        self._waiting = Pages(Rows)
        for number, body in self._hosted.items():
            self._host.put(StopTrigger(number, _decode(body).hosting, SHUTDOWN))
        if self._hosted:
            await self._has_let_go.wait()

    # ── for people ──────────────────────────────────────────────────────────────────────

    async def describe(self, numbers: Sequence[TriggerNo]) -> dict[TriggerNo, Watched]:
        """Return what the host says of those of these that it has, if it does so at once."""
        known = tuple(number for number in numbers if number in self._hosted)
        if not known or not self._host.is_up:
            return {}
        return await self._describing.ask(known)

    # ── an asker, see wiring.Asker ──────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Whether an answer still reaches the host."""
        return self._host.is_open

    def serves(self, run_no: RunNo) -> bool:
        """Whether it hosts a trigger of this run."""
        return run_no in self._per_run

    def info(self, run_no: RunNo) -> RunInfo | None:
        """Return what the host was told of a run whose tasks wait straight from their start."""
        return self._told.get(run_no)

    def send(self, messages: Sequence[object]) -> None:
        """Send answers."""
        self._host.send(messages)

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def _assign(self, host: StartTrigger) -> None:
        before = self._hosted.take(host.trigger_no)
        if before is None:
            self._per_run.put(host.run_no, (self._per_run.get(host.run_no) or 0) + 1)
        else:
            self._classes.leave(_decode(before).class_no)
        class_no = self._classes.enter(host.class_path)
        self._hosted.put(host.trigger_no, packed(_Hosted.of(host, class_no)))
        self._host.put(host)

    def _take(self, reports: list[Report]) -> None:
        passed: list[Input] = []
        for report in reports:
            if isinstance(report, TriggerFired):
                if report.is_last:
                    self._let_go(report)
                passed.append(report)
            elif isinstance(report, TriggerEnded):
                self._let_go(report)
                if report.reason != SHUTDOWN:
                    passed.append(report)
            else:
                self._take_own(report)
        if passed:
            self._wiring.report(passed)

    def _take_own(self, report: Report) -> None:
        """Take what is not for the engine."""
        match report:
            case Output():
                self._keep(report)
            case NextFireTime():
                self._expect(report)
            case FireTimesPreviewed():
                self._foresight.answered(report)
            case Described():
                self._describing.answered(report)
            case Query():
                if may_ask(self, report):
                    self._wiring.ask(self, report)
            case CancelQuery():
                self._wiring.ask(self, report)
            case _:
                _logger.warning("the %s host reported %s", self._role, type(report).__name__)

    def _expect(self, report: NextFireTime) -> None:
        if self._find(report.trigger_no, report.hosting) is None:
            return
        self._expected.pop(report.trigger_no, None)
        if report.slot is not None:
            self._expected[report.trigger_no] = report.slot

    def _find(self, number: TriggerNo, hosting: int) -> _Hosted | None:
        """Return what is hosted by this number, if it is in this hosting."""
        body = self._hosted.get(number)
        hosted = None if body is None else _decode(body)
        return hosted if hosted is not None and hosted.hosting == hosting else None

    def _let_go(self, ended: TriggerEnded | TriggerFired) -> None:
        body = self._hosted.take(ended.trigger_no)
        if body is None:
            return
        hosted = _decode(body)
        if hosted.hosting != ended.hosting:  # of an earlier one: the present one lives
            self._hosted.put(ended.trigger_no, body)
            return
        self._classes.leave(hosted.class_no)
        self._expected.pop(ended.trigger_no, None)
        self._close_log(ended.trigger_no)
        left = (self._per_run.take(hosted.run_no) or 0) - 1
        if left > 0:
            self._per_run.put(hosted.run_no, left)
        if len(self._hosted) < self._capacity:
            self._assign_next()
        self._look_whether_closed()

    def _look_whether_closed(self) -> None:
        if self._is_closing and not self._hosted:
            self._has_let_go.set()

    def _assign_next(self) -> None:
        while self._order:
            _, number = heapq.heappop(self._order)
            body = self._waiting.take(number)
            if body is not None:  # else it was let go of meanwhile
                host = _decode_host(body)
                self._assign(host)
                self._wiring.report([TriggerCapacityChanged(number, host.hosting, has_room=True)])
                return

    def _forget_places(self) -> None:
        """Keep no more places in the order than twice as many as there are who wait."""
        if len(self._order) > 2 * len(self._waiting) + _PLACES_KEPT:
            places = {number: at for at, number in self._order if number in self._waiting}
            self._order = [(at, number) for number, at in places.items()]
            heapq.heapify(self._order)

    def _keep(self, output: Output) -> None:
        """Add what a trigger printed to the log of its task."""
        number, hosting = output.task_no, output.start_no
        hosted = self._find(number, hosting)
        if hosted is None:
            return  # of one that was abandoned
        if hosted.position < 0:  # it starts runs, and belongs to none
            shown = self._wiring.tasklog.masks.masked(output.data)[:_SHOWN_BYTES]
            name = self._classes[hosted.class_no]
            with about(trigger_id=number, trigger=name):
                _logger.info("a trigger that starts runs printed: %r", shown)
            return
        log = self._logs.get(number)
        if log is None:
            log = self._logs[number] = self._wiring.tasklog.open(hosted.log_key())
        log.offer(output.data)

    def _close_log(self, number: TriggerNo) -> None:
        log = self._logs.pop(number, None)
        if log is not None:
            log.close()

    async def _hear(self, data: bytes) -> None:
        """What comes through the pipe belongs to no trigger: a library in C, a grandchild."""
        shown = self._wiring.tasklog.masks.masked(data)[:_SHOWN_BYTES]
        _logger.info("the %s host printed: %r", self._role, shown)

    def _forget_all(self) -> None:
        self._wiring.ask(self, CancelQuery(-1))
        self._hosted, self._waiting, self._per_run = Pages(Rows), Pages(Rows), Pages(Numbers)
        self._classes = Interner()
        self._order.clear()
        for number in list(self._logs):
            self._close_log(number)
        self._told.clear()
        self._expected.clear()
        self._foresight.lost()
        self._look_whether_closed()
