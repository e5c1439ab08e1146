"""The black box: which coroutine is being stepped, for whoever asks when its host has died.

A word of shared memory holds the number of the task or trigger whose code runs right now, -1
while the loop itself runs. The daemon reads it after a crash. A second word is for the watchdog
of this process: the mark it makes there is wiped by the next step.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, TypeVar

__all__ = ("ASLEEP", "MARKED", "NOBODY", "WIPED", "BlackBox", "Signer", "Stepped", "signed")

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


class Signer(Protocol):
    """Whoever signs; a watch signs with the number of one of those it looks for."""

    @property
    def number(self) -> int:
        """Whose step the next one is."""
        ...


@contextmanager
def signed(box: BlackBox, number: int) -> Iterator[None]:
    """Sign the box for code that runs in no coroutine of its own."""
    word = box.word
    before = word[0]
    word[0] = number
    if word[1]:
        box.stir()
    try:
        yield
    finally:
        word[0] = before


class Stepped(Coroutine[Any, Any, Result_co]):
    """A coroutine that signs the black box each time the loop steps it.

    Looks like the coroutine inside to whatever drives it, an ``asyncio.Task`` above all. There
    are tens of thousands of these: what it could keep for speed is not kept.
    """

    __slots__ = ("_box", "_inner", "_signer")

    def __init__(
        self, inner: Coroutine[Any, Any, Result_co], signer: Signer, box: BlackBox
    ) -> None:
        self._inner = inner
        self._signer = signer
        self._box = box

    def send(self, value: Any) -> Any:
        """Step it."""
        word = self._box.word
        # Steps nest when user code drives a coroutine by hand: put back what stood there.
        before = word[0]
        word[0] = self._signer.number
        if word[1]:
            self._box.stir()
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
        """Step it with an exception."""
        word = self._box.word
        before = word[0]
        word[0] = self._signer.number
        if word[1]:
            self._box.stir()
        try:
            # The loop passes the exception alone; three arguments are deprecated since 3.12.
            throw: Callable[..., Any] = self._inner.throw
            return throw(kind) if value is None and trace is None else throw(kind, value, trace)
        finally:
            word[0] = before

    def close(self) -> None:
        """Close it, which steps it too if it was begun."""
        word = self._box.word
        before = word[0]
        word[0] = self._signer.number
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
