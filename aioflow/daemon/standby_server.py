"""The API and the page of a standby: they answer reads from rows, and refuse changes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.api import Api
from aioflow.clock import Clock
from aioflow.crypto import Vault
from aioflow.daemon.standby import Standby
from aioflow.engine.loop import Engine
from aioflow.errors import NodeStandby, StoreError
from aioflow.settings import Settings
from aioflow.store import Store
from aioflow.telemetry.log import Logger
from aioflow.telemetry.task_log import TaskLog

__all__ = ("StandbyServer",)

_log = Logger(__name__)

_QUESTION_SECONDS = 2.0
_LOOK_SECONDS = 0.5


class _StandbyApi(Api):
    """An API without an engine: it says who has one.

    Attributes:
        standby: Knows the active node.
    """

    standby: Standby

    @property
    def _running(self) -> Engine:
        active = self.standby.active
        raise NodeStandby("unknown" if active is None else active.name)


class StandbyServer:
    """Serves reads until cancelled.

    Accounts, tokens and sessions are read again after each commit of the active node, at most twice
    a second, so a revoked token is refused here within a second or two.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        vault: Vault,
        tasklog: TaskLog,
        clock: Clock,
        standby: Standby,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._standby = standby
        self._stop = anyio.Event()
        self._store = store.limited(_QUESTION_SECONDS)
        self._api = _StandbyApi(
            None,
            self._store,
            tasklog,
            clock=clock,
            started_at=clock.now(),
            home=settings.home,
            vault=vault,
        )
        self._api.standby = standby

    async def serve(self, *, task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve the API and the page; see ``web.serve``."""
        serve_web = await in_thread(_import_web)
        async with anyio.create_task_group() as group:
            group.start_soon(self._follow_access)
            await serve_web(self._api, self._settings, self._stop, task_status=task_status)

    async def _follow_access(self) -> None:
        seen = None
        while True:
            await self._clock.sleep(_LOOK_SECONDS)
            active = self._standby.active
            now = None if active is None else active.mark[:3]
            if now == seen and now is not None:
                continue
            try:
                await self._api.access.reload()
            except StoreError as exc:
                if seen is not None:
                    _log.warning("accounts cannot be read", error=str(exc))
                seen = None
            else:
                seen = now


def _import_web() -> Callable[..., Coroutine[Any, Any, None]]:
    from aioflow.web import serve

    return serve
