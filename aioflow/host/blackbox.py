"""The black box: which coroutine is being stepped, for whoever asks when its host has died.

A word of shared memory holds the number of the task or trigger whose code runs right now, -1
while the loop itself runs. The daemon reads it after a crash. A second word is for the watchdog
of this process: the mark it makes there is wiped by the next step.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, TypeVar

__all__ = ("ASLEEP", "MARKED", "NOBODY", "WIPED", "BlackBox", "Stepped")

NOBODY = -1

WIPED, MARKED, ASLEEP = 0, 1, 2
"""What the second word holds: there was a step since the mark; there was none; there was none,
and the watchdog sleeps until there is one."""

_SIZE = 16

Result_co = TypeVar("Result_co", covariant=True)


class BlackBox:
    """The shared words, by descriptor of a memfd the daemon made, or of our own without one.

    Attributes:
        stirred: Released by a step that finds the watchdog asleep.
    """

    __slots__ = ("_map", "stirred", "word")

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            self._map = mmap.mmap(-1, _SIZE)
        else:
            if os.fstat(descriptor).st_size < _SIZE:
                os.ftruncate(descriptor, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        self.word = memoryview(self._map).cast("q")
        """Element 0 is the number. Written directly: a call here would cost as much again."""
        self.word[0] = NOBODY
        self.word[1] = WIPED
        self.stirred = threading.Semaphore(0)

    def stir(self) -> None:
        """Wipe the watchdog's mark; called by a step that finds one."""
        mark, self.word[1] = self.word[1], WIPED
        if mark == ASLEEP:
            self.stirred.release()

    @classmethod
    def from_environment(cls, name: str) -> BlackBox:
        """Return the daemon's box, or a private one if it gave none."""
        number = os.environ.pop(name, None)
        if number is None:
            return cls()
        box = cls(int(number))
        os.close(int(number))  # the mapping stays
        return box


class Stepped(Coroutine[Any, Any, Result_co]):
    """A coroutine that signs the black box each time the loop steps it.

    Looks like the coroutine inside to whatever drives it, an ``asyncio.Task`` above all.
    """

    __slots__ = ("_box", "_inner", "_number", "_send", "_throw", "_word")

    def __init__(self, inner: Coroutine[Any, Any, Result_co], number: int, box: BlackBox) -> None:
        self._inner = inner
        self._number = number
        self._send = inner.send
        self._throw: Callable[..., Any] = inner.throw
        self._box = box
        self._word = box.word

    def send(self, value: Any) -> Any:
        """Step it."""
        word = self._word
        # Steps nest when user code drives a coroutine by hand: put back what stood there.
        before = word[0]
        word[0] = self._number
        if word[1]:
            self._box.stir()
        try:
            return self._send(value)
        finally:
            word[0] = before

    def throw(
        self,
        kind: Any,
        value: Any = None,
        trace: TracebackType | None = None,
    ) -> Any:
        """Step it with an exception."""
        word = self._word
        before = word[0]
        word[0] = self._number
        if word[1]:
            self._box.stir()
        try:
            # The loop passes the exception alone; three arguments are deprecated since 3.12.
            return (
                self._throw(kind)
                if value is None and trace is None
                else self._throw(kind, value, trace)
            )
        finally:
            word[0] = before

    def close(self) -> None:
        """Close it, which steps it too if it was begun."""
        word = self._word
        before = word[0]
        word[0] = self._number
        if word[1]:
            self._box.stir()
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
