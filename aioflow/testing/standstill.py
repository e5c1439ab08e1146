"""Reports what a simulation waits for when that takes real time.

A test may wait for a line of user code that never ends, or for descriptors that get a moment of
real time at each step. Both look alike from outside: nothing happens.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TypeVar

from aioflow.testing.loop import VirtualLoop

__all__ = ("Standstill",)

REPORT_AFTER_SECONDS = 10.0
"""Real seconds before the first report of a wait. Each further interval is twice as long."""

_OURS = str(Path(__file__).parent.parent) + os.sep
_NOT_OF_USERS = (_OURS, sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("purelib"))

T = TypeVar("T")


class Standstill:
    """Waits for results of a simulation's loop, and reports when that takes real time.

    Args:
        now: Returns the time of the virtual clock.
        tell: Called with each report, in the waiting thread.
    """

    def __init__(
        self, loop: VirtualLoop, now: Callable[[], datetime], tell: Callable[[str], object]
    ) -> None:
        self._loop = loop
        self._now = now
        self._tell = tell

    def result(self, future: Future[T]) -> T:
        """Wait for a result of the loop, blocking this thread."""
        interval, before = REPORT_AFTER_SECONDS, self._progress()
        while not wait({future}, timeout=interval).done:
            before, interval = self._report(before, interval), 2 * interval
        return future.result()

    async def awaited(self, future: Future[T]) -> T:
        """Wait for a result of the loop, while the loop of the test continues."""
        waited = asyncio.wrap_future(future)
        interval, before = REPORT_AFTER_SECONDS, self._progress()
        try:
            while not (await asyncio.wait({waited}, timeout=interval))[0]:
                before, interval = self._report(before, interval), 2 * interval
        except asyncio.CancelledError:
            waited.cancel()
            raise
        return waited.result()

    def _progress(self) -> tuple[float, float]:
        return self._loop.time(), self._loop.vain_seconds

    def _report(self, before: tuple[float, float], seconds: float) -> tuple[float, float]:
        """Report what was waited for in these seconds, if anything; return the present progress."""
        present = moved_to, vain_seconds = self._progress()
        vain = vain_seconds - before[1]
        if moved_to == before[0]:
            self._say(f"has stood still for {seconds:g} s of real time and waits for")
        elif vain >= seconds / 2:
            self._say(f"has spent {vain:.0f} of the last {seconds:g} s of real time waiting for")
        return present

    def _say(self, what: str) -> None:
        causes = list(self._causes())
        if causes:  # otherwise the machine is slow, and the simulation continues by itself
            moment = self._now().astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
            self._tell("\n  - ".join((f"at {moment} the simulation {what}:", *causes)))

    def _causes(self) -> Iterator[str]:
        frames = sys._current_frames()  # noqa: SLF001 - the only way to see what a thread does
        busy = [ident for ident in list(self._loop.working) if ident in frames]
        for ident in busy:
            yield f"a thread {_place(frames[ident])}"
        if self._loop.is_selecting:
            for descriptor in self._loop.watched():
                yield f"word from {_name(descriptor)}, at each step of time"
        elif not busy and self._loop.ident in frames:
            yield f"the event loop {_place(frames[self._loop.ident])}"


def _place(frame: FrameType) -> str:
    """Describe where a thread is: the innermost line of user code, or else its present line."""
    innermost: FrameType | None = frame
    while innermost is not None:
        if not innermost.f_code.co_filename.startswith(_NOT_OF_USERS):
            frame = innermost
            break
        innermost = innermost.f_back
    code = frame.f_code
    return f"in {code.co_name}() at {code.co_filename}:{frame.f_lineno}"


def _name(descriptor: int) -> str:
    """Describe what a descriptor of this process refers to."""
    try:
        with closing(socket.socket(fileno=os.dup(descriptor))) as opened:
            return f"the socket to {opened.getpeername()}"
    except OSError:
        pass
    try:
        return f"the descriptor {descriptor} ({Path(f'/proc/self/fd/{descriptor}').readlink()})"
    except OSError:
        return f"the descriptor {descriptor}"
