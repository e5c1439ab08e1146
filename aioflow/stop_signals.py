"""The signals that end a daemon: SIGTERM, SIGINT, and the SIGHUP of a terminal that is closed.

``__main__`` answers them until the event loop runs, with nothing open, by ending at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import anyio

from aioflow.telemetry.log import Logger

__all__ = ("StopSignals",)

_log = Logger(__name__)


class StopSignals:
    """Stops a daemon at the first signal, and ends everything at the second.

    Attributes:
        stopped: Set when the daemon is to end.
        everything: Cancelled by the second signal, once it is there.
    """

    def __init__(self) -> None:
        self.stopped = anyio.Event()
        self.everything: anyio.CancelScope | None = None
        self._starting: anyio.CancelScope | None = None

    @classmethod
    @contextmanager
    def received(cls) -> Iterator[Self]:
        """Receive them within the block; after it they do what they did before.

        A SIGHUP that is ignored, as ``nohup`` has it, stays so.
        """
        loop, signals = asyncio.get_running_loop(), cls()
        before = {number: signal.getsignal(number) for number in _numbers()}
        for number in before:
            loop.add_signal_handler(number, signals.receive, number)
        try:
            yield signals
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                if handler is not None:  # else it was not set by Python, and cannot be set again
                    signal.signal(number, handler)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Cancel the block at the first signal: nothing is up yet that could be drained."""
        with anyio.CancelScope() as self._starting:
            if self.stopped.is_set():
                self._starting.cancel()
            yield
        self._starting = None

    def receive(self, number: signal.Signals) -> None:
        """Do what a signal says."""
        scope = self.everything if self.stopped.is_set() else self._starting
        if self.stopped.is_set():
            _log.warning("ending at once", signal=number.name)
        else:
            _log.info("draining" if scope is None else "ending", signal=number.name)
        self.stopped.set()
        if scope is not None:
            scope.cancel()


def _numbers() -> list[signal.Signals]:
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [signal.SIGTERM, signal.SIGINT]
    return numbers if is_ignored else [*numbers, signal.SIGHUP]
