"""What every kind of host is connected to, and how orders to one are batched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from aioflow.clock import Clock
from aioflow.model.ids import RunNo
from aioflow.processes import Child, Children
from aioflow.protocol.commands import Hello, Reply, RunInfo
from aioflow.protocol.inputs import Input
from aioflow.protocol.reports import CancelQuery, Query
from aioflow.telemetry.task_log import TaskLog
from aioflow.worker.queries import refused

__all__ = ("AskSink", "Asker", "Outgoing", "ReportSink", "Wiring", "may_ask", "refuse")


class Asker(Protocol):
    """A process that asks. It outlives its questions or it does not: see ``is_open``."""

    @property
    def hosts_triggers(self) -> bool:
        """Whether it runs triggers, and nothing of a task's own."""

    @property
    def is_open(self) -> bool:
        """Whether an answer still reaches it."""

    def serves(self, run_no: RunNo) -> bool:
        """Whether it was given anything of this run."""

    def info(self, run_no: RunNo) -> RunInfo | None:
        """Return what it was told of a run whose tasks it runs."""

    def send(self, messages: Sequence[object]) -> None:
        """Send it answers."""


ReportSink: TypeAlias = Callable[[Sequence[Input]], None]
"""Takes what children report, at once and from the loop's thread."""

AskSink: TypeAlias = Callable[[Asker, Query | CancelQuery], None]
"""Takes what children ask; answers later, by ``Asker.send``, unless that is withdrawn."""


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """What every kind of host is connected to."""

    children: Children
    code: Path
    results: Path
    tasklog: TaskLog
    report: ReportSink
    clock: Clock
    ask: AskSink
    memory_limit_bytes: int = 0
    stall_seconds: float = 0.1
    default_deferrable: bool | None = None
    default_tries: int = 3
    traces: bool = False

    def welcome(self, role: str) -> Hello:
        """Return the first order of a child."""
        return Hello(
            role,
            str(self.code),
            str(self.results),
            self.memory_limit_bytes,
            self.stall_seconds,
            self.default_deferrable,
            self.default_tries,
            self.traces,
        )


class Outgoing:
    """Orders on their way to one child: all of one loop iteration leave in one frame."""

    __slots__ = ("_child", "_messages")

    def __init__(self, child: Child) -> None:
        self._child = child
        self._messages: list[object] = []

    def put(self, message: object) -> None:
        """Send with the next frame."""
        if not self._messages:
            asyncio.get_running_loop().call_soon(self._flush)
        self._messages.append(message)

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        self._child.send(messages)


def may_ask(asker: Asker, ask: Query) -> bool:
    """Say whether a child asks on behalf of a run it was given; if not, tell it so."""
    if asker.serves(ask.run_no):
        return True
    refuse(asker, ask, f"run number {ask.run_no} is none of this process's")
    return False


def refuse(asker: Asker, ask: Query, why: str) -> None:
    """Answer that there is no answer."""
    body = refused(ask.kind, ask.body, why)
    asker.send([Reply(ask.question, body, "" if body else why)])
