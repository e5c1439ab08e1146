"""Search of task output for lines that match a filter, in a process with limits.

A regular expression from a caller may take forever to compile or to match. Python does not
interrupt it, and does not release the GIL meanwhile. Any other search of a megabyte holds the GIL
for some 20 ms, too. Therefore ``worker.log_text`` runs as a separate program. It ends at a limit on
its processor time, so that a search does not fail because the machine is busy. It is killed if the
request is cancelled. It inherits nothing from this process: no environment, no packages, and no
descriptors.

A search of a large log takes several requests. Each request has a process for a limited time, in
the order in which the requests were received. So one search does not wait for the end of another.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from aioflow.clock import SystemClock
from aioflow.errors import BadPattern
from aioflow.worker import log_text
from aioflow.worker.log_text import LineFilter

__all__ = ("BLOCK_SECONDS", "LineFinder", "LineSearch")

BLOCK_SECONDS = 5.0
"""Limit on the processor time for a pattern, and for each block of output."""

_STALLED_SECONDS = 60.0
"""Time without an answer after which a search is stopped, even if the machine is busy."""

_PROCESSES = 2
_PATTERN_LENGTH = 500
_PROGRAM = Path(log_text.__file__)
_REQUEST_US = 1_000_000
"""Time for which one request searches further blocks."""

_clock = SystemClock()


class LineFinder(Protocol):
    """Finds the wanted lines of a block."""

    @property
    def is_due(self) -> bool:
        """Whether the request should return what was found so far, so that others are served."""

    async def find(self, data: bytes, limit: int, *, is_backward: bool = False) -> list[int]:
        """See ``LineFilter.find``.

        Raises:
            BadPattern: If the pattern takes too long.
        """


class _AllLines:
    """Finds any line. Only as many lines as wanted are looked at."""

    is_due = False

    async def find(self, data: bytes, limit: int, *, is_backward: bool = False) -> list[int]:
        found: list[int] = []
        start, end = 0, len(data)
        while len(found) < limit and start < end:
            if is_backward:
                end = data.rfind(b"\n", 0, end - 1) + 1
                found.append(end)
            else:
                found.append(start)
                start = data.find(b"\n", start) + 1 or end
        return found[::-1] if is_backward else found


class _InProcess:
    def __init__(self, process: Process) -> None:
        self._until_us = _clock.monotonic_us() + _REQUEST_US
        assert process.stdin is not None  # noqa: S101 - pipes were requested
        assert process.stdout is not None  # noqa: S101
        self._send = process.stdin.send
        self._answers = BufferedByteReceiveStream(process.stdout)

    @property
    def is_due(self) -> bool:
        return _clock.monotonic_us() >= self._until_us

    async def begin(self, wanted: LineFilter) -> None:
        with _time_limit():
            await self._send(json.dumps(wanted._asdict()).encode() + b"\n")
            (length,) = await self._numbers(1)
            problem = await self._answers.receive_exactly(length) if length else b""
        if problem:
            raise BadPattern(f"not a regular expression: {problem.decode()}")

    async def find(self, data: bytes, limit: int, *, is_backward: bool = False) -> list[int]:
        with _time_limit():
            await self._send(struct.pack("<II?", len(data), limit, is_backward) + data)
            (count,) = await self._numbers(1)
            return list(await self._numbers(count))

    async def _numbers(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", await self._answers.receive_exactly(4 * count))


class LineSearch:
    """Opens searches, with a limit on the number of processes."""

    def __init__(self) -> None:
        self._processes = anyio.CapacityLimiter(_PROCESSES)

    @asynccontextmanager
    async def finding(self, wanted: LineFilter) -> AsyncIterator[LineFinder]:
        """Yield a finder of lines, with a limit on the time per request.

        Raises:
            BadPattern: If the pattern is not valid.
        """
        if wanted.is_empty:
            yield _AllLines()
            return
        if len(wanted.search) > _PATTERN_LENGTH:
            raise BadPattern(f"a pattern has at most {_PATTERN_LENGTH} characters")
        async with self._processes:
            process = await anyio.open_process(
                [sys.executable, "-I", "-S", str(_PROGRAM), str(BLOCK_SECONDS)],
                stderr=subprocess.DEVNULL,
                env={},
            )
            try:
                finder = _InProcess(process)
                await finder.begin(wanted)
                yield finder
            finally:
                with anyio.CancelScope(shield=True):
                    with suppress(ProcessLookupError):  # the process may have ended by itself
                        process.kill()
                    await process.aclose()


@contextmanager
def _time_limit() -> Iterator[None]:
    try:
        with anyio.fail_after(_STALLED_SECONDS):
            yield
    except (anyio.BrokenResourceError, anyio.EndOfStream, anyio.IncompleteRead) as exc:
        # The process itself limits its processor time and memory.
        why = f"the search was stopped: a pattern has {BLOCK_SECONDS:.0f} s for a megabyte"
        raise BadPattern(why) from exc
    except TimeoutError as exc:
        why = f"the search was stopped after {_STALLED_SECONDS:.0f} s without a result; try again"
        raise BadPattern(why) from exc
