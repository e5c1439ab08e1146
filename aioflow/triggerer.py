"""The daemon's side of hosting triggers: assignment, capacity, and what a host has."""

from __future__ import annotations

import heapq
import logging
import math
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import anyio
from anyio.abc import TaskStatus

from aioflow.core.hosting import QUARANTINE
from aioflow.executors.pulse import HEALTH_SECONDS
from aioflow.executors.shared_host import SharedHost
from aioflow.executors.wiring import Wiring, may_ask
from aioflow.inputs import EndHosting, HostTrigger, Input, RoomChanged, TakeEvents
from aioflow.messages import Ask, Fired, Output, Report, TriggerEnded
from aioflow.model import RunNo, TriggerNo
from aioflow.orders import End, ForgetRun, Host, RunInfo
from aioflow.tasklog import LogKey, TryLog

__all__ = ("CAPACITY", "Triggerer")

CAPACITY = 100_000
"""Triggers one host is given at once."""

SHUTDOWN = "shutdown"
"""The reason of a hosting that ends with its daemon."""

REPLACE_SECONDS = 0.35
REHOST_SECONDS = 50e-6
"""What another host in place of this one costs those that wait, and each one more of them. A
step that has stood for as long may well stand for as long again."""

_logger = logging.getLogger(__name__)


