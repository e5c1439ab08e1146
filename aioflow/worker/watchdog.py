"""The watchdog of a shared host: a thread that names who holds up the loop, while it does.

It sleeps until something is stepped. Then it looks a few times per limit whether that is still
the same step, and if it has been for long, at which line the loop's thread stands.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from aioflow.worker.blocked_loop import Stall, line_of
from aioflow.worker.crash_recorder import ASLEEP, MARKED, NOBODY, BlackBox

__all__ = ("Standstill", "Watchdog", "announcer", "place_of")

LOOKS_PER_LIMIT = 5
SAY_AGAIN_SECONDS = (0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0)
"""What has been named is named again when it has lasted so long, and when it is over: the
daemon decides by it how long it looks on."""

LATE_LOOKS = 2
"""Looks a late one stands for at most, if this process used no processor time meanwhile."""

_SLEEP_SECONDS = 1.0
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_IMPORTS = "<frozen importlib."


class Standstill:
    """How long one step has been going on.

    A thread that looks can itself be late. If this process has been computing meanwhile, then
    it was the step that let nobody else in (code in C does), and all of that counts. If not,
    the whole process was stopped, or had to wait for a processor, which is nobody's fault.

    Args:
        period_seconds: From look to look.
    """

    def __init__(self, period_seconds: float) -> None:
        self._longest = LATE_LOOKS * period_seconds
        self._looked_at = self._used = 0.0
        self.seconds = 0.0

    def begin(self, now: float, used: float) -> None:
        """It may have begun now.

        Args:
            now: Monotonic seconds.
            used: Seconds of processor time of this process.
        """
        self._looked_at, self._used, self.seconds = now, used, 0.0

    def look(self, now: float, used: float) -> None:
        """It still goes on, or did until now."""
        late = max(self._longest, used - self._used)
        self.seconds += min(now - self._looked_at, late)
        self._looked_at, self._used = now, used


class Watchdog:
    """Watches the steps of one loop's thread. ``start`` once; it never ends.

    Args:
        box: Which is signed by the steps.
        say: Takes a line; called from the watchdog's thread while the loop stands.
        limit_seconds: What lasts longer is named. A step is certain to be from one and a half
            times that on.
        code: Where the versions lie whose code is the user's own.
    """

    def __init__(
        self, box: BlackBox, say: Callable[[Stall], None], *, limit_seconds: float, code: str
    ) -> None:
        self._box = box
        self._say = say
        self._code = code.rstrip(os.sep) + os.sep
        self._period = limit_seconds / LOOKS_PER_LIMIT
        self._limits = (limit_seconds, *(s for s in SAY_AGAIN_SECONDS if s > limit_seconds))
        self._standstill = Standstill(self._period)
        self._incident = 0
        self._said: Stall | None = None
        self._thread_id = 0

    def start(self) -> None:
        """Watch the thread that calls this."""
        self._thread_id = threading.get_ident()
        threading.Thread(target=self._run, name="aioflow-watchdog", daemon=True).start()

    def _run(self) -> None:
        word = self._box.word
        while True:
            word[1] = ASLEEP
            if word[0] == NOBODY:
                # A step that came between two of its lines may have gone unnoticed: look anyway.
                self._box.stirred.acquire(timeout=_SLEEP_SECONDS)
            self._follow(word)

    def _follow(self, word: memoryview[int]) -> None:
        """Look until nothing has been stepped from one look to the next."""
        limits = self._mark(word)
        limit = next(limits)
        while True:
            time.sleep(self._period)
            now, used = time.monotonic(), time.process_time()
            number, is_same = word[0], word[1] == MARKED
            if is_same and number == NOBODY and self._said is None:
                return
            self._standstill.look(now, used)
            if is_same and number != NOBODY:
                if self._standstill.seconds >= limit and self._name(word, number):
                    limit = next(limits)
                continue
            self._end()
            limits = self._mark(word)
            limit = next(limits)

    def _mark(self, word: memoryview[int]) -> Iterator[float]:
        """Begin anew with the step that goes on now, or the next one."""
        self._standstill.begin(time.monotonic(), time.process_time())
        word[1] = MARKED
        return iter((*self._limits, float("inf")))

    def _name(self, word: memoryview[int], number: int) -> bool:
        """Say where it stands; not if it went on this very moment."""
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - what it is there for
        place, is_loading = place_of(frame, self._code)
        if word[1] != MARKED or word[0] != number:
            return False
        if self._said is None:
            self._incident += 1
        milliseconds = round(self._standstill.seconds * 1000)
        self._said = Stall(self._incident, number, milliseconds, place, is_loading)
        self._say(self._said)
        return True

    def _end(self) -> None:
        said, self._said = self._said, None
        if said is not None:
            milliseconds = round(self._standstill.seconds * 1000)
            again = (said.incident, said.number, milliseconds, said.place, said.is_loading)
            self._say(Stall(*again, is_over=True))


def announcer(nonce: bytes) -> Callable[[Stall], None]:
    """Return what writes to where descriptor 2 leads now, whatever becomes of it."""
    descriptor = os.dup(2)

    def say(stall: Stall) -> None:
        os.write(descriptor, line_of(stall, nonce))

    return say


def place_of(frame: FrameType | None, code: str) -> tuple[str, bool]:
    """Return where a thread stands, and whether it imports something.

    That is the innermost line of the user's own code, else of an installed package, else
    the innermost line there is.

    Args:
        frame: The innermost.
        code: Folder of the versions, ending in a separator.
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
        path = path[len(code) :].partition(os.sep)[2] or path  # without the version
    return f"{path}:{found.f_lineno} in {found.f_code.co_qualname}", is_loading


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_installed(path: str) -> bool:
    if path.startswith(("<", _OURS)):
        return False
    return not path.startswith(_STANDARD_LIBRARY) or any(part in path for part in _PACKAGES)
