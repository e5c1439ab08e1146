"""Routes ``print`` in a shared child to the log of the try whose coroutine prints."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from typing import Protocol, TextIO

from aioflow.model.ids import StartNo, TaskNo
from aioflow.protocol.reports import Output

__all__ = (
    "PENDING_LIMIT",
    "Attributed",
    "OutputBuffer",
    "OutputOwner",
    "waker",
)

PENDING_LIMIT = 4 * 1024 * 1024
"""Maximum bytes buffered for a slow daemon. Output above that is dropped, which the log notes."""

_CHUNK = 64 * 1024


class OutputOwner(Protocol):
    """The source of output: a try, a trigger, or a watch, which has no log of its own."""

    @property
    def key(self) -> tuple[TaskNo, StartNo] | None:
        """The key of its log. That of a try changes when it resumes as another execution."""
        ...


class OutputBuffer:
    """Buffers the output of tries until it is sent, up to a limit.

    Written to from the loop's thread, and from threads started there by user code.

    Args:
        wake: Called from any thread when the empty buffer receives data.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._pending: dict[tuple[TaskNo, StartNo], bytearray] = {}
        self._size = 0
        self._dropped: dict[tuple[TaskNo, StartNo], int] = {}

    def add(self, of: tuple[TaskNo, StartNo], data: bytes) -> None:
        """Buffer output of a try, or count it as dropped if the buffer is full."""
        with self._lock:
            if self._size + len(data) > PENDING_LIMIT:
                self._dropped[of] = self._dropped.get(of, 0) + len(data)
                return
            was_empty = not self._pending
            self._pending.setdefault(of, bytearray()).extend(data)
            self._size += len(data)
        if was_empty:
            self._wake()

    def take(self, of: tuple[TaskNo, StartNo] | None = None) -> list[Output]:
        """Remove and return the buffered output of one try or of all, ready to be sent."""
        if of is not None and of not in self._pending and of not in self._dropped:
            return []
        with self._lock:
            if of is None:
                taken, self._pending = self._pending, {}
                dropped, self._dropped = self._dropped, {}
                self._size = 0
            else:
                taken = {of: data} if (data := self._pending.pop(of, None)) is not None else {}
                dropped = {of: count} if (count := self._dropped.pop(of, 0)) else {}
                self._size -= sum(map(len, taken.values()))
        for key, count in dropped.items():
            note = f"\n[aioflow: {count} bytes of output dropped, it came too fast]\n"
            taken.setdefault(key, bytearray()).extend(note.encode())
        return [
            Output(task_no, start_no, bytes(data[i : i + _CHUNK]))
            for (task_no, start_no), data in taken.items()
            for i in range(0, len(data), _CHUNK)
        ]


class _AttributedBytes(io.RawIOBase):
    """The ``buffer`` of an ``Attributed`` stream."""

    def __init__(self, stream: Attributed) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, data: object) -> int:
        content = bytes(memoryview(data).cast("B"))  # type: ignore[arg-type]
        self._stream.write_bytes(content)
        return len(content)


class Attributed(io.TextIOBase):
    """Replaces ``sys.stdout``: attributes each text to the try in whose context it is written.

    Text written outside any try goes to the real stream.
    """

    def __init__(
        self,
        real: TextIO,
        current: Callable[[], OutputOwner | None],
        buffer: OutputBuffer,
    ) -> None:
        self._real = real
        self._current = current
        self._buffer = buffer
        self.buffer = _AttributedBytes(self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._real.fileno()

    def flush(self) -> None:
        self._real.flush()

    def close(self) -> None:
        """Do nothing: the stream is shared by all tries of this child."""

    def write(self, text: str) -> int:
        printing = self._current()
        key = None if printing is None else printing.key
        if key is None:
            return self._real.write(text)
        self._buffer.add(key, text.encode("utf-8", "backslashreplace"))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Buffer bytes written to ``sys.stdout.buffer``."""
        printing = self._current()
        key = None if printing is None else printing.key
        if key is None:
            self._real.write(data.decode("utf-8", "backslashreplace"))
        else:
            self._buffer.add(key, data)


def waker(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Callable[[], None]:
    """Return a function that schedules ``callback`` on the loop, from any thread."""
    home = threading.get_ident()

    def wake() -> None:
        if threading.get_ident() == home:
            loop.call_soon(callback)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(callback)

    return wake
