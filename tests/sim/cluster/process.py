"""Processes that can be stopped, as by SIGSTOP, and killed, as by SIGKILL, inside one event loop.

Each callback knows its process by a context variable. While a process is stopped, its callbacks are
put aside. A process that was killed is one that is stopped for good.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from tests.sim.loop import SeededLoop

__all__ = ("PROCESS", "ClusterLoop", "Process", "Span", "seconds_outside")

Span = tuple[float, float]
"""A time from its beginning to its end, in seconds."""


class Process:
    """A process that may be stopped.

    Attributes:
        is_stopped: It runs nothing now.
        is_killed: It will never run again.
        stops: The times in which it was stopped.
    """

    def __init__(self) -> None:
        self.is_stopped = self.is_killed = False
        self.set_aside: list[Any] = []
        self.stops: list[Span] = []
        self.stopped_at = 0.0


PROCESS: ContextVar[Any] = ContextVar("process", default=None)
"""The process in whose context code runs; ``None`` for the server, the network and clients."""


class ClusterLoop(SeededLoop):
    """See ``SeededLoop``; callbacks of a stopped process are put aside."""

    def _run_handle(self, handle: Any) -> None:
        process = handle._context.get(PROCESS)
        if process is not None and process.is_stopped:
            process.set_aside.append(handle)
        else:
            handle._run()

    def resume(self, process: Process) -> None:
        """Let a process run again, with everything that has become due since."""
        process.is_stopped = False
        process.stops.append((process.stopped_at, self.time()))
        self._ready.extend(process.set_aside)
        process.set_aside.clear()


def seconds_outside(since: float, until: float, spans: Iterable[Span]) -> float:
    """Return how much of a time lies outside of others, which may overlap."""
    total, at = 0.0, since
    for begin, end in sorted(spans):
        total += max(0.0, min(begin, until) - at)
        at = max(at, min(end, until))
    return total + max(0.0, until - at)
