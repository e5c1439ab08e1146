"""Routes ``print`` to the log of the try that prints, as several hosts share one process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from aioflow.testing.loop import host_scope

__all__ = ("ForwardedOutput", "beneath", "streams_are_shared")


class ForwardedOutput(io.TextIOBase):
    """A stream that passes on what is written.

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


class _Shared(ForwardedOutput):
    """A replacement of a standard stream that writes to the stream of the current host."""

    def __init__(self, real: TextIO, index: int) -> None:
        super().__init__(self._give)
        self.real = real
        self._index = index

    def _give(self, text: str) -> None:
        home = host_scope.get()
        mine = None if home is None else home.streams
        (self.real if mine is None else mine[self._index]).write(text)

    def fileno(self) -> int:
        return self.real.fileno()

    def flush(self) -> None:
        self.real.flush()


def beneath() -> tuple[TextIO, TextIO]:
    """Return the process's own streams, looked up at each write."""

    def to(name: str) -> TextIO:
        def write(text: str) -> None:
            stream = getattr(sys, name)
            (stream.real if isinstance(stream, _Shared) else stream).write(text)

        return ForwardedOutput(write)  # type: ignore[return-value]

    return to("stdout"), to("stderr")


@contextmanager
def streams_are_shared() -> Iterator[None]:
    """Route output to the streams of the host that prints."""
    before = sys.stdout, sys.stderr
    sys.stdout = _Shared(before[0], 0)
    sys.stderr = _Shared(before[1], 1)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
