"""Services of the active node that show that it is alive, and watch its database."""

from __future__ import annotations

from aioflow.clock import Clock
from aioflow.engine.loop import Engine
from aioflow.errors import StoreUnavailable
from aioflow.protocol.inputs import AlertRaised, ContinueRun
from aioflow.store import Store
from aioflow.store.takeover import Beating
from aioflow.telemetry.log import Logger

__all__ = ("examine_store", "send_heartbeats", "watch_store")

_log = Logger(__name__)

_WATCH_STORE_SECONDS = 1.0


async def watch_store(engine: Engine, store: Store, clock: Clock) -> None:
    """Fail if another daemon has claimed the database, even while nothing commits."""
    beating = Beating(engine.heartbeat, clock)
    while True:
        await clock.sleep(_WATCH_STORE_SECONDS)
        store.verify()
        await beating.heartbeat(engine.memory.commit_no)


async def send_heartbeats(engine: Engine, clock: Clock, seconds: float) -> None:
    """Send heartbeats for the standbys to see, even while nothing commits.

    Once the engine runs, each follows a turn: an engine that hangs must not look alive.
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
