"""Opening of a daemon's database, with a wait for a server that does not answer yet.

When a machine boots, the database server and the daemon may start in any order.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.crypto import Vault
from aioflow.errors import StoreUnavailable
from aioflow.settings import Settings
from aioflow.store import Store, open_store
from aioflow.telemetry.log import Logger

__all__ = ("open_database",)

_log = Logger(__name__)

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 10.0  # seconds between two attempts


class _Serve(Protocol):
    """See ``web.server.serve_not_ready``, which is imported on demand."""

    async def __call__(
        self, settings: Settings, *, task_status: TaskStatus[None] = ...
    ) -> None: ...


async def open_database(
    stack: AsyncExitStack, settings: Settings, vault: Vault, clock: Clock
) -> Store:
    """Open the database until ``stack`` is closed.

    If a server cannot be reached, retry for ``db.wait_seconds``, with growing delays. During this
    time health checks report that the daemon is alive but not ready.

    Raises:
        AioflowError: Any error of ``open_store``; raised at once if waiting cannot help.
    """
    until = clock.monotonic_us() + round(settings.db_wait_seconds * 1e6)
    found = await _try(stack, settings, vault)
    if isinstance(found, StoreUnavailable) and _may_become_available(found, settings):
        serve_not_ready = await in_thread(_import_not_ready)
        async with anyio.create_task_group() as answering:
            await answering.start(serve_not_ready, settings)
            delay = _FIRST_DELAY
            while isinstance(found, StoreUnavailable) and _may_become_available(found, settings):
                left = (until - clock.monotonic_us()) / 1e6
                if left <= 0:
                    break
                _log.warning(
                    "the database does not answer, waiting for it",
                    error=str(found),
                    seconds_left=round(left),
                )
                await clock.sleep(min(delay, left))
                delay = min(2 * delay, _LONGEST_DELAY)
                found = await _try(stack, settings, vault)
            answering.cancel_scope.cancel()
    if isinstance(found, StoreUnavailable):
        raise found
    return found


async def _try(stack: AsyncExitStack, settings: Settings, vault: Vault) -> Store | StoreUnavailable:
    durability, home = settings.durability, settings.home
    lease = settings.ha_lease_seconds if settings.ha_enabled else None
    opening = open_store(settings.db, vault, durability=durability, home=home, lease_seconds=lease)
    try:
        return await stack.enter_async_context(opening)
    except StoreUnavailable as exc:
        return exc


def _may_become_available(exc: StoreUnavailable, settings: Settings) -> bool:
    """Return whether the database may answer later. A server may, but a file never does."""
    return exc.may_pass and not settings.db.startswith("sqlite")


def _import_not_ready() -> _Serve:
    from aioflow.web.server import serve_not_ready  # a web framework, slow to import

    return serve_not_ready
