"""Processes in one event loop that can be stopped, as by SIGSTOP, and killed, as by SIGKILL.

Each callback knows its process by a context variable. While a process is stopped, its callbacks are
set aside. A killed process is one that stays stopped for good.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from tests.sim.loop import SeededLoop

__all__ = ("PROCESS", "ClusterLoop", "Process", "Span", "seconds_outside")

Span = tuple[float, float]
"""The begin and end of a period, in seconds."""


class Process:
    """A process that can be stopped.

    Attributes:
        is_stopped: Whether it is stopped, so that none of its callbacks run.
        is_killed: Whether it will never run again.
        stops: The periods during which it was stopped.
    """

    def __init__(self) -> None:
        self.is_stopped = self.is_killed = False
        self.set_aside: list[Any] = []
        self.stops: list[Span] = []
        self.stopped_at = 0.0


PROCESS: ContextVar[Any] = ContextVar("process", default=None)
"""The process in whose context code runs; ``None`` for the server, the network and clients."""


class ClusterLoop(SeededLoop):
    """See ``SeededLoop``. The callbacks of a stopped process are set aside."""

    def _run_handle(self, handle: Any) -> None:
        process = handle._context.get(PROCESS)
        if process is not None and process.is_stopped:
            process.set_aside.append(handle)
        else:
            handle._run()

    def resume(self, process: Process) -> None:
        """Let a process run again, and run everything that has become due in the meantime."""
        process.is_stopped = False
        process.stops.append((process.stopped_at, self.time()))
        self._ready.extend(process.set_aside)
        process.set_aside.clear()


def seconds_outside(since: float, until: float, spans: Iterable[Span]) -> float:
    """Return how much of a period lies outside the given spans, which may overlap."""
    total, at = 0.0, since
    for begin, end in sorted(spans):
        total += max(0.0, min(begin, until) - at)
        at = max(at, min(end, until))
    return total + max(0.0, until - at)
