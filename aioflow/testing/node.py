"""One life of a simulated node: real engine, executors and triggerer, wired as the daemon is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import cast

import anyio
from anyio.abc import TaskStatus

from aioflow.answers import Answers
from aioflow.api import Api
from aioflow.author.notifiers import Notification
from aioflow.children import Children
from aioflow.core.hosting import QUARANTINE, TRIGGERS
from aioflow.core.slots import Slots
from aioflow.core.why import still_waits
from aioflow.deliveries import Deliveries, Pace, Targets
from aioflow.engine import Engine
from aioflow.executors.async_host import AsyncExecutor
from aioflow.executors.slot import SlotExecutor
from aioflow.executors.wiring import Wiring
from aioflow.host.code import CodeShelf
from aioflow.masking import Masks
from aioflow.owed import Alert
from aioflow.routing import Routes
from aioflow.rows import Batch, VersionRow
from aioflow.store import Store
from aioflow.tasklog import TaskLog
from aioflow.testing.hosts import InlineChildren
from aioflow.testing.wall import VirtualClock
from aioflow.triggerer import Triggerer

__all__ = ("CPU_SLOTS", "Node")

CPU_SLOTS, ASYNC_SLOTS = 4, 1_000
_NOT_WATCHED = math.inf
_SEED = 0


class Node:
    """Everything of a node but its processes, its catalog and its web server.

    Attributes:
        engine: Its engine.
        api: What people ask.
        alerts: What on-call would have been told.
    """

    def __init__(
        self,
        store: Store,
        clock: VirtualClock,
        home: Path,
        shelf: CodeShelf,
        on_commit: Callable[[Batch], None],
        on_notification: Callable[[Notification], None],
    ) -> None:
        slots = Slots(cpu_slots=CPU_SLOTS, async_slots=ASYNC_SLOTS)
        chance = random.Random(_SEED).random
        self.engine = engine = Engine(store, slots, clock=clock, chance=chance)
        engine.timers.look_seconds = math.inf
        self.alerts: list[Alert] = []
        masks = Masks()
        self._tasklog = TaskLog(home / "logs", clock, masks=masks)
        self._answers = Answers(
            store,
            clock,
            still_waits=lambda *task: still_waits(engine.memory, *task),
            masks=masks,
        )
        wiring = Wiring(
            children=cast(Children, InlineChildren(shelf, on_notification)),
            code=home / "code",
            results=home / "results",
            tasklog=self._tasklog,
            report=engine.report,
            clock=clock,
            ask=self._answers.ask,
        )
        self._slot = _unwatched_slots(wiring)
        self._async = AsyncExecutor(wiring, health_seconds=_NOT_WATCHED)
        self._triggerers = {
            role: Triggerer(wiring, role=role, health_seconds=_NOT_WATCHED)
            for role in (TRIGGERS, QUARANTINE)
        }
        self._deliveries = Deliveries(
            wiring,
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
        engine.connect(
            Routes(
                self._slot,
                self._async,
                self._triggerers,
                self._deliveries,
                self._answers,
                self.api,
                on_commit=on_commit,
            )
        )

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled; signals ``task_status`` when it takes requests."""
        async with anyio.create_task_group() as services:
            await services.start(self._tasklog.run)
            await services.start(self._answers.run)
            await services.start(self.engine.run)
            await services.start(self._slot.run)
            await services.start(self._async.run)
            for triggerer in self._triggerers.values():
                await services.start(triggerer.run)
            await services.start(self._deliveries.run)
            task_status.started()


async def _nothing_is_missing(_: VersionRow) -> None:
    """All code is in this process."""


def _unwatched_slots(wiring: Wiring) -> SlotExecutor:
    """Return slots whose processes are no processes: none idles away memory, and none freezes."""
    never = math.inf
    return SlotExecutor(wiring, CPU_SLOTS, idle_seconds=never, frozen_seconds=never)
