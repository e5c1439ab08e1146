"""The standard streams of a child: line buffering, logging, and restoring them after a try."""

from __future__ import annotations

import io
import logging
import os
import sys
from fcntl import F_GETOWN, F_SETOWN, fcntl
from typing import TextIO

__all__ = ("IDLE", "Descriptors", "configure_logging", "flush", "line_by_line", "put_back")

IDLE = (0, 0)
"""Mark for the time after a try, if no other follows; no try has these numbers."""

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Descriptors:
    """Descriptors 1 and 2 as they are now, duplicated where user code does not find them.

    The files behind them are marked with this process as their owner (``F_SETOWN``). Without
    ``O_ASYNC`` the owner has no effect. It is the same for all copies of a descriptor, and reading
    it after every try takes a third of the time of ``fstat``.

    Args:
        nonce: Distinguishes our marks in the output from what user code prints.
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

    def put_back(self) -> bool:
        """Restore the descriptors if a try changed them; return whether it did."""
        try:
            if fcntl(1, F_GETOWN) == fcntl(2, F_GETOWN) == self._owner:
                return False
        except OSError:
            pass  # one is closed
        for number, descriptor in self._originals.items():
            os.dup2(descriptor, number)
        return True


def line_by_line() -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` line-buffered and able to encode any character."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace", encoding="utf-8")


class _CurrentStderr(logging.StreamHandler[TextIO]):
    """Writes to the current ``sys.stderr``, as ``print`` does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter(_LOG_FORMAT))

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure_logging() -> None:
    """Send log records of user code, from INFO on, to the log of its try."""
    logging.basicConfig(level=logging.INFO, handlers=[_CurrentStderr()])


def flush() -> None:
    """Flush what user code printed, whatever it did to the streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            # Closed, replaced by something else, or redirected to a full disk: the output is
            # lost, the try is not.
            continue


def put_back(stdout: TextIO, stderr: TextIO) -> None:
    """Restore the streams if a try changed them, for the sake of the next one."""
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
