"""A process that runs deliveries one after another, and the logs for its output."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from aioflow.errors import InterpreterUnusable
from aioflow.executors.executor_context import ExecutorContext
from aioflow.model.ids import RunNo
from aioflow.model.states import Failure
from aioflow.notifications.delivery import PreparedDelivery
from aioflow.processes import Child, Launch
from aioflow.protocol.commands import Ping
from aioflow.protocol.reports import CallbackReturned, Report
from aioflow.telemetry.task_log import Attribution, LogKey, TryLog

__all__ = ("Caller", "calling")

_logger = logging.getLogger(__name__)

_RUNS_SENT = 1_000


class _CallbackOutput:
    """The output of the process, written to the logs of the tasks that it concerns."""

    def __init__(self, context: ExecutorContext, nonce: str) -> None:
        self._tasklog = context.tasklog
        self._attribution = Attribution(nonce)
        self._expected: dict[int, tuple[LogKey | None, str]] = {}
        self._log: TryLog | None = None
        self._heading = b""

    def expect(self, ready: PreparedDelivery) -> None:
        """Register a delivery that is sent to the process."""
        self._expected[ready.job.effect.outbox_no] = (ready.log, ready.what["callback"])

    async def keep(self, data: bytes) -> None:
        """Write a piece of output. Wait while the disk is slow."""
        await self._keep(self._attribution.feed(data))

    async def finish(self) -> None:
        """Write the buffered rest of the output, after the process has died."""
        await self._keep(self._attribution.finish())
        if self._log is not None:
            self._log.close()

    async def _keep(self, pieces: list[tuple[tuple[int, int] | None, bytes]]) -> None:
        for key, data in pieces:
            if not data and key is not None:
                self._begin(key[0])
            elif self._log is not None:
                await self._log.write(self._heading + data)
                self._heading = b""
            elif data:
                _logger.warning("printed: %r", self._tasklog.masks.masked(data)[:500])

    def _begin(self, number: int) -> None:
        if self._log is not None:
            self._log.close()
        key, event = self._expected.pop(number, (None, ""))
        self._log = None if key is None else self._tasklog.open(key)
        self._heading = f"[aioflow: {event}]\n".encode()


class Caller:
    """A process for the code of one version. Created by ``calling``."""

    def __init__(self, context: ExecutorContext, version: str) -> None:
        self.version = version
        self._context = context
        self._child: Child | None = None
        self._printed: _CallbackOutput | None = None
        self._sent_runs: set[RunNo] = set()
        self._answer: CallbackReturned | None = None
        self._answered = anyio.Event()
        self._death: Failure | None = None
        self._reported = anyio.Event()

    @property
    def is_alive(self) -> bool:
        """True while the process accepts further commands."""
        return self._death is None and len(self._sent_runs) < _RUNS_SENT

    async def call(self, ready: PreparedDelivery, seconds: float) -> CallbackReturned:
        """Run a delivery and return its result. If it exceeds the timeout, kill the process."""
        assert self._child is not None  # noqa: S101 - made by ``calling``
        assert self._printed is not None  # noqa: S101
        number = ready.job.effect.outbox_no
        self._answer, self._answered = None, anyio.Event()
        if self._death is not None:
            self._answered.set()
        self._printed.expect(ready)
        commands: list[object] = [ready.command]
        if ready.info is not None and ready.info.run_no not in self._sent_runs:
            self._sent_runs.add(ready.info.run_no)
            commands.insert(0, ready.info)
        self._child.send(commands)
        with anyio.move_on_after(seconds):
            await self._answered.wait()
        if self._answer is not None:
            return self._answer
        if self._death is not None:
            return CallbackReturned(number, self._death, may_pass=self._death.reason == "killed")
        self._child.kill()
        self._death = await self._child.ended()
        message = f"it took longer than {seconds:g} s and was killed"
        return CallbackReturned(
            number, Failure(type="TaskTimeout", message=message, reason="timeout")
        )

    def take(self, reports: list[Report]) -> None:
        """Handle reports of the process."""
        self._reported.set()
        for report in reports:
            if isinstance(report, CallbackReturned):
                self._answer = report
                self._answered.set()

    async def keep(self, data: bytes) -> None:
        """Handle output of the process."""
        if self._printed is not None:
            await self._printed.keep(data)

    def adopt(self, child: Child) -> None:
        """Connect to the process, which has just started."""
        self._child = child
        self._printed = _CallbackOutput(self._context, child.log_nonce)
        child.send([self._context.hello("callbacks")])

    async def wait_for_answer(self, launch: Launch) -> None:
        """Wait until the process answers.

        Raises:
            InterpreterUnusable: If the process dies before that.
        """
        assert self._child is not None  # noqa: S101 - adopted before
        self._child.send([Ping()])
        failure = None
        async with anyio.create_task_group() as group:

            async def wait_for_death(child: Child) -> None:
                nonlocal failure
                failure = await child.ended()
                group.cancel_scope.cancel()

            group.start_soon(wait_for_death, self._child)
            await self._reported.wait()
            group.cancel_scope.cancel()
        if failure is not None:
            raise InterpreterUnusable(launch.interpreter, launch.path, failure.message)

    async def watch(self) -> None:
        """Wait until the process dies. Its death also ends a call in flight."""
        assert self._child is not None  # noqa: S101 - adopted before
        self._death = await self._child.ended()
        self._answered.set()

    async def finish(self) -> None:
        """Write the last output of the process, after its death."""
        if self._printed is not None:
            await self._printed.finish()


@asynccontextmanager
async def calling(
    context: ExecutorContext, version: str, interpreter: str = ""
) -> AsyncIterator[Caller]:
    """Start a process for the duration of the block; it is dead at the end.

    Raises:
        NoHeadroom: If the process cannot be started.
        InterpreterUnusable: If its interpreter cannot be used now, or is being checked; perhaps in
            an exception group.
    """
    caller, launch = Caller(context, version), _launch(context, interpreter)
    try:
        async with context.children.child(
            "callbacks", on_reports=caller.take, on_output=caller.keep, launch=launch
        ) as child:
            caller.adopt(child)
            if launch is not None:
                await _answered(context, caller, launch)
            yield caller
    finally:
        await caller.finish()


def _launch(context: ExecutorContext, interpreter: str) -> Launch | None:
    """Return how to start a process in an interpreter; ``None`` for the daemon's own.

    Raises:
        InterpreterUnusable: If the interpreter cannot be used now, or is being checked.
    """
    if not interpreter or context.interpreters is None:
        return None
    launch = context.interpreters.launch(interpreter)
    if launch is None:
        problem = context.interpreters.complaint(interpreter) or "it is being checked"
        raise InterpreterUnusable(interpreter, "", problem)
    return launch


async def _answered(context: ExecutorContext, caller: Caller, launch: Launch) -> None:
    assert context.interpreters is not None  # noqa: S101 - ``launch`` is from there
    try:
        await caller.wait_for_answer(launch)
    except InterpreterUnusable as exc:
        context.interpreters.died_silently(launch, str(exc))
        raise
    context.interpreters.answered(launch)
