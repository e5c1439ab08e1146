"""The watchdog of a shared child: names the step of user code that blocks its event loop.

The watchdog is a thread that sleeps until a step runs. Then it polls a few times per limit. If the
same step is still running after the limit, it reports the line at which the loop's thread is. It
cannot use the link, because the blocked loop serves the link. So it writes its report as a line to
the output pipe, with a nonce known only to this child and the daemon. A line without the nonce is
ordinary output.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import msgspec

from aioflow.worker.crash_recorder import ASLEEP, MARKED, NO_OWNER, CrashRecorder

__all__ = (
    "LINE_LIMIT",
    "BlockedLoop",
    "BlockedLoopReader",
    "Standstill",
    "Watchdog",
    "announcer",
    "blocked_loop_line",
    "source_location_of",
)


LINE_LIMIT = 4096
"""Maximum bytes of a line. A pipe writes this much atomically (``PIPE_BUF``)."""

_SOURCE_LOCATION_LENGTH = 500
_LINE_WORD = b" stall "


class BlockedLoop(msgspec.Struct, frozen=True, array_like=True):
    """A step of user code that is blocking the loop, or has blocked it.

    Attributes:
        incident: Number of this stall in the process. Several lines may report one stall.
        number: Number of the task or trigger, as in the crash recorder.
        milliseconds: Duration so far, or the total duration if the stall is over.
        source_location: File, line and function at which the step was seen.
        is_loading: Whether the step is importing code, which is slow only once.
        is_over: Whether the loop runs again.
    """

    incident: int
    number: int
    milliseconds: int
    source_location: str
    is_loading: bool = False
    is_over: bool = False


def blocked_loop_line(block: BlockedLoop, nonce: bytes) -> bytes:
    """Encode a stall as one line, short enough for an atomic write to the pipe."""
    source_location = block.source_location.encode("utf-8", "backslashreplace").decode()[
        -_SOURCE_LOCATION_LENGTH:
    ]
    body = msgspec.json.encode(msgspec.structs.replace(block, source_location=source_location))
    return b"\x1e" + nonce + _LINE_WORD + body + b"\n"


class BlockedLoopReader:
    """Extracts the watchdog's lines from the output of a child, which may arrive in pieces.

    Args:
        nonce: The nonce of the child.
    """

    def __init__(self, nonce: str) -> None:
        self._head = b"\x1e" + nonce.encode() + _LINE_WORD
        self._line = re.compile(re.escape(self._head) + rb"([^\n]*)\n")
        self._decoder = msgspec.json.Decoder(BlockedLoop)
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[BlockedLoop]]:
        """Return the ordinary output, and the stalls that were reported in it."""
        data = self._held + data
        blocks = [block for body in self._line.findall(data) if (block := self._decoded(body))]
        printed = self._line.sub(b"", data)
        keep = self._unfinished(printed)
        self._held = printed[keep:]
        return printed[:keep], blocks

    def _decoded(self, body: bytes) -> BlockedLoop | None:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError:
            return None  # a write too large to be atomic was mixed into the line

    def _unfinished(self, data: bytes) -> int:
        """Return the start of an incomplete line, or the end of the data if there is none."""
        start = data.rfind(b"\x1e", max(0, len(data) - LINE_LIMIT))
        if start < 0:
            return len(data)
        tail = data[start : start + len(self._head)]
        return start if self._head.startswith(tail) else len(data)


LOOKS_PER_LIMIT = 5
SAY_AGAIN_SECONDS = (0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 5.0, 7.0, 10.0, 20.0)
"""Durations of a step, in seconds, at which it is reported again.

Its end is reported, too. From these reports the daemon decides how long it continues to wait.
"""

LATE_LOOKS = 2
"""Maximum number of polling periods that are counted if a poll is late and this process used no CPU
time since the last poll.
"""

_SLEEP_SECONDS = 1.0
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_STANDARD_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_IMPORTS = "<frozen importlib."


class Standstill:
    """Measures how long one step has been running.

    The polling thread can itself be late. If this process used CPU time since the last poll, the
    step blocked all other threads (as C code can), and all of that CPU time counts. If not, the
    whole process was stopped or waited for a CPU, which is not the step's fault.

    Args:
        period_seconds: Polling period.
    """

    def __init__(self, period_seconds: float) -> None:
        self._longest = LATE_LOOKS * period_seconds
        self._looked_at = self._used = 0.0
        self.seconds = 0.0

    def begin(self, now: float, used: float) -> None:
        """Start measuring the time of a step. Called when the loop may be about to run one.

        Args:
            now: Monotonic seconds.
            used: CPU seconds that this process has used so far.
        """
        self._looked_at, self._used, self.seconds = now, used, 0.0

    def check(self, now: float, used: float) -> None:
        """Add the time since the last poll to ``seconds``.

        Call it only while the step is running or has just ended.
        """
        late = max(self._longest, used - self._used)
        self.seconds += min(now - self._looked_at, late)
        self._looked_at, self._used = now, used


class Watchdog:
    """Watches the steps of one loop's thread. Call ``start`` once; the watchdog never ends.

    Args:
        recorder: The crash recorder, which the steps sign.
        say: Called in the watchdog's thread with each report, while the loop is blocked.
        limit_seconds: Longer steps are reported. A step of 1.5 times the limit is always detected.
        code: Folder of the code versions, which contains the user's own code.
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
                # Poll at least once a second. A step that clears an older mark at this moment may
                # overwrite ``ASLEEP``, and then later steps do not wake this thread.
                self._recorder.woken.acquire(timeout=_SLEEP_SECONDS)
            self._follow(word)

    def _follow(self, word: memoryview[int]) -> None:
        """Poll until the loop is idle: no step is running, and none has run since the last poll."""
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
        """Restart the measurement with the current or next step. Yield the time to report it."""
        self._standstill.begin(time.monotonic(), time.process_time())
        word[1] = MARKED
        return iter((*self._limits, float("inf")))

    def _name(self, word: memoryview[int], number: int) -> bool:
        """Report where the step is. Return ``False`` if the step has just ended or continued."""
        frame = sys._current_frames().get(self._thread_id)  # noqa: SLF001 - no public function does this
        source_location, is_loading = source_location_of(frame, self._code)
        if word[1] != MARKED or word[0] != number:
            return False
        if self._said is None:
            self._incident += 1
        milliseconds = round(self._standstill.seconds * 1000)
        self._said = BlockedLoop(self._incident, number, milliseconds, source_location, is_loading)
        self._say(self._said)
        return True

    def _end(self) -> None:
        said, self._said = self._said, None
        if said is not None:
            milliseconds = round(self._standstill.seconds * 1000)
            again = (
                said.incident,
                said.number,
                milliseconds,
                said.source_location,
                said.is_loading,
            )
            self._say(BlockedLoop(*again, is_over=True))


def announcer(nonce: bytes) -> Callable[[BlockedLoop], None]:
    """Return a function that writes to the current target of descriptor 2.

    The target stays the same if user code redirects the descriptor later.
    """
    descriptor = os.dup(2)

    def say(block: BlockedLoop) -> None:
        os.write(descriptor, blocked_loop_line(block, nonce))

    return say


def source_location_of(frame: FrameType | None, code: str) -> tuple[str, bool]:
    """Return a thread's source location, and whether it is importing something.

    The location is the innermost line of the user's own code. If there is none, it is the innermost
    line of an installed package, or else the innermost line of all.

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
