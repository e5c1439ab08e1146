"""The standard streams of a child: each line at once, and what is logged beside what is printed."""

from __future__ import annotations

import io
import logging
import os
import sys
from fcntl import F_GETOWN, F_SETOWN, fcntl
from typing import TextIO

__all__ = ("IDLE", "Descriptors", "configure_logging", "flush", "line_by_line", "put_back")

IDLE = (0, 0)
"""What is marked where a try has ended and no other follows; no try has these numbers."""

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Descriptors:
    """Descriptors 1 and 2 as they are now, kept where user code does not look for them.

    What they lead to is marked with this process as its owner (``F_SETOWN``), which means
    nothing without ``O_ASYNC``, is the same for all copies of a descriptor, and is asked for
    after every try at a third of what ``fstat`` costs.

    Args:
        nonce: Tells our marks in the output from what user code prints.
    """

    def __init__(self, nonce: bytes) -> None:
        self._mark = b"\x1e" + nonce
        self._kept = {number: os.dup(number) for number in (1, 2)}
        self._owner = os.getpid()
        for kept in self._kept.values():
            fcntl(kept, F_SETOWN, self._owner)

    def mark(self, number: int, start_no: int = 0) -> None:
        """Say whose output follows."""
        self.write(b"%b %d %d\n" % (self._mark, number, start_no))

    def write(self, data: bytes) -> None:
        """Write to where descriptor 1 led."""
        os.write(self._kept[1], data)

    def put_back(self) -> bool:
        """Undo what a try did to the descriptors; return whether that was anything."""
        try:
            if fcntl(1, F_GETOWN) == fcntl(2, F_GETOWN) == self._owner:
                return False
        except OSError:
            pass  # one is closed
        for number, kept in self._kept.items():
            os.dup2(kept, number)
        return True


def line_by_line() -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` show each line at once and refuse no character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace", encoding="utf-8")


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to whatever ``sys.stderr`` is at that moment, as ``print`` does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter(_LOG_FORMAT))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure_logging() -> None:
    """Send what user code logs from INFO on to the log of its try."""
    logging.basicConfig(level=logging.INFO, handlers=[_CurrentStderr()])


def flush() -> None:
    """Push out what user code printed, whatever it did to the streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # Closed, replaced by something else, or a full disk behind a redirection: the
            # output is lost, the try is not.
            continue


def put_back(stdout: TextIO, stderr: TextIO) -> None:
    """Undo what a try did to the streams: the next one must be heard."""
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
