"""The start of a daemon: opens its database, and imports its parts late.

If the database server does not answer yet, the daemon waits for it, because the two may start in
any order when a machine boots.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.catalog.parse import Parser
from aioflow.clock import Clock
from aioflow.core.transaction import Transaction
from aioflow.crypto import Vault
from aioflow.errors import StoreUnavailable
from aioflow.model.batch import Batch
from aioflow.settings import Settings
from aioflow.store import Store, open_store
from aioflow.telemetry.log import Logger

__all__ = (
    "ApiServing",
    "Queries",
    "StandbyServing",
    "import_api_server",
    "import_node_queries",
    "import_standby_server",
    "open_database",
)

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
        AioflowError: Any error of ``open_store``. It is raised at once if waiting cannot help.
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
    """Return whether the database may answer later. A server may, but a file does not."""
    return exc.may_pass and not settings.db.startswith("sqlite")


def _import_not_ready() -> _Serve:
    from aioflow.web.server import serve_not_ready  # a web framework, slow to import

    return serve_not_ready


# ── parts that are slow to import: in a thread, once the event loop runs ────────────────
class ApiServing(Protocol):
    """See ``api_server.ApiServer``, which is imported once the event loop runs."""

    def committed(self, batch: Batch, tx: Transaction) -> None:
        """See ``api.Api.committed``."""

    async def inspect_plug_ins(self, parser: Parser) -> None:
        """See ``api_server.ApiServer``."""

    async def clean_up(self, *, task_status: TaskStatus[None] = ...) -> None:
        """See ``maintenance.retention.Cleaning.run``."""

    async def serve(self, at: object | None, *, task_status: TaskStatus[str] = ...) -> None:
        """See ``api_server.ApiServer``."""

    async def stop(self, seconds: float) -> None:
        """See ``api_server.ApiServer``."""


class Queries(Protocol):
    """See ``api.node_queries.NodeQueries``, which is imported once the event loop runs."""

    async def run(self) -> None:
        """See ``api.node_queries.NodeQueries``."""

    def renew_term(self) -> None:
        """See ``api.node_queries.NodeQueries``."""


class StandbyServing(Protocol):
    """See ``standby_server.StandbyServer``, which is imported once the event loop runs."""

    address: object | None

    @property
    def is_current(self) -> bool:
        """See ``standby_server.StandbyServer``."""

    async def serve(self, *, task_status: TaskStatus[str] = ...) -> None:
        """See ``standby_server.StandbyServer``."""


def import_standby_server() -> Callable[..., StandbyServing]:
    """Import ``StandbyServer``."""
    from aioflow.daemon.standby_server import StandbyServer

    return StandbyServer


def import_node_queries() -> Callable[..., Queries]:
    """Import ``NodeQueries``."""
    from aioflow.api.node_queries import NodeQueries

    return NodeQueries


def import_api_server() -> Callable[..., ApiServing]:
    """Import ``ApiServer``."""
    from aioflow.daemon.api_server import ApiServer

    return ApiServer
