"""One lifetime of a simulated node: real engine, executors and triggerer, wired as usual."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

import anyio
from anyio.abc import TaskStatus

from aioflow.api import Api
from aioflow.author.notifiers import Notification
from aioflow.core.scheduling.slots import Slots
from aioflow.core.why import still_waits
from aioflow.engine.loop import Engine
from aioflow.executors.effect_handlers import effect_handlers
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.host_pool import HostPool
from aioflow.executors.slot import SlotExecutor
from aioflow.model.batch import Batch
from aioflow.model.rows import VersionRow
from aioflow.notifications import OutboxWorker, Pace, Targets
from aioflow.processes import Children
from aioflow.protocol.effects import DeliverOutbox, RestoreCode
from aioflow.protocol.outbox import Alert
from aioflow.queries import QueryHandler
from aioflow.redaction import Masks
from aioflow.store import Store
from aioflow.telemetry.task_log import TaskLog
from aioflow.testing.fake_time import VirtualClock
from aioflow.testing.hosts import InlineChildren
from aioflow.worker.code import CodeCache

__all__ = ("CPU_SLOTS", "Node")

CPU_SLOTS, ASYNC_SLOTS = 4, 1_000
_NOT_WATCHED = math.inf
_SEED = 0


class Node:
    """A whole node, except for its processes, its catalog and its web server.

    Attributes:
        engine: Its engine.
        api: Its API.
        alerts: Alerts that would have been sent.
    """

    def __init__(
        self,
        store: Store,
        clock: VirtualClock,
        home: Path,
        code_cache: CodeCache,
        on_commit: Callable[[Batch], None],
        on_notification: Callable[[Notification], None],
    ) -> None:
        slots = Slots(cpu_slots=CPU_SLOTS, async_slots=ASYNC_SLOTS)
        rng = random.Random(_SEED)
        self.engine = engine = Engine(store, slots, clock=clock, random=rng.random)
        engine.timers.look_seconds = math.inf
        self.alerts: list[Alert] = []
        masks = Masks()
        self._tasklog = TaskLog(home / "logs", clock, masks=masks)
        self._answers = QueryHandler(
            store,
            clock,
            still_waits=lambda *task: still_waits(engine.memory, *task),
            masks=masks,
        )
        context = ExecutorContext(
            children=cast(Children, InlineChildren(code_cache, on_notification)),
            code=home / "code",
            results=home / "results",
            tasklog=self._tasklog,
            report=engine.report,
            clock=clock,
            on_query=self._answers.submit,
        )
        self._slot = _unwatched_slots(context)
        self._hosts = HostPool(context, health_seconds=_NOT_WATCHED, idle_seconds=_NOT_WATCHED)
        self._deliveries = OutboxWorker(
            context,
            store,
            pace=Pace(processes=1, per_second=math.inf),
            targets=Targets(),
            restore=_nothing_is_missing,
            on_alert=self.alerts.append,
            needs_values=False,
        )
        self.api = Api(
            engine, store, self._tasklog, clock=clock, home=home, cycle=self._answers.cycle
        )
        dispatcher = engine.dispatcher
        dispatcher.register(effect_handlers(self._slot, self._hosts))
        dispatcher.register({DeliverOutbox: self._deliveries.put, RestoreCode: _ignore})
        dispatcher.subscribe(self.api.committed)
        dispatcher.subscribe(self._answers.committed)
        dispatcher.subscribe(lambda batch, _: on_commit(batch))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; signal ``task_status`` when it accepts requests."""
        async with anyio.create_task_group() as services:
            await services.start(self._tasklog.run)
            await services.start(self._answers.run)
            await services.start(self.engine.run)
            await services.start(self._slot.run)
            await services.start(self._hosts.run)
            await services.start(self._deliveries.run)
            task_status.started()


def _ignore(_: RestoreCode) -> None:
    """Do nothing: all code is in this process."""


async def _nothing_is_missing(_: VersionRow) -> None:
    """Do nothing: all code is in this process."""


def _unwatched_slots(context: ExecutorContext) -> SlotExecutor:
    """Return slots without liveness checks and idle limits: they have no real processes."""
    never = math.inf
    return SlotExecutor(context, CPU_SLOTS, idle_seconds=never, frozen_seconds=never)
