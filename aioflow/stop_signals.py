"""The signals that stop a daemon: SIGTERM, SIGINT, and the SIGHUP of a closed terminal.

Until the event loop runs, ``__main__`` handles them by exiting at once, since nothing is open.
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
    """Stops a daemon at the first signal, and cancels everything at the second.

    Attributes:
        stopped: Set when the daemon is to stop.
        everything: Cancelled by the second signal, if set.
    """

    def __init__(self) -> None:
        self.stopped = anyio.Event()
        self.everything: anyio.CancelScope | None = None
        self._starting: anyio.CancelScope | None = None

    @classmethod
    @contextmanager
    def received(cls) -> Iterator[Self]:
        """Handle the signals within the block; restore the former handlers after it.

        An ignored SIGHUP, as under ``nohup``, stays ignored.
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
                if handler is not None:  # else not set by Python, and not restorable
                    signal.signal(number, handler)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Cancel the block at the first signal: nothing runs yet that could be drained."""
        with anyio.CancelScope() as self._starting:
            if self.stopped.is_set():
                self._starting.cancel()
            yield
        self._starting = None

    def receive(self, number: signal.Signals) -> None:
        """Handle a signal."""
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
