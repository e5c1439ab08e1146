"""The daemon's services for every kind of host, and the check of a host's queries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from aioflow.clock import Clock
from aioflow.model.ids import RunNo, StartNo, TaskNo, TriggerNo
from aioflow.model.workers import LOCAL
from aioflow.processes import Children
from aioflow.processes.interpreters import Interpreters
from aioflow.protocol.commands import Hello, Reply, RunInfo
from aioflow.protocol.inputs import Input
from aioflow.protocol.reports import CancelQuery, Query
from aioflow.telemetry.task_log import TaskLog
from aioflow.worker.query.messages import refused

__all__ = (
    "CopiedResult",
    "ExecutorContext",
    "IsStoring",
    "QuerySender",
    "QuerySink",
    "ReportSink",
    "RunOfTask",
    "may_query",
    "refuse",
    "stores_nothing",
)


class QuerySender(Protocol):
    """A process that sends queries. It may end before a reply arrives: see ``is_open``."""

    @property
    def hosts_triggers(self) -> bool:
        """Whether the process runs only triggers, and no task bodies."""

    @property
    def is_open(self) -> bool:
        """Whether replies can still reach the process."""

    def serves(self, run_no: RunNo) -> bool:
        """Return whether the process was sent anything that belongs to this run."""

    def info(self, run_no: RunNo) -> RunInfo | None:
        """Return the details of a run whose tasks the process runs, as they were sent to it."""

    def send(self, messages: Sequence[object]) -> None:
        """Send replies to the process."""


ReportSink: TypeAlias = Callable[[Sequence[Input]], None]
"""Called with the reports of children, synchronously and in the event loop's thread."""

QuerySink: TypeAlias = Callable[[QuerySender, Query | CancelQuery], None]
"""Called with queries of children. Replies later through ``QuerySender.send``, unless cancelled."""


CopiedResult: TypeAlias = Callable[[RunNo, tuple[TaskNo, StartNo]], Awaitable[Path]]
"""Copies a stored result of a run to this machine. Returns the folder with the copy."""

RunOfTask: TypeAlias = Callable[[TaskNo], Awaitable[RunNo | None]]
"""Returns the run of a stored task; ``None`` if there is no such task."""


IsStoring: TypeAlias = Callable[[TriggerNo], bool]
"""Returns whether the result of a trigger that has fired is still being stored.

The trigger is reported only after that.
"""


def stores_nothing(_trigger_no: TriggerNo) -> bool:
    """Return ``False``, because without external storage no result has to wait."""
    return False


async def _no_run(_task_no: TaskNo) -> RunNo | None:
    return None


class ExecutorContext(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's services for every kind of host."""

    children: Children
    code: Path
    results: Path
    tasklog: TaskLog
    report: ReportSink
    clock: Clock
    on_query: QuerySink
    memory_limit_bytes: int = 0
    stall_seconds: float = 0.1
    default_deferrable: bool | None = None
    default_tries: int = 3
    traces: bool = False
    interpreters: Interpreters | None = None
    default_executor: str = LOCAL
    copies: Path | None = None
    copied_result: CopiedResult | None = None
    run_of_task: RunOfTask = _no_run
    is_storing: IsStoring = stores_nothing

    def hello(self, role: str) -> Hello:
        """Return the first command for a child."""
        return Hello(
            role,
            str(self.code),
            str(self.results),
            self.memory_limit_bytes,
            self.stall_seconds,
            self.default_deferrable,
            self.default_tries,
            self.traces,
            self.default_executor,
            copies="" if self.copies is None else str(self.copies),
        )


def may_query(sender: QuerySender, query: Query) -> bool:
    """Return whether a child queries on behalf of a run that it was sent.

    If not, refuse the query.
    """
    if sender.serves(query.run_no):
        return True
    refuse(sender, query, f"run number {query.run_no} does not belong to this process")
    return False


def refuse(sender: QuerySender, query: Query, why: str) -> None:
    """Reply that the query was refused, with the reason."""
    body = refused(query.kind, query.body, why)
    sender.send([Reply(query.question, body, "" if body else why)])
