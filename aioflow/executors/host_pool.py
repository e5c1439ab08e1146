"""The hosts of coroutines and triggers: shared hosts, and hosts of single DAGs.

``core`` decides to which role a task or a trigger belongs. The pool runs one process for each role
in use. The engine requests the hosts of single DAGs and of other interpreters. Such a host ends
once it has had no work for a while. The number of hosts of other interpreters is limited. If the
limit is reached and another host is requested, a host without work ends at once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup, TaskStatus

from aioflow.core.state.child_roles import (
    ASYNC,
    QUARANTINE,
    SLOT,
    TRIGGERS,
    interpreter_of,
    is_on_demand,
    is_own,
    kind_of,
)
from aioflow.executors.async_host import AsyncExecutor
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.host_inspection import HostLoad
from aioflow.executors.shared_host import HEALTH_SECONDS
from aioflow.executors.triggerer import CAPACITY, Triggerer
from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.triggers import TriggerDescription
from aioflow.protocol.effects import (
    AssignTrigger,
    ConfirmCall,
    ConfirmEvents,
    ReleaseTrigger,
    StartTry,
    StopTry,
)
from aioflow.protocol.inputs import HostUp

__all__ = ("IDLE_SECONDS", "INTERPRETER_IDLE_SECONDS", "MAX_INTERPRETER_HOSTS", "HostPool")

IDLE_SECONDS = 60.0
"""Idle time after which a DAG's own host ends. It ends at the latest after twice this time."""

INTERPRETER_IDLE_SECONDS = 600.0
"""As ``IDLE_SECONDS``, for a host that the DAGs of another interpreter share."""

MAX_INTERPRETER_HOSTS = 8
"""Default of the setting for the number of hosts of other interpreters."""

_LOOK_SECONDS = 1.0
"""Interval between two searches for an idle host, while a requested host exceeds the limit."""

_DELAY_SECONDS = 1.0

_logger = logging.getLogger(__name__)


