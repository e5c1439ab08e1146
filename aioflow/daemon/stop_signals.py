"""Stop signals of the daemon: SIGTERM, SIGINT, and the SIGHUP of a closed terminal.

Until the event loop runs, ``__main__`` handles these signals by exiting at once, because no
resource is open yet.
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
    """The handler of stop signals: the first drains the daemon, the second cancels everything.

    Attributes:
        stopped: Set when the daemon is to stop.
        everything: The scope that the second signal cancels, if set.
    """

    def __init__(self) -> None:
        self.stopped = anyio.Event()
        self.everything: anyio.CancelScope | None = None
        self._starting: anyio.CancelScope | None = None

    @classmethod
    @contextmanager
    def received(cls) -> Iterator[Self]:
        """Handle stop signals while the block runs, then restore the previous handlers.

        An ignored SIGHUP, as under ``nohup``, stays ignored.
        """
        loop, signals = asyncio.get_running_loop(), cls()
        before = {number: signal.getsignal(number) for number in _stop_signal_numbers()}
        for number in before:
            loop.add_signal_handler(number, signals.receive, number)
        try:
            yield signals
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                if handler is not None:  # otherwise Python did not set it and cannot restore it
                    signal.signal(number, handler)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Cancel the block at the first signal, because there is nothing to drain yet."""
        with anyio.CancelScope() as self._starting:
            if self.stopped.is_set():
                self._starting.cancel()
            yield
        self._starting = None

    def receive(self, number: signal.Signals) -> None:
        """Handle a signal."""
        scope = self.everything if self.stopped.is_set() else self._starting
        if self.stopped.is_set():
            _log.warning("exiting at once", signal=number.name)
        else:
            _log.info("draining" if scope is None else "ending", signal=number.name)
        self.stopped.set()
        if scope is not None:
            scope.cancel()


def _stop_signal_numbers() -> list[signal.Signals]:
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    numbers = [signal.SIGTERM, signal.SIGINT]
    return numbers if is_ignored else [*numbers, signal.SIGHUP]
