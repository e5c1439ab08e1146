"""Timers of the engine that check their durations: the wall clock must not change a duration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from aioflow.clock import SteadyClock
from aioflow.engine.timers import Timers
from aioflow.model.timestamps import Timestamp
from aioflow.protocol.inputs import Input, TimerFired
from tests.sim.broken import Broken
from tests.sim.workload import SECOND

__all__ = ("Lengths",)

_LATEST_US = 60 * SECOND
"""Tolerance for coarse timers and a late loop. Steps of the wall clock are far larger."""


class Lengths(Timers):
    """Timers that report each duration that ends too early or too late.

    Args:
        report: See ``Timers``.
        found: Called with each violation.
    """

    def __init__(
        self,
        clock: SteadyClock,
        report: Callable[[Sequence[Input]], None],
        found: Callable[[Broken], None],
    ) -> None:
        super().__init__(clock, self._passed_on)
        self._given_to = report
        self._found = found
        self._over: defaultdict[TimerFired, list[int]] = defaultdict(list)

    def arm(self, due: TimerFired, *, at: Timestamp | None = None) -> None:
        """See ``Timers``."""
        if not due.dag_id:
            moment = self._clock.read()
            left = (due.at if at is None else at) - moment.steady
            self._over[due].append(moment.monotonic + max(left, 0))
        super().arm(due, at=at)

    def _passed_on(self, inputs: Sequence[Input]) -> None:
        for entry in inputs:
            if isinstance(entry, TimerFired) and not entry.dag_id:
                self._look(entry)
        self._given_to(inputs)

    def _look(self, due: TimerFired) -> None:
        over = self._over[due]
        over.sort()
        late = self._clock.read().monotonic - over.pop(0)
        if not 0 <= late <= _LATEST_US:
            how = "early" if late < 0 else "late"
            self._found(Broken("L2 timers", f"{due} comes {abs(late) / SECOND:g} s too {how}"))