class Triggerer:
    """Hosts triggers in one process of a role. When it dies ``HostLost`` names the culprit.

    That of the role ``quarantine`` starts its process with the first trigger it is given.

    Over its capacity triggers wait, the higher priority first and then the older one; the engine
    is told of each, by ``RoomChanged``. Orders given while there is no host are dropped: after
    ``HostUp`` the engine gives all waiting triggers again.
    """

    def __init__(
        self,
        wiring: Wiring,
        *,
        role: str = "triggers",
        health_seconds: float = HEALTH_SECONDS,
        capacity: int = CAPACITY,
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
        )
        self._hosted: dict[TriggerNo, Host] = {}
        self._waiting: dict[TriggerNo, Host] = {}
        self._order: list[tuple[int, TriggerNo]] = []
        self._logs: dict[TriggerNo, TryLog] = {}
        self._per_run: Counter[RunNo] = Counter()
        self._told: dict[RunNo, RunInfo] = {}

    @property
    def waiting_for_capacity(self) -> AbstractSet[TriggerNo]:
        """The triggers no host has room for."""
        return self._waiting.keys()

    @property
    def hosted(self) -> AbstractSet[TriggerNo]:
        """The triggers the host has, those included that it was told to let go of."""
        return self._hosted.keys()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep a host until cancelled; signals ``task_status`` when it is up, or not yet wanted."""
        if self._role == QUARANTINE and not self._wanted.is_set():
            task_status.started()
            task_status = anyio.TASK_STATUS_IGNORED
            await self._wanted.wait()
        await self._host.run(task_status=task_status)

    def _patience_seconds(self) -> float:
        """How long one trigger may hold up the others; in quarantine they put up with it.

        So they do at the end, where none is hosted again: the caller bounds the time for that.
        """
        others = len(self._hosted) - 1
        if self._role == QUARANTINE or self._is_closing or others < 1:
            return math.inf
        return REPLACE_SECONDS + others * REHOST_SECONDS

    def _class_of(self, number: int) -> str:
        host = self._hosted.get(number)
        return "" if host is None else host.class_path

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def host(self, effect: HostTrigger) -> None:
        """Host a trigger; one that is hosted already is handed over anew."""
        host = effect.host
        if self._is_closing:
            return
        self._wanted.set()
        if not self._host.is_up:
            return
        if effect.info is not None and effect.info.run_no not in self._told:
            self._told[effect.info.run_no] = effect.info
            self._host.put(effect.info)
        if host.trigger_no in self._hosted or len(self._hosted) < self._capacity:
            self._waiting.pop(host.trigger_no, None)
            self._assign(host)
        else:
            if host.trigger_no not in self._waiting:
                heapq.heappush(self._order, (-host.priority, host.trigger_no))
            self._waiting[host.trigger_no] = host
            self._wiring.report([RoomChanged(host.trigger_no, host.hosting, has_room=False)])

    def forget(self, run_no: RunNo) -> None:
        """A run has ended."""
        if self._told.pop(run_no, None) is not None:
            self._host.put(ForgetRun(run_no))

    def take_events(self, effect: TakeEvents) -> None:
        """Let a trigger go on: its events are stored."""
        if effect.taken.trigger_no in self._hosted:
            self._host.put(effect.taken)

    def end(self, effect: EndHosting) -> None:
        """Let go of a trigger, confirmed by ``TriggerEnded``; at once if no host has it."""
        end = effect.end
        if end.trigger_no in self._hosted:
            self._host.put(end)
            return
        self._waiting.pop(end.trigger_no, None)
        at = (end.trigger_no, end.hosting, self._wiring.clock.now())
        self._wiring.report([TriggerEnded(*at, reason=end.reason)])

    async def shut_down(self) -> None:
        """Have the host let go of all it has, as the daemon is to end; return when it has.

        Nothing is hosted any more, and nobody is told: to the engine what waits goes on waiting,
        and the next daemon hosts it again. How long it may take is the caller's business.
        """
        self._is_closing = True
        self._waiting.clear()
        for host in self._hosted.values():
            self._host.put(End(host.trigger_no, host.hosting, SHUTDOWN))
        if self._hosted:
            await self._has_let_go.wait()

    # ── an asker, see wiring.Asker ──────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Whether an answer still reaches the host."""
        return self._host.is_open

    def serves(self, run_no: RunNo) -> bool:
        """Whether it hosts a trigger of this run."""
        return self._per_run[run_no] > 0

    def info(self, run_no: RunNo) -> RunInfo | None:
        """Return what the host was told of a run whose tasks wait straight from their start."""
        return self._told.get(run_no)

    def send(self, messages: Sequence[object]) -> None:
        """Send answers."""
        self._host.send(messages)

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def _assign(self, host: Host) -> None:
        if host.trigger_no not in self._hosted:
            self._per_run[host.run_no] += 1
        self._hosted[host.trigger_no] = host
        self._host.put(host)

    def _take(self, reports: list[Report]) -> None:
        passed: list[Input] = []
        for report in reports:
            if isinstance(report, Fired):
                passed.append(report)
            elif isinstance(report, TriggerEnded):
                self._let_go(report)
                if report.reason != SHUTDOWN:
                    passed.append(report)
            elif isinstance(report, Output):
                self._keep(report)
            elif isinstance(report, Ask):
                if may_ask(self, report):
                    self._wiring.ask(self, report)
            else:
                _logger.warning("the %s host reported %s", self._role, type(report).__name__)
        if passed:
            self._wiring.report(passed)

    def _let_go(self, ended: TriggerEnded) -> None:
        host = self._hosted.get(ended.trigger_no)
        if host is None or host.hosting != ended.hosting:
            return  # of an earlier hosting: the present one lives
        del self._hosted[ended.trigger_no]
        self._logs.pop(ended.trigger_no, None)
        self._per_run[host.run_no] -= 1
        if not self._per_run[host.run_no]:
            del self._per_run[host.run_no]
        if len(self._hosted) < self._capacity:
            self._assign_next()
        self._look_whether_closed()

    def _look_whether_closed(self) -> None:
        if self._is_closing and not self._hosted:
            self._has_let_go.set()

    def _assign_next(self) -> None:
        while self._order:
            _, number = heapq.heappop(self._order)
            host = self._waiting.pop(number, None)
            if host is not None:  # else it was let go of meanwhile
                self._assign(host)
                self._wiring.report([RoomChanged(number, host.hosting, has_room=True)])
                return

    def _keep(self, output: Output) -> None:
        """Add what a trigger printed to the log of its task."""
        number, hosting = output.task_no, output.start_no
        host = self._hosted.get(number)
        if host is None or host.hosting != hosting or host.position < 0:
            return  # of one that was abandoned
        log = self._logs.get(number)
        if log is None:
            log = self._logs[number] = self._wiring.tasklog.open(_log_key(host))
        log.offer(output.data)

    async def _hear(self, data: bytes) -> None:
        """What comes through the pipe belongs to no trigger: a library in C, a grandchild."""
        _logger.info("the %s host printed: %r", self._role, data[:500])

    def _forget_all(self) -> None:
        self._hosted.clear()
        self._waiting.clear()
        self._order.clear()
        self._logs.clear()
        self._per_run.clear()
        self._told.clear()
        self._look_whether_closed()


def _log_key(host: Host) -> LogKey:
    return LogKey(
        run_no=host.run_no,
        position=host.position,
        map_index=host.map_index,
        task_no=host.task_no,
        start_no=host.start_no,
        try_number=host.try_number,
    )
