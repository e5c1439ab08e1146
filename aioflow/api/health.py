"""Readiness of the daemon: the response of ``/health/ready``."""

from __future__ import annotations

from pathlib import Path

from aioflow._threads import in_thread
from aioflow.api.metrics import outbox_counts
from aioflow.api.schemas import HealthView
from aioflow.clock import Clock
from aioflow.core.state.child_roles import ASYNC, TRIGGERS
from aioflow.engine.loop import Engine
from aioflow.errors import StoreError
from aioflow.filesystem import full_disk
from aioflow.store import Store

__all__ = ("health",)

_HOSTS = frozenset({ASYNC, TRIGGERS})

_STUCK_US = 10_000_000
"""If inputs wait longer than this, the engine loop is considered stuck."""


async def health(
    engine: Engine, store: Store, home: Path | None, clock: Clock, *, is_read: bool
) -> HealthView:
    """Return whether the database, the disk, the engine and the hosts work.

    A stopping daemon is not ready, although it answers requests until it ends.

    Args:
        is_read: Whether the DAG files that existed when the daemon started have been read.
        home: The folder that results are written to; ``None`` if none are written.
    """
    age_us = clock.monotonic_us() - engine.turned_at
    is_away = engine.store_away_since is not None
    full = "" if home is None else await in_thread(full_disk, home)
    checks = {
        "database": not is_away and await _is_whole(store),
        "disk": not full and not engine.slots.count_unwritten(engine.memory),
        "engine": engine.turns > 0 and not (engine.waiting_inputs and age_us > _STUCK_US),
        "hosts": engine.memory.hosts_up >= _HOSTS,
        "open": engine.slots.is_open,
        "dags": is_read,
    }
    status = "ready" if all(checks.values()) else "not_ready"
    reason = engine.store_error if is_away else full
    return HealthView(
        status=status, checks=checks, reason=reason, owed=outbox_counts(engine.memory)
    )


async def _is_whole(store: Store) -> bool:
    try:
        await store.list_runs(limit=1)
    except StoreError:
        return False
    return not store.is_damaged
