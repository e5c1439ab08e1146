"""Parsing of DAG files and inspection of plug-ins, each in a separate forked process.

The forking process has already imported the parts of aioflow that DAG files import. So parsing a
file costs a fork rather than the start of a process; see ``worker.parser``. A forking process
serves one request at a time, and exits when it has been idle for a while.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from aioflow.clock import Clock
from aioflow.errors import InterpreterUnusable
from aioflow.model.workers import LOCAL
from aioflow.processes import Child, Children, Launch, describe_exit
from aioflow.processes.interpreters import Interpreters
from aioflow.protocol.commands import Hello, Inspect, Parse, ParserLimits
from aioflow.protocol.reports import (
    NO_PARSER_CAPACITY,
    DagFailure,
    Inspected,
    NamesFound,
    Parsed,
    ParserDied,
    Report,
)

__all__ = ("DEFAULT_TRIES", "Limits", "Parser")

DEFAULT_TRIES = 3

IDLE_SECONDS = 2.0
"""Idle time in seconds after which a process that forks parsers exits."""

GRACE_SECONDS = 15.0
"""The forking process itself enforces the limits. If it exceeds one by this time, it is broken."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and settings for parsing one file.

    Attributes:
        processes: Maximum number of processes that a file may start. If there are more, the parser
            and all of them are killed.
        default_deferrable: Value that replaces an operator's ``deferrable=None``, if set.
        default_tries: Number of tries of a task that does not set it.
        default_executor: Executor of a ``def`` task that does not name one.
    """

    wall_seconds: float = 30.0
    memory_bytes: int = 1536 * 1024 * 1024
    output_bytes: int = 10 * 1024 * 1024
    processes: int = 64
    default_deferrable: bool | None = None
    default_tries: int = DEFAULT_TRIES
    default_executor: str = LOCAL


UNUSABLE = "file.python_unusable"
"""Reason for the failure of a file whose interpreter cannot be used. The cause is the interpreter
alone, so the file is parsed again when the interpreter has changed.
"""


class Parser:
    """Parses files and inspects plug-ins. Start ``run`` before the first request.

    Args:
        interpreters: The interpreters that files may choose.
    """

    def __init__(
        self,
        children: Children,
        code: Path,
        clock: Clock,
        limits: Limits,
        interpreters: Interpreters | None = None,
    ) -> None:
        self._children = children
        self._interpreters = interpreters or Interpreters(children, clock)
        self._clock = clock
        self._limits = ParserLimits(
            limits.wall_seconds, limits.memory_bytes, limits.output_bytes, limits.processes
        )
        self._welcome = Hello(
            "parser",
            str(code),
            "",
            default_deferrable=limits.default_deferrable,
            default_tries=limits.default_tries,
            default_executor=limits.default_executor,
        )
        self._group: TaskGroup | None = None
        self._idle: list[_Forker] = []

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the forking processes until cancelled."""
        async with anyio.create_task_group() as self._group:
            task_status.started()
            await anyio.sleep_forever()

    async def parse(self, folder: Path, file: str, interpreter: str = "") -> Parsed:
        """Return the DAGs that a file defines, or why they cannot be determined.

        If this call is cancelled, no process is left running.

        Args:
            interpreter: Name of the interpreter in which the file is imported; empty for ours.

        Raises:
            OSError: If no further process can be started, which is not the file's fault.
        """
        command = Parse(str(folder), file, self._limits, interpreter)
        try:
            launch = await self._interpreters.find(interpreter) if interpreter else None
            answer = await self._send(command, launch)
        except InterpreterUnusable as exc:
            return Parsed((), (DagFailure(UNUSABLE, str(exc)),), (file,))
        if isinstance(answer, Parsed):
            return answer
        failure, named = _failure(answer)
        return Parsed((), (failure,), named.modules or (file,), wanted=named.wanted)

    async def inspect(self, entry_point: str) -> Inspected:
        """Return the triggers of a plug-in, or why they cannot be determined.

        Raises:
            OSError: See ``parse``.
        """
        answer = await self._send(Inspect(entry_point, self._limits), None)
        return answer if isinstance(answer, Inspected) else Inspected((), _failure(answer)[0])

    async def _send(
        self, order: Parse | Inspect, launch: Launch | None
    ) -> Parsed | Inspected | ParserDied:
        """Have a process handle a request.

        Raises:
            InterpreterUnusable: If the process died before it answered, because its interpreter has
                become unusable.
        """
        async with self._forker(launch) as forker:
            answer = await forker.ask(order, self._limits.wall_seconds + GRACE_SECONDS)
        if isinstance(answer, ParserDied) and answer.limit == NO_PARSER_CAPACITY:
            raise self._children.refused("parser", OSError(answer.status, answer.message))
        if launch is not None and forker.died_silently:
            words = answer.last_words if isinstance(answer, ParserDied) else b""
            self._interpreters.died_silently(launch, words.decode(errors="replace"))
            await self._interpreters.find(launch.interpreter)
        elif launch is not None:
            self._interpreters.answered(launch)
        return answer

    @asynccontextmanager
    async def _forker(self, launch: Launch | None) -> AsyncIterator[_Forker]:
        """Provide an idle forking process for the block, or a new one if there is none."""
        assert self._group is not None, "run the parser first"  # noqa: S101 - a bug of aioflow
        forker = next((one for one in reversed(self._idle) if one.launch == launch), None)
        if forker is None:
            forker = _Forker(self._clock, self._forget, launch)
            await self._group.start(forker.run, self._children, self._welcome)
        else:
            self._idle.remove(forker)
        try:
            yield forker
        finally:
            if forker.is_free:
                self._idle.append(forker)

    def _forget(self, forker: _Forker) -> None:
        if forker in self._idle:
            self._idle.remove(forker)


