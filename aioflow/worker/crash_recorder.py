"""The crash recorder of a shared child: records which user code is running, in case of a crash.

It consists of two words of shared memory. The first holds the number of the task or trigger whose
code is running, or -1 while the loop itself runs. The daemon reads it after a crash. The second is
used by the watchdog of this process, which sets a mark there. The next step of any coroutine clears
the mark.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

__all__ = (
    "ASLEEP",
    "MARKED",
    "NO_OWNER",
    "WIPED",
    "CrashRecorder",
    "Signer",
    "Stepped",
    "signed",
)

NO_OWNER = -1


WIPED, MARKED, ASLEEP = 0, 1, 2
"""Values of the second word.

``WIPED``: a step has run since the watchdog set its mark. ``MARKED``: no step has run since then.
``ASLEEP``: no step has run, and the watchdog sleeps until one does.
"""


_RECORDER_SIZE = 16


Result_co = TypeVar("Result_co", covariant=True)


class CrashRecorder:
    """The two words, in a memfd created by the daemon, or in private memory if there is none.

    Attributes:
        woken: Semaphore that a step releases if it finds the watchdog asleep.
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
        """Element 0 is the number.

        Steps write it directly, because a method call would double their cost.
        """
        self.word[0] = NO_OWNER
        self.word[1] = WIPED
        self.woken = threading.Semaphore(0)

    def wake_watchdog(self) -> None:
        """Clear the watchdog's mark. Called by a step that finds the mark set."""
        mark, self.word[1] = self.word[1], WIPED
        if mark == ASLEEP:
            self.woken.release()

    @classmethod
    def from_environment(cls, name: str) -> CrashRecorder:
        """Open the daemon's crash recorder, or create a private one if the variable is not set."""
        number = os.environ.pop(name, None)
        if number is None:
            return cls()
        recorder = cls(int(number))
        os.close(int(number))  # the mapping remains valid
        return recorder


class Signer(Protocol):
    """The owner of a coroutine. Each step of the coroutine is attributed to its owner.

    A watch uses the number of one of its triggers.
    """

    @property
    def number(self) -> int:
        """The number to which the next step is attributed."""
        ...


@contextmanager
def signed(recorder: CrashRecorder, number: int) -> Iterator[None]:
    """Sign the crash recorder with ``number`` while code runs outside a supervised coroutine."""
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
    """A wrapper of a coroutine that signs the crash recorder each time the loop steps it.

    To its driver, usually an ``asyncio.Task``, it behaves like the wrapped coroutine. There are
    tens of thousands of instances, so nothing is cached in them, to save memory.
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
        # Restore the previous number afterwards, because steps nest when user code drives a
        # coroutine itself.
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
            # Pass only the exception, as the loop does. Three arguments are deprecated since 3.12.
            throw: Callable[..., Any] = self._inner.throw
            return throw(kind) if value is None and trace is None else throw(kind, value, trace)
        finally:
            word[0] = before

    def close(self) -> None:
        """Close the coroutine. If the coroutine has started, this runs a step of it."""
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
        # Needed for cr_frame, cr_code, __qualname__ and others, which asyncio shows in tracebacks
        # and reprs.
        return getattr(self._inner, name)