class HostPool:
    """Runs one host for each role.

    Args:
        health_seconds: Maximum seconds for which the event loop of a host may be blocked.
        capacity: Maximum number of triggers per host.
        idle_seconds: See ``IDLE_SECONDS``.
        interpreter_idle_seconds: See ``INTERPRETER_IDLE_SECONDS``.
        max_interpreter_hosts: Maximum number of hosts of other interpreters.
    """

    def __init__(
        self,
        context: ExecutorContext,
        *,
        health_seconds: float = HEALTH_SECONDS,
        capacity: int = CAPACITY,
        idle_seconds: float = IDLE_SECONDS,
        interpreter_idle_seconds: float = INTERPRETER_IDLE_SECONDS,
        max_interpreter_hosts: int = MAX_INTERPRETER_HOSTS,
    ) -> None:
        self._context = context
        self._health_seconds = health_seconds
        self._capacity = capacity
        self._idle_seconds = idle_seconds
        self._interpreter_idle_seconds = interpreter_idle_seconds
        self._max_interpreter_hosts = max_interpreter_hosts
        self._admitted: set[str] = set()
        self._left = anyio.Event()
        self._group: TaskGroup | None = None
        self._coroutines: dict[str, AsyncExecutor] = {}
        self._triggerers: dict[str, Triggerer] = {}
        for role in (ASYNC, TRIGGERS, QUARANTINE):
            self._add(role)

    def _add(self, role: str) -> AsyncExecutor | Triggerer:
        health, idle = self._health_seconds, self._idle_limit(role)
        if kind_of(role) == ASYNC:
            executor = AsyncExecutor(
                self._context, role=role, health_seconds=health, idle_seconds=idle
            )
            self._coroutines[role] = executor
            return executor
        triggerer = self._triggerers[role] = Triggerer(
            self._context,
            role=role,
            health_seconds=health,
            capacity=self._capacity,
            idle_seconds=idle,
        )
        return triggerer

    def _idle_limit(self, role: str) -> float:
        if not is_on_demand(role):
            return math.inf
        return self._idle_seconds if is_own(role) else self._interpreter_idle_seconds

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the hosts until cancelled. Signal ``task_status`` when the shared ones are up."""
        async with anyio.create_task_group() as self._group:
            async with anyio.create_task_group() as starting:
                for role in (*self._coroutines, *self._triggerers):
                    if is_on_demand(role):  # the host was requested before this ran
                        self._group.start_soon(self._keep, role)
                    else:
                        starting.start_soon(self._group.start, self._host(role).run)
            task_status.started()
            await anyio.sleep_forever()

    def start(self, role: str) -> None:
        """Start the host of a role, unless it is already running.

        For workers, request the check of their interpreter, which then reports whether it is
        usable.
        """
        if role in self._coroutines or role in self._triggerers:
            return
        if kind_of(role) == SLOT:
            self._request_workers(role)
            return
        self._add(role)
        if self._group is not None:
            self._group.start_soon(self._keep, role)

    def _request_workers(self, role: str) -> None:
        """Request the check of an interpreter.

        If it is already usable, report its workers as up.
        """
        known = self._context.interpreters
        if known is None or known.launch(interpreter_of(role)) is not None:
            self._context.report([HostUp(role)])

    async def _keep(self, role: str) -> None:
        """Run a host on demand until it is idle. By then it has been reported as lost."""
        host, name, known = self._host(role), interpreter_of(role), self._context.interpreters
        if name and known is not None:
            while not host.host_process.was_idle:
                await known.wait_until_usable(name)
                async with self._admission(role):
                    await host.run()
                if not host.host_process.was_idle:
                    await self._context.clock.sleep(_DELAY_SECONDS)
        else:
            await host.run()
        self._coroutines.pop(role, None)
        self._triggerers.pop(role, None)

    @asynccontextmanager
    async def _admission(self, role: str) -> AsyncIterator[None]:
        """Wait until another interpreter may have a host. Count the host while the block runs."""
        is_delayed = False
        while len(self._admitted) >= self._max_interpreter_hosts:
            if not self._end_idle() and not is_delayed:
                is_delayed = True
                say = "the %s host waits: %d hosts of interpreters run (pythons.max_hosts)"
                _logger.warning(say, role, len(self._admitted))
            with anyio.move_on_after(_LOOK_SECONDS):
                await self._left.wait()
        self._admitted.add(role)
        try:
            yield
        finally:
            self._admitted.discard(role)
            self._left.set()
            self._left = anyio.Event()

    def _end_idle(self) -> bool:
        """End an idle host of another interpreter, unless one is already ending.

        Return whether a host is ending.
        """
        processes = [self._host(role).host_process for role in self._admitted]
        if any(process.was_idle for process in processes):
            return True
        idle = next((process for process in processes if process.is_idle), None)
        if idle is not None:
            idle.end()
        return idle is not None

    def interpreter_changed(self, name: str) -> None:
        """Replace the hosts of a changed interpreter, each once no coroutine runs in it."""
        known = self._context.interpreters
        if known is None:
            return
        for role in [role for role in self._admitted if interpreter_of(role) == name]:
            self._host(role).host_process.outdate_unless(known.generation(name), name)

    def _host(self, role: str) -> AsyncExecutor | Triggerer:
        return self._coroutines.get(role) or self._triggerers[role]

    # ── lookup ──────────────────────────────────────────────────────────────────────────

    @property
    def triggerers(self) -> Mapping[str, Triggerer]:
        """The current triggerers, by role."""
        return self._triggerers

    # ── effects ─────────────────────────────────────────────────────────────────────────
    # If the host of an effect has ended, it was reported as lost, and the effect is dropped.

    def start_try(self, effect: StartTry) -> None:
        """Start a coroutine in the host of its role."""
        if (executor := self._coroutines.get(effect.role)) is not None:
            executor.start_try(effect)

    def stop_try(self, effect: StopTry) -> None:
        """Stop a coroutine."""
        if (executor := self._coroutines.get(effect.role)) is not None:
            executor.stop_try(effect)

    def confirm_call(self, effect: ConfirmCall) -> None:
        """Confirm to a coroutine that its durable call is recorded."""
        if (executor := self._coroutines.get(effect.role)) is not None:
            executor.confirm(effect)

    def assign_trigger(self, effect: AssignTrigger) -> None:
        """Assign a trigger to the triggerer of its role."""
        if (triggerer := self._triggerers.get(effect.role)) is not None:
            triggerer.host(effect)

    def release_trigger(self, effect: ReleaseTrigger) -> None:
        """Release a trigger in its triggerer."""
        if (triggerer := self._triggerers.get(effect.role)) is not None:
            triggerer.end(effect)

    def confirm_events(self, effect: ConfirmEvents) -> None:
        """Tell a trigger that its events are stored, so that it continues."""
        for triggerer in self._triggerers.values():
            if triggerer.take_events(effect):
                return

    def forget(self, run_no: RunNo) -> None:
        """Drop a run that has ended, in all hosts."""
        for executor in self._coroutines.values():
            executor.forget(run_no)
        for triggerer in self._triggerers.values():
            triggerer.forget(run_no)

    # ── reports ─────────────────────────────────────────────────────────────────────────

    def loads(self) -> list[HostLoad]:
        """Return the load of each host."""
        loads = [executor.load for executor in self._coroutines.values()]
        return loads + [triggerer.load for triggerer in self._triggerers.values()]

    async def describe(self, numbers: Sequence[TriggerNo]) -> dict[TriggerNo, TriggerDescription]:
        """Return the descriptions of triggers, from the hosts that run them."""
        found: dict[TriggerNo, TriggerDescription] = {}
        for triggerer in list(self._triggerers.values()):
            found |= await triggerer.describe(numbers)
        return found

    async def describe_sensors(
        self, run_no: RunNo, tasks: Sequence[TaskNo]
    ) -> dict[int, TriggerDescription]:
        """Return the last and next poke times of those of these tasks that poke in a host."""
        found: dict[int, TriggerDescription] = {}
        for executor in list(self._coroutines.values()):
            if executor.serves(run_no):
                found |= await executor.describe(tasks)
        return found

    async def shut_down(self) -> None:
        """Release all triggers in every host. Return when all are released."""
        async with anyio.create_task_group() as closing:
            for triggerer in self._triggerers.values():
                closing.start_soon(triggerer.shut_down)