class _Forker:
    """A process that forks parsers.

    Args:
        launch: Its interpreter; ``None`` for ours.

    Attributes:
        died_silently: Whether it died before it answered any request.
    """

    def __init__(
        self, clock: Clock, forget: Callable[[_Forker], None], launch: Launch | None
    ) -> None:
        self.launch = launch
        self.is_free = True
        self.died_silently = False
        self._has_answered = False
        self._death: ParserDied | None = None
        self._clock = clock
        self._forget = forget
        self._child: Child | None = None
        self._asked = 0
        self._heard = anyio.Event()
        self._answer: Parsed | Inspected | ParserDied | None = None

    async def run(self, children: Children, hello: Hello, *, task_status: TaskStatus[None]) -> None:
        """Run until the process has been idle for ``IDLE_SECONDS``, or dies.

        Raises:
            NoHeadroom: If the process cannot be started.
            InterpreterUnusable: If there is no program at the path of its interpreter.
        """
        async with children.child(
            "parser", on_reports=self._take, on_output=_discard_output, launch=self.launch
        ) as self._child:
            self._child.send([hello])
            task_status.started()
            async with anyio.create_task_group() as group:
                group.start_soon(self._wait_for_exit, self._child)
                failure = await self._child.ended()
                self.is_free = False
                self.died_silently = not self._has_answered
                self._forget(self)
                self._death = ParserDied(-signal.SIGKILL, failure.message.encode())
                self._end(self._death)
                group.cancel_scope.cancel()

    async def ask(
        self, order: Parse | Inspect, limit_seconds: float
    ) -> Parsed | Inspected | ParserDied:
        """Process one request. If this call is cancelled, kill the process and all its children."""
        assert self._child is not None  # noqa: S101 - set when the process was started
        if self._death is not None:
            return self._death
        self._asked += 1
        self._answer, self._heard, self.is_free = None, anyio.Event(), False
        self._child.send([order])
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._limit_time, limit_seconds)
                await self._heard.wait()
                group.cancel_scope.cancel()
        finally:
            if self._answer is None:
                self._child.kill()
        assert self._answer is not None  # noqa: S101 - set by the event
        return self._answer

    async def _limit_time(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        message = f"parsing took longer than {seconds:g} s"
        assert self._child is not None  # noqa: S101 - set when the process was started
        self._child.kill()
        self._end(ParserDied(-signal.SIGKILL, b"", "timeout", message))

    async def _wait_for_exit(self, child: Child) -> None:
        asked = -1
        while asked != self._asked or not self.is_free:
            asked = self._asked
            await self._clock.sleep(IDLE_SECONDS)
        self.is_free = False
        self._forget(self)
        child.dismiss()

    def _take(self, reports: list[Report]) -> None:
        for report in reports:
            if isinstance(report, Parsed | Inspected | ParserDied) and self._answer is None:
                self.is_free = self._has_answered = True
                self._end(report)

    def _end(self, answer: Parsed | Inspected | ParserDied) -> None:
        if self._answer is None:
            self._answer = answer
        self._heard.set()


async def _discard_output(data: bytes) -> None:
    """Ignore output. The forking process itself reads and limits the output of a file."""


def _failure(answer: Parsed | Inspected | ParserDied) -> tuple[DagFailure, NamesFound]:
    """Return the failure for an unexpected reply, and the names found nevertheless."""
    if not isinstance(answer, ParserDied):
        return DagFailure("killed", "the parser answered another question"), NamesFound()
    if answer.limit:
        return DagFailure(answer.limit, answer.message), answer.named
    if answer.status == -signal.SIGXCPU:
        return DagFailure("timeout", "parsing took too much processor time"), answer.named
    failure = describe_exit(answer.status, out_of_memory=False, last_words=answer.last_words)
    return DagFailure(failure.reason, failure.message), answer.named
