"""Parsing one DAG file in a child of its own, within limits."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import anyio
import msgspec

from aioflow.children import Child, Children
from aioflow.clock import Clock
from aioflow.messages import DagFailure, Parsed, Report
from aioflow.model import Failure
from aioflow.orders import Parse, Welcome

__all__ = ("Limits", "Parser")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What parsing one file may take."""

    wall_seconds: float = 30.0
    memory_bytes: int = 1536 * 1024 * 1024
    output_bytes: int = 10 * 1024 * 1024


class Parser:
    """Parses files, each in a child of its own."""

    def __init__(self, children: Children, code: Path, clock: Clock, limits: Limits) -> None:
        self._children = children
        self._code = code
        self._clock = clock
        self._limits = limits

    async def parse(self, folder: Path, file: str) -> Parsed:
        """Return what a file defines, or why that cannot be said.

        Raises:
            OSError: If the machine has no room for another process; the file is not to blame.
        """
        attempt = _Attempt(self._limits)
        async with self._children.child(
            "parser",
            on_reports=attempt.take,
            on_output=attempt.listen,
            limits={resource.RLIMIT_AS: self._limits.memory_bytes},
        ) as child:
            attempt.child = child
            child.send([Welcome("parser", str(self._code), "")])
            child.send([Parse(str(folder), file)])
            async with anyio.create_task_group() as group:
                group.start_soon(self._limit_time, attempt)
                attempt.failure = await child.ended()
                group.cancel_scope.cancel()
        return attempt.result()

    async def _limit_time(self, attempt: _Attempt) -> None:
        await self._clock.sleep(self._limits.wall_seconds)
        attempt.refuse("timeout", f"parsing took longer than {self._limits.wall_seconds:g} s")


class _Attempt:
    """What came of one child."""

    def __init__(self, limits: Limits) -> None:
        self.child: Child | None = None
        self.failure: Failure | None = None
        self._parsed: Parsed | None = None
        self._printed = 0
        self._limits = limits

    def take(self, reports: list[Report]) -> None:
        """Take its report. What it does after it is of no interest: it is killed."""
        for report in reports:
            if isinstance(report, Parsed) and self._parsed is None:
                self._end(report)

    async def listen(self, data: bytes) -> None:
        """Count what it prints."""
        self._printed += len(data)
        if self._printed > self._limits.output_bytes:
            limit = self._limits.output_bytes // 1024
            self.refuse("output", f"importing the file printed more than {limit} KiB")

    def refuse(self, reason: str, message: str) -> None:
        """It went too far."""
        if self._parsed is None:
            self._end(_broken(reason, message))

    def result(self) -> Parsed:
        """Return what it said, or what its death says."""
        if self._parsed is not None:
            return self._parsed
        failure = self.failure
        if failure is None:
            return _broken("killed", "the parser was ended")
        if signal.SIGXCPU.name in failure.message:
            return _broken("timeout", "parsing took too much processor time")
        reason = "memory" if failure.reason == "oom" else failure.reason
        return _broken(reason, failure.message)

    def _end(self, parsed: Parsed) -> None:
        self._parsed = parsed
        if self.child is not None:
            self.child.kill()


def _broken(reason: str, message: str) -> Parsed:
    return Parsed((), (DagFailure(reason, message),), ())
