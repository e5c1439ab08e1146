"""The watchdog of a shared child: names the step of user code that blocks the loop or crashes.

The crash recorder is a word of shared memory. It holds the number of the task or trigger whose
code is running, -1 while the loop itself runs. The daemon reads it after a crash. A second word is
for the watchdog of this process: the mark it sets there is cleared by the next step.

The watchdog is a thread that sleeps until a step runs. Then it polls a few times per limit. If the
same step is still running after the limit, it reports the line at which the loop's thread is. The
blocked loop cannot send, since it serves the link. So the watchdog writes its report as a line to
the output pipe, with a nonce known only to this child and the daemon; a line without the nonce is
ordinary output.
"""

from __future__ import annotations

import mmap
import os
import re
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

import msgspec

__all__ = (
    "ASLEEP",
    "LINE_LIMIT",
    "MARKED",
    "NO_OWNER",
    "WIPED",
    "BlockedLoop",
    "BlockedLoopReader",
    "CrashRecorder",
    "Signer",
    "Standstill",
    "Stepped",
    "Watchdog",
    "announcer",
    "blocked_loop_line",
    "signed",
    "source_location_of",
)

NO_OWNER = -1

WIPED, MARKED, ASLEEP = 0, 1, 2
"""Values of the second word: a step ran since the mark; no step did; no step did and the
watchdog sleeps until one does."""

_RECORDER_SIZE = 16

Result_co = TypeVar("Result_co", covariant=True)


class CrashRecorder:
    """The shared words: in a memfd created by the daemon, or in private memory without one.

    Attributes:
        woken: Released by a step that finds the watchdog asleep.
    """

    __slots__ = ("_map", "woken", "word")

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            self._map = mmap.mmap(-1, _RECORDER_SIZE)
        else:
            if os.fstat(descriptor).st_size < _RECORDER_SIZE:
                os.ftruncate(descriptor, _RECORDER_SIZE)
            self._map = mmap.mmap(descriptor, _RECORDER_SIZE)
        self.word = memoryview(self._map).cast("q")
        """Element 0 is the number. Written directly, since a method call would double the cost."""
        self.word[0] = NO_OWNER
        self.word[1] = WIPED
        self.woken = threading.Semaphore(0)

    def wake_watchdog(self) -> None:
        """Clear the watchdog's mark; called by a step that finds one."""
        mark, self.word[1] = self.word[1], WIPED
        if mark == ASLEEP:
            self.woken.release()

    @classmethod
    def from_environment(cls, name: str) -> CrashRecorder:
        """Open the daemon's crash recorder, or a private one if the variable is not set."""
        number = os.environ.pop(name, None)
        if number is None:
            return cls()
        recorder = cls(int(number))
        os.close(int(number))  # the mapping remains valid
        return recorder


class Signer(Protocol):
    """A coroutine's identity for the crash recorder; a watch uses the number of a trigger in it."""

    @property
    def number(self) -> int:
        """The number to which the next step is attributed."""
        ...


@contextmanager
def signed(recorder: CrashRecorder, number: int) -> Iterator[None]:
    """Sign the crash recorder while code runs outside a coroutine of its own."""
    word = recorder.word
    before = word[0]
    word[0] = number
    if word[1]:
        recorder.wake_watchdog()
    try:
        yield
    finally:
        word[0] = before


class Stepped(Coroutine[Any, Any, Result_co]):
    """A coroutine that signs the crash recorder each time the loop steps it.

    It behaves like the wrapped coroutine to its driver, usually an ``asyncio.Task``. There are tens
    of thousands of instances: to save memory, nothing is cached in them.
    """

    __slots__ = ("_inner", "_recorder", "_signer")

    def __init__(
        self, inner: Coroutine[Any, Any, Result_co], signer: Signer, recorder: CrashRecorder
    ) -> None:
        self._inner = inner
        self._signer = signer
        self._recorder = recorder

    def send(self, value: Any) -> Any:
        """Step the coroutine."""
        word = self._recorder.word
        # Steps nest when user code drives a coroutine itself: restore the previous number.
        before = word[0]
        word[0] = self._signer.number
        if word[1]:
            self._recorder.wake_watchdog()
        try:
            return self._inner.send(value)
        finally:
            word[0] = before

    def throw(
        self,
        kind: Any,
        value: Any = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """Step the coroutine with an exception."""
        word = self._recorder.word
        before = word[0]
        word[0] = self._signer.number
        if word[1]:
            self._recorder.wake_watchdog()
        try:
            # The loop passes only the exception; three arguments are deprecated since 3.12.
            throw: Callable[..., Any] = self._inner.throw
            return throw(kind) if value is None and trace is None else throw(kind, value, trace)
        finally:
            word[0] = before

    def close(self) -> None:
        """Close the coroutine, which also steps it if it has started."""
        word = self._recorder.word
        before = word[0]
        word[0] = self._signer.number
        if word[1]:
            self._recorder.wake_watchdog()
        try:
            self._inner.close()
        finally:
            word[0] = before

    def __await__(self) -> Generator[Any, Any, Result_co]:
        inner: Awaitable[Result_co] = self._inner
        return (yield from inner.__await__())

    def __getattr__(self, name: str) -> Any:
        # cr_frame, cr_code, __qualname__ ...: what asyncio shows in a traceback or a repr.
        return getattr(self._inner, name)


LINE_LIMIT = 4096
"""Maximum bytes of a line. A pipe writes that much atomically (``PIPE_BUF``)."""

_SOURCE_LOCATION_LENGTH = 500
_LINE_WORD = b" stall "


class BlockedLoop(msgspec.Struct, frozen=True, array_like=True):
    """A step of user code that blocks the loop, or has blocked it.

    Attributes:
        incident: Number of this stall in the process; several lines may report one stall.
        number: Number of the task or trigger, as in the crash recorder.
        milliseconds: Duration so far, or in total if it is over.
        source_location: File, line and function at which it was seen.
        is_loading: It is importing code, which is slow only once.
        is_over: The loop runs again.
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
    """Extracts these lines from the output of a child, which may arrive in pieces.

    Args:
        nonce: The nonce of the child.
    """

    def __init__(self, nonce: str) -> None:
        self._head = b"\x1e" + nonce.encode() + _LINE_WORD
        self._line = re.compile(re.escape(self._head) + rb"([^\n]*)\n")
        self._decoder = msgspec.json.Decoder(BlockedLoop)
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[BlockedLoop]]:
        """Return the other output, and the stalls reported in it."""
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
            return None  # other output was mixed in, in pieces too large to be atomic

    def _unfinished(self, data: bytes) -> int:
        """Return the start of an incomplete line, else the end of the data."""
        start = data.rfind(b"\x1e", max(0, len(data) - LINE_LIMIT))
        if start < 0:
            return len(data)
        tail = data[start : start + len(self._head)]
        return start if self._head.startswith(tail) else len(data)


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
    """Return a function that writes to the current target of descriptor 2, even if that changes."""
    descriptor = os.dup(2)

    def say(block: BlockedLoop) -> None:
        os.write(descriptor, blocked_loop_line(block, nonce))

    return say


def source_location_of(frame: FrameType | None, code: str) -> tuple[str, bool]:
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
