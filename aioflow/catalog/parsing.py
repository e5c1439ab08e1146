"""Parsing one DAG file, or looking at one plug-in, in a child of its own, within limits."""

from __future__ import annotations

import resource
import signal
from pathlib import Path
from typing import Generic, TypeVar

import anyio
import msgspec

from aioflow.children import Child, Children
from aioflow.clock import Clock
from aioflow.findings import DagFailure, Inspected, Parsed
from aioflow.messages import Report
from aioflow.model import Failure
from aioflow.orders import Inspect, Parse, Welcome

__all__ = ("DEFAULT_TRIES", "Limits", "Parser")

DEFAULT_TRIES = 3

Answer = TypeVar("Answer", Parsed, Inspected)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What parsing one file may take, and what it is told.

    Attributes:
        default_deferrable: What an operator's ``deferrable=None`` stands for.
        default_tries: What a task has that does not say.
    """

    wall_seconds: float = 30.0
    memory_bytes: int = 1536 * 1024 * 1024
    output_bytes: int = 10 * 1024 * 1024
    default_deferrable: bool = False
    default_tries: int = DEFAULT_TRIES


class Parser:
    """Parses files and looks at plug-ins, each in a child of its own."""

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
        found = await self._ask(Parse(str(folder), file), Parsed)
        return found if isinstance(found, Parsed) else Parsed((), (found,), ())

    async def inspect(self, entry_point: str) -> Inspected:
        """Return which triggers a plug-in brings, or why that cannot be said.

        Raises:
            OSError: See ``parse``.
        """
        found = await self._ask(Inspect(entry_point), Inspected)
        return found if isinstance(found, Inspected) else Inspected((), found)

    async def _ask(self, order: Parse | Inspect, kind: type[Answer]) -> Answer | DagFailure:
        attempt = _Attempt(kind, self._limits)
        async with self._children.child(
            "parser",
            on_reports=attempt.take,
            on_output=attempt.listen,
            limits={resource.RLIMIT_AS: self._limits.memory_bytes},
        ) as child:
            attempt.child = child
            welcome = Welcome(
                "parser",
                str(self._code),
                "",
                default_deferrable=self._limits.default_deferrable,
                default_tries=self._limits.default_tries,
            )
            child.send([welcome])
            child.send([order])
            async with anyio.create_task_group() as group:
                group.start_soon(self._limit_time, attempt)
                attempt.failure = await child.ended()
                group.cancel_scope.cancel()
        return attempt.result()

    async def _limit_time(self, attempt: _Attempt[Answer]) -> None:
        await self._clock.sleep(self._limits.wall_seconds)
        attempt.refuse("timeout", f"parsing took longer than {self._limits.wall_seconds:g} s")


class _Attempt(Generic[Answer]):
    """What came of one child."""

    def __init__(self, kind: type[Answer], limits: Limits) -> None:
        self.child: Child | None = None
        self.failure: Failure | None = None
        self._kind: type[Answer] = kind
        self._answer: Answer | DagFailure | None = None
        self._printed = 0
        self._limits = limits

    def take(self, reports: list[Report]) -> None:
        """Take its report. What it does after it is of no interest: it is killed."""
        for report in reports:
            if isinstance(report, self._kind) and self._answer is None:
                self._end(report)

    async def listen(self, data: bytes) -> None:
        """Count what it prints."""
        self._printed += len(data)
        if self._printed > self._limits.output_bytes:
            limit = self._limits.output_bytes // 1024
            self.refuse("output", f"importing the file printed more than {limit} KiB")

    def refuse(self, reason: str, message: str) -> None:
        """It went too far."""
        if self._answer is None:
            self._end(DagFailure(reason, message))

    def result(self) -> Answer | DagFailure:
        """Return what it said, or what its death says."""
        if self._answer is not None:
            return self._answer
        failure = self.failure
        if failure is None:
            return DagFailure("killed", "the parser was ended")
        if signal.SIGXCPU.name in failure.message:
            return DagFailure("timeout", "parsing took too much processor time")
        reason = "memory" if failure.reason == "oom" else failure.reason
        return DagFailure(reason, failure.message)

    def _end(self, answer: Answer | DagFailure) -> None:
        self._answer = answer
        if self.child is not None:
            self.child.kill()
