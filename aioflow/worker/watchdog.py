"""The watchdog of a shared child: a thread that reports which step blocks the event loop.

It sleeps until a step runs. Then it polls a few times per limit. If the same step is still
running after the limit, it reports the line at which the loop's thread is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from aioflow.worker.blocked_loop import BlockedLoop, line_of
from aioflow.worker.crash_recorder import ASLEEP, MARKED, NO_OWNER, CrashRecorder

__all__ = ("Standstill", "Watchdog", "announcer", "place_of")

LOOKS_PER_LIMIT = 5
SAY_AGAIN_SECONDS = (0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0)
"""Durations in seconds at which a reported step is reported again, besides its end. The daemon
uses these reports to decide how long it keeps waiting."""

LATE_LOOKS = 2
"""Maximum polling periods counted for a late poll if this process used no CPU time meanwhile."""

_SLEEP_SECONDS = 1.0
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_IMPORTS = "<frozen importlib."


class Standstill:
    """Measures how long one step has been running.

    The polling thread can itself be late. If this process used CPU time meanwhile, the step blocked
    all other threads (as C code can), and all of that time counts. If not, the whole process was
    stopped or waited for a CPU, which is not the step's fault.

    Args:
        period_seconds: Polling period.
    """

    def __init__(self, period_seconds: float) -> None:
        self._longest = LATE_LOOKS * period_seconds
        self._looked_at = self._used = 0.0
        self.seconds = 0.0

    def begin(self, now: float, used: float) -> None:
        """Start measuring: a step may have begun now.

        Args:
            now: Monotonic seconds.
            used: CPU seconds used by this process.
        """
        self._looked_at, self._used, self.seconds = now, used, 0.0

    def check(self, now: float, used: float) -> None:
        """Add the time since the last poll; the step is still running or has just ended."""
        late = max(self._longest, used - self._used)
        self.seconds += min(now - self._looked_at, late)
        self._looked_at, self._used = now, used


class Watchdog:
    """Watches the steps of one loop's thread. Call ``start`` once; it never ends.

    Args:
        recorder: The crash recorder, which the steps sign.
        say: Called with each report from the watchdog's thread, while the loop is blocked.
        limit_seconds: Longer steps are reported; detection is certain from 1.5 times the limit on.
        code: Folder of the code versions, which hold the user's own code.
    """

    def __init__(
        self,
        recorder: CrashRecorder,
        say: Callable[[BlockedLoop], None],
        *,
        limit_seconds: float,
        code: str,
    ) -> None:
        self._recorder = recorder
        self._say = say
        self._code = code.rstrip(os.sep) + os.sep
        self._period = limit_seconds / LOOKS_PER_LIMIT
        self._limits = (limit_seconds, *(s for s in SAY_AGAIN_SECONDS if s > limit_seconds))
        self._standstill = Standstill(self._period)
        self._incident = 0
        self._said: BlockedLoop | None = None
        self._thread_id = 0

    def start(self) -> None:
        """Start watching the calling thread."""
        self._thread_id = threading.get_ident()
        threading.Thread(target=self._run, name="aioflow-watchdog", daemon=True).start()

    def _run(self) -> None:
        word = self._recorder.word
        while True:
            word[1] = ASLEEP
            if word[0] == NO_OWNER:
                # Poll at least once a second: a step between these two lines may have gone
                # unnoticed.
                self._recorder.woken.acquire(timeout=_SLEEP_SECONDS)
            self._follow(word)

    def _follow(self, word: memoryview[int]) -> None:
        """Poll until no step has run between two polls."""
        limits = self._mark(word)
        limit = next(limits)
        while True:
            time.sleep(self._period)
            now, used = time.monotonic(), time.process_time()
            number, is_same = word[0], word[1] == MARKED
            if is_same and number == NO_OWNER and self._said is None:
                return
            self._standstill.check(now, used)
            if is_same and number != NO_OWNER:
                if self._standstill.seconds >= limit and self._name(word, number):
                    limit = next(limits)
                continue
            self._end()
            limits = self._mark(word)
            limit = next(limits)

    def _mark(self, word: memoryview[int]) -> Iterator[float]:
        """Restart the measurement with the current step, or the next one."""
        self._standstill.begin(time.monotonic(), time.process_time())
        word[1] = MARKED
        return iter((*self._limits, float("inf")))

    def _name(self, word: memoryview[int], number: int) -> bool:
        """Report where the step is; return ``False`` if it has just continued."""
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - what it is there for
        place, is_loading = place_of(frame, self._code)
        if word[1] != MARKED or word[0] != number:
            return False
        if self._said is None:
            self._incident += 1
        milliseconds = round(self._standstill.seconds * 1000)
        self._said = BlockedLoop(self._incident, number, milliseconds, place, is_loading)
        self._say(self._said)
        return True

    def _end(self) -> None:
        said, self._said = self._said, None
        if said is not None:
            milliseconds = round(self._standstill.seconds * 1000)
            again = (said.incident, said.number, milliseconds, said.place, said.is_loading)
            self._say(BlockedLoop(*again, is_over=True))


def announcer(nonce: bytes) -> Callable[[BlockedLoop], None]:
    """Return a function that writes to the current target of descriptor 2, even if that changes."""
    descriptor = os.dup(2)

    def say(block: BlockedLoop) -> None:
        os.write(descriptor, line_of(block, nonce))

    return say


def place_of(frame: FrameType | None, code: str) -> tuple[str, bool]:
    """Return a thread's source location, and whether it is importing something.

    The location is the innermost line of the user's own code, else of an installed package, else
    the innermost line of all.

    Args:
        frame: The innermost frame.
        code: Folder of the code versions, with a trailing separator.
    """
    stack = list(_outwards(frame))
    if not stack:
        return "?", False
    is_loading = any(found.f_code.co_filename.startswith(_IMPORTS) for found in stack)
    own = (found for found in stack if found.f_code.co_filename.startswith(code))
    foreign = (found for found in stack if _is_installed(found.f_code.co_filename))
    found = next(own, None) or next(foreign, None) or stack[0]
    path = found.f_code.co_filename
    if path.startswith(code):
        path = path[len(code) :].partition(os.sep)[2] or path  # strip the version
    return f"{path}:{found.f_lineno} in {found.f_code.co_qualname}", is_loading


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_installed(path: str) -> bool:
    if path.startswith(("<", _OURS)):
        return False
    return not path.startswith(_STANDARD_LIBRARY) or any(part in path for part in _PACKAGES)
