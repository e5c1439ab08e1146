"""The daemon's side of hosting triggers: assignment, capacity, and what a host has."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import anyio
from anyio.abc import TaskStatus

from aioflow.executors.pulse import HEALTH_SECONDS
from aioflow.executors.shared_host import SharedHost
from aioflow.executors.wiring import Wiring, may_ask
from aioflow.inputs import EndHosting, HostTrigger, Input
from aioflow.messages import Ask, Fired, Host, Report, RunInfo, TriggerEnded
from aioflow.model import RunNo, TriggerNo

__all__ = ("CAPACITY", "Triggerer")

CAPACITY = 100_000
"""Triggers one host is given at once."""

_logger = logging.getLogger(__name__)


class Triggerer:
    """Hosts triggers in one process. When it dies ``HostLost`` names the culprit.

    Over its capacity triggers wait, the oldest order first. Orders given while there is no
    host are dropped: after ``HostUp`` the engine gives all waiting triggers again.
    """

    def __init__(
        self,
        wiring: Wiring,
        *,
        health_seconds: float = HEALTH_SECONDS,
        capacity: int = CAPACITY,
    ) -> None:
        self._wiring = wiring
        self._capacity = capacity
        self._host = SharedHost(
            "triggers",
            wiring,
            on_reports=self._take,
            on_output=self._hear,
            on_lost=self._forget_all,
            health_seconds=health_seconds,
        )
        self._hosted: dict[TriggerNo, Host] = {}
        self._waiting: dict[TriggerNo, Host] = {}
        self._per_run: Counter[RunNo] = Counter()

    @property
    def waiting_for_capacity(self) -> AbstractSet[TriggerNo]:
        """The triggers no host has room for."""
        return self._waiting.keys()

    @property
    def hosted(self) -> AbstractSet[TriggerNo]:
        """The triggers the host has, those included that it was told to let go of."""
        return self._hosted.keys()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep a host until cancelled; signals ``task_status`` when the first is up."""
        await self._host.run(task_status=task_status)

    # ── verbs ───────────────────────────────────────────────────────────────────────────

    def host(self, effect: HostTrigger) -> None:
        """Host a trigger; one that is hosted already is handed over anew."""
        host = effect.host
        if not self._host.is_up:
            return
        if host.trigger_no in self._hosted or len(self._hosted) < self._capacity:
            self._waiting.pop(host.trigger_no, None)
            self._assign(host)
        else:
            self._waiting[host.trigger_no] = host

    def end(self, effect: EndHosting) -> None:
        """Let go of a trigger, confirmed by ``TriggerEnded``; at once if no host has it."""
        end = effect.end
        if end.trigger_no in self._hosted:
            self._host.put(end)
            return
        self._waiting.pop(end.trigger_no, None)
        gone = TriggerEnded(end.trigger_no, end.hosting, self._wiring.clock.now())
        self._wiring.report([gone])

    # ── an asker, see wiring.Asker ──────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Whether an answer still reaches the host."""
        return self._host.is_open

    def serves(self, run_no: RunNo) -> bool:
        """Whether it hosts a trigger of this run."""
        return self._per_run[run_no] > 0

    def info(self, run_no: RunNo) -> RunInfo | None:
        """Return nothing: a trigger host runs no tasks, so it may ask for no results."""
        return None

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
                passed.append(report)
            elif isinstance(report, Ask):
                if may_ask(self, report):
                    self._wiring.ask(self, report)
            else:
                _logger.warning("the trigger host reported %s", type(report).__name__)
        if passed:
            self._wiring.report(passed)

    def _let_go(self, ended: TriggerEnded) -> None:
        host = self._hosted.get(ended.trigger_no)
        if host is None or host.hosting != ended.hosting:
            return  # of an earlier hosting: the present one lives
        del self._hosted[ended.trigger_no]
        self._per_run[host.run_no] -= 1
        if not self._per_run[host.run_no]:
            del self._per_run[host.run_no]
        if self._waiting and len(self._hosted) < self._capacity:
            self._assign(self._waiting.pop(next(iter(self._waiting))))

    async def _hear(self, data: bytes) -> None:
        """What comes through the pipe belongs to no trigger: a library in C, a grandchild."""
        _logger.info("the trigger host printed: %r", data[:500])

    def _forget_all(self) -> None:
        self._hosted.clear()
        self._waiting.clear()
        self._per_run.clear()
