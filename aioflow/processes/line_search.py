"""Searches task output for lines that match a regular expression, in a process with limits.

A regular expression of a caller may take for ever to compile or to match, and Python neither
interrupts it nor releases the GIL meanwhile. Therefore ``worker.log_text`` runs as a program of its
own, which is killed after a time limit, and at once if the request is cancelled. It starts with
nothing of this process: no environment, no packages, and no descriptors.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from aioflow._threads import in_thread
from aioflow.errors import BadPattern
from aioflow.worker import log_text
from aioflow.worker.log_text import LineFilter

__all__ = ("BLOCK_SECONDS", "LineFinder", "LineSearch")

BLOCK_SECONDS = 5.0
"""Time limit for one block of output."""

_PROCESSES = 2
_PATTERN_LENGTH = 500
_PROGRAM = Path(log_text.__file__)


class LineFinder(Protocol):
    """Finds the lines of a block that are wanted."""

    async def find(self, data: bytes, limit: int, *, is_backward: bool = False) -> list[int]:
        """See ``LineFilter.find``.

        Raises:
            BadPattern: If the pattern takes too long.
        """


class _InThread:
    def __init__(self, wanted: LineFilter) -> None:
        self._wanted = wanted

    async def find(self, data: bytes, limit: int, *, is_backward: bool = False) -> list[int]:
        return await in_thread(lambda: self._wanted.find(data, limit, is_backward=is_backward))


class _InProcess:
    def __init__(self, process: Process) -> None:
        assert process.stdin is not None  # noqa: S101 - pipes were requested
        assert process.stdout is not None  # noqa: S101
        self._send = process.stdin.send
        self._answers = BufferedByteReceiveStream(process.stdout)

    async def begin(self, wanted: LineFilter) -> None:
        with _time_limit(2 * BLOCK_SECONDS):  # the process has to start, too
            await self._send(json.dumps(wanted._asdict()).encode() + b"\n")
            (length,) = await self._numbers(1)
            problem = await self._answers.receive_exactly(length) if length else b""
        if problem:
            raise BadPattern(f"not a regular expression: {problem.decode()}")

    async def find(self, data: bytes, limit: int, *, is_backward: bool = False) -> list[int]:
        with _time_limit(BLOCK_SECONDS):
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
        """Return what finds lines. A text is searched for in a thread.

        Raises:
            BadPattern: If the pattern is not valid.
        """
        if not wanted.is_regex or not wanted.search:
            yield _InThread(wanted)
            return
        if len(wanted.search) > _PATTERN_LENGTH:
            raise BadPattern(f"a pattern has at most {_PATTERN_LENGTH} characters")
        async with self._processes:
            process = await anyio.open_process(
                [sys.executable, "-I", "-S", str(_PROGRAM)], stderr=subprocess.DEVNULL, env={}
            )
            try:
                finder = _InProcess(process)
                await finder.begin(wanted)
                yield finder
            finally:
                with anyio.CancelScope(shield=True):
                    process.kill()
                    await process.aclose()


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    try:
        with anyio.fail_after(seconds):
            yield
    except (
        TimeoutError,
        anyio.BrokenResourceError,
        anyio.EndOfStream,
        anyio.IncompleteRead,
    ) as exc:
        why = f"the search was stopped: a pattern has {BLOCK_SECONDS:.0f} s for a megabyte"
        raise BadPattern(why) from exc
