"""The standard streams of a child: line buffering, logging, and attribution of output to tries.

In a child that runs one try at a time, the streams are restored after each try. In a shared child,
``print`` is routed to the log of the try whose coroutine prints.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys
import threading
from collections.abc import Callable
from fcntl import F_GETOWN, F_SETOWN, fcntl
from typing import Protocol, TextIO

from aioflow.model.ids import StartNo, TaskNo
from aioflow.protocol.reports import Output

__all__ = (
    "IDLE",
    "PENDING_LIMIT",
    "Attributed",
    "Descriptors",
    "OutputBuffer",
    "OutputOwner",
    "configure_logging",
    "flush",
    "line_by_line",
    "restore_streams",
    "waker",
)

IDLE = (0, 0)
"""The numbers in the mark after a try that is not followed by another. No try has these numbers."""

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Descriptors:
    """The original descriptors 1 and 2, duplicated where user code does not find them.

    The open files are marked with this process as their owner (``F_SETOWN``). Without ``O_ASYNC``
    the owner has no effect. All copies of a descriptor have the same owner. The owner is read after
    every try, because that takes a third of the time of ``fstat``.

    Args:
        nonce: Distinguishes the marks that aioflow writes to the output from the output of user
            code.
    """

    def __init__(self, nonce: bytes) -> None:
        self._mark = b"\x1e" + nonce
        self._originals = {number: os.dup(number) for number in (1, 2)}
        self._owner = os.getpid()
        for descriptor in self._originals.values():
            fcntl(descriptor, F_SETOWN, self._owner)

    def mark(self, number: int, start_no: int = 0) -> None:
        """Write a mark that names the try whose output follows."""
        self.write(b"%b %d %d\n" % (self._mark, number, start_no))

    def write(self, data: bytes) -> None:
        """Write to the original target of descriptor 1."""
        os.write(self._originals[1], data)

    def restore(self) -> bool:
        """Restore the descriptors if a try changed them. Return whether a try had changed them."""
        try:
            if fcntl(1, F_GETOWN) == fcntl(2, F_GETOWN) == self._owner:
                return False
        except OSError:
            pass  # a descriptor is closed
        for number, descriptor in self._originals.items():
            os.dup2(descriptor, number)
        return True


def line_by_line() -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` line-buffered and able to encode any character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace", encoding="utf-8")


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """A log handler that writes to the current ``sys.stderr``, as ``print`` does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter(_LOG_FORMAT))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure_logging() -> None:
    """Send log records of user code with level INFO or above to the log of its try."""
    logging.basicConfig(level=logging.INFO, handlers=[_CurrentStderr()])


def flush() -> None:
    """Flush all output of user code, whatever user code did to the streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # The stream was closed, replaced, or redirected to a full disk. The output is lost, but
            # the try must not fail.
            continue


def restore_streams(stdout: TextIO, stderr: TextIO) -> None:
    """Restore the streams if a try changed them, so that the next try can use them."""
    if sys.stdout is not stdout or sys.stderr is not stderr or stdout.closed or stderr.closed:
        sys.stdout = _reopened(1) if stdout.closed else stdout
        sys.stderr = _reopened(2) if stderr.closed else stderr
        flush()


def _reopened(descriptor: int) -> TextIO:
    return open(
        descriptor,
        "w",
        buffering=1,
        encoding="utf-8",
        errors="backslashreplace",
        closefd=False,
    )


PENDING_LIMIT = 4 * 1024 * 1024
"""Maximum bytes buffered for a slow daemon. Further output is dropped, and the log states that."""

_CHUNK = 64 * 1024


class OutputOwner(Protocol):
    """The source of output: a try, a trigger, or a watch. A watch has no log."""

    @property
    def key(self) -> tuple[TaskNo, StartNo] | None:
        """Key of the source's log; ``None`` for a watch. A try gets a new key when it resumes."""
        ...


class OutputBuffer:
    """Buffers the output of tries until it is sent, up to a limit.

    Both the loop's thread and threads started by user code write to the buffer.

    Args:
        wake: Called from any thread when the empty buffer receives data.

    Attributes:
        has_output: Whether there is anything to take.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._pending: dict[tuple[TaskNo, StartNo], list[tuple[bool, bytearray]]] = {}
        self._size = 0
        self._dropped: dict[tuple[TaskNo, StartNo], int] = {}
        self.has_output = False

    def add(self, of: tuple[TaskNo, StartNo], data: bytes, *, is_stderr: bool = False) -> None:
        """Buffer output of a try, or count it as dropped if the buffer is full."""
        with self._lock:
            self.has_output = True
            if self._size + len(data) > PENDING_LIMIT:
                self._dropped[of] = self._dropped.get(of, 0) + len(data)
                return
            was_empty = not self._pending
            pieces = self._pending.setdefault(of, [])
            if not pieces or pieces[-1][0] is not is_stderr:
                pieces.append((is_stderr, bytearray()))
            pieces[-1][1].extend(data)
            self._size += len(data)
        if was_empty:
            self._wake()

    def take(self, of: tuple[TaskNo, StartNo] | None = None) -> list[Output]:
        """Remove and return the buffered output of one try or of all tries, ready to be sent."""
        if of is not None and of not in self._pending and of not in self._dropped:
            return []
        with self._lock:
            if of is None:
                flushed, self._pending = self._pending, {}
                dropped, self._dropped = self._dropped, {}
                self._size = 0
            else:
                flushed = {of: own} if (own := self._pending.pop(of, None)) is not None else {}
                dropped = {of: count} if (count := self._dropped.pop(of, 0)) else {}
                self._size -= sum(len(data) for own in flushed.values() for _, data in own)
            self.has_output = bool(self._pending or self._dropped)
        for key, count in dropped.items():
            note = f"\n[aioflow: {count} bytes of output dropped, it came too fast]\n"
            flushed.setdefault(key, []).append((False, bytearray(note.encode())))
        return [
            Output(task_no, start_no, bytes(data[i : i + _CHUNK]), is_stderr)
            for (task_no, start_no), pieces in flushed.items()
            for is_stderr, data in pieces
            for i in range(0, len(data), _CHUNK)
        ]


class _AttributedBytes(io.RawIOBase):
    """The ``buffer`` attribute of an ``Attributed`` stream."""

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
    """A replacement for ``sys.stdout`` that attributes each text to the try that writes it.

    Text written outside any try goes to the real stream.
    """

    def __init__(
        self,
        real: TextIO,
        current: Callable[[], OutputOwner | None],
        buffer: OutputBuffer,
        *,
        is_stderr: bool = False,
    ) -> None:
        self._real = real
        self._is_stderr = is_stderr
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
        """Do nothing, because all tries of this child share the stream."""

    def write(self, text: str) -> int:
        printing = self._current()
        key = None if printing is None else printing.key
        if key is None:
            return self._real.write(text)
        data = text.encode("utf-8", "backslashreplace")
        self._buffer.add(key, data, is_stderr=self._is_stderr)
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Buffer bytes written to ``sys.stdout.buffer``."""
        printing = self._current()
        key = None if printing is None else printing.key
        if key is None:
            self._real.write(data.decode("utf-8", "backslashreplace"))
        else:
            self._buffer.add(key, data, is_stderr=self._is_stderr)


def waker(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Callable[[], None]:
    """Return a function that any thread can call to schedule ``callback`` on the loop."""
    home = threading.get_ident()

    def wake() -> None:
        if threading.get_ident() == home:
            loop.call_soon(callback)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(callback)

    return wake
