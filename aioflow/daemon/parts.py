"""Parts of a node: its engine, its outbox worker, and the services that show that it is alive."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import msgspec

from aioflow.catalog.snapshot import Snapshots
from aioflow.clock import Clock
from aioflow.core.scheduling.slots import Slots
from aioflow.daemon.standby import timing_of
from aioflow.engine.loop import Engine
from aioflow.errors import StoreUnavailable
from aioflow.executors.backend import ExecutorBackend
from aioflow.executors.executor_context import ExecutorContext
from aioflow.model.decisions import DecisionRow
from aioflow.model.rows import NodeFacts, VersionRow
from aioflow.notifications import OutboxWorker, Pace, targets_of
from aioflow.protocol.inputs import AlertRaised, ContinueRun
from aioflow.protocol.outbox import Alert, Asked
from aioflow.settings import Settings
from aioflow.store import Store
from aioflow.store.takeover import Beating
from aioflow.telemetry.log import Logger

__all__ = (
    "examine_store",
    "make_deliveries",
    "make_engine",
    "send_heartbeats",
    "watch_store",
)

_log = Logger(__name__)

_WATCH_STORE_SECONDS = 1.0


def make_engine(
    settings: Settings,
    store: Store,
    clock: Clock,
    about: NodeFacts,
    backends: Mapping[str, ExecutorBackend],
) -> Engine:
    """Return the engine of a node, before it has claimed its database."""
    slots = Slots(
        cpu_slots=settings.cpu_slots,
        async_slots=settings.async_slots,
        remote_limits={name: backend.max_workers for name, backend in backends.items()},
    )
    slots.is_suspended = True
    return Engine(
        store,
        slots,
        clock=clock,
        random=random.SystemRandom().random,
        retries_per_run=settings.retries_per_run or None,
        retries_per_pool=settings.retries_per_pool or None,
        late_after_us=round(settings.schedule_late_seconds * 1e6) or None,
        ends_when_idle=settings.until_idle,
        about=about,
        timing=timing_of(settings) if settings.ha_enabled else None,
    )


def make_deliveries(
    context: ExecutorContext,
    store: Store,
    settings: Settings,
    snapshots: Snapshots,
    describe: Callable[[DecisionRow], Asked],
) -> OutboxWorker:
    """Return the outbox worker, which delivers callbacks and alerts."""

    async def restore(row: VersionRow) -> None:
        await snapshots.restore(row.version, row.sources)

    return OutboxWorker(
        context,
        store,
        pace=Pace(
            processes=settings.callback_processes,
            per_second=settings.callbacks_per_second,
            timeout_seconds=settings.callback_timeout_seconds,
        ),
        targets=targets_of(settings),
        restore=restore,
        on_alert=_log_alert,
        describe=describe,
        public_url=settings.public_url,
    )


def _log_alert(alert: Alert) -> None:
    """Log an alert, for on-call engineers who monitor the log."""
    facts: Mapping[str, object] = msgspec.structs.asdict(alert)
    _log.error("alert", **facts)


async def watch_store(engine: Engine, store: Store, clock: Clock) -> None:
    """Raise if another daemon has claimed the database, even while nothing commits."""
    beating = Beating(engine.heartbeat, clock)
    while True:
        await clock.sleep(_WATCH_STORE_SECONDS)
        store.verify()
        await beating.heartbeat(engine.memory.commit_no)


async def send_heartbeats(engine: Engine, clock: Clock, seconds: float) -> None:
    """Send heartbeats for the standbys to see, even while nothing commits.

    Once the engine runs, each heartbeat follows a turn of the engine loop, because an engine that
    hangs must not look alive.
    """
    beating = Beating(engine.heartbeat, clock, seconds=0.9 * seconds)
    while True:
        await clock.sleep(seconds)
        if engine.turns:
            engine.report([ContinueRun(-1)])
            await engine.next_turn()
        await beating.heartbeat(engine.memory.commit_no)


async def examine_store(engine: Engine, store: Store, clock: Clock) -> None:
    """Run the database checks that the start skipped to save time."""
    found = None
    while found is None:
        try:
            found = await store.examine()
        except StoreUnavailable as exc:
            _log.warning("the database cannot be checked now", error=str(exc))
            await clock.sleep(_WATCH_STORE_SECONDS)
    engine.report([AlertRaised(reason=one.reason, message=one.message) for one in found])
