"""Where ``print`` goes while several hosts share one process: to the try that prints."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from aioflow.testing.loop import household

__all__ = ("Handed", "beneath", "streams_are_shared")


class Handed(io.TextIOBase):
    """A stream that hands on what is written.

    Args:
        take: Called with each text.
    """

    def __init__(self, take: Callable[[str], object]) -> None:
        self._take = take

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._take(text)
        return len(text)


class _Shared(Handed):
    """Stands in for a standard stream."""

    def __init__(self, real: TextIO, index: int) -> None:
        super().__init__(self._give)
        self.real = real
        self._index = index

    def _give(self, text: str) -> None:
        home = household.get()
        mine = None if home is None else home.streams
        (self.real if mine is None else mine[self._index]).write(text)

    def fileno(self) -> int:
        return self.real.fileno()

    def flush(self) -> None:
        self.real.flush()


def beneath() -> tuple[TextIO, TextIO]:
    """Return the process's own streams, whichever they are when something is written."""

    def to(name: str) -> TextIO:
        def write(text: str) -> None:
            stream = getattr(sys, name)
            (stream.real if isinstance(stream, _Shared) else stream).write(text)

        return Handed(write)  # type: ignore[return-value]

    return to("stdout"), to("stderr")


@contextmanager
def streams_are_shared() -> Iterator[None]:
    """Have what is printed go where the household of whoever prints says."""
    before = sys.stdout, sys.stderr
    sys.stdout = _Shared(before[0], 0)
    sys.stderr = _Shared(before[1], 1)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
