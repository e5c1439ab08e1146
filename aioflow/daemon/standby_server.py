"""The API and the page of a standby.

It answers reads from rows; the active node answers the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from aioflow._threads import in_thread
from aioflow.api import Api
from aioflow.api.journal_follower import BEHIND_SECONDS
from aioflow.api.node_queries import NodeQueries
from aioflow.clock import Clock
from aioflow.crypto import Vault
from aioflow.executors.host_inspection import HostLoad
from aioflow.model.nodes import ReadNodeStatus
from aioflow.settings import Settings
from aioflow.store import Store
from aioflow.telemetry.task_log import TaskLog

__all__ = ("StandbyServer",)

_QUESTION_SECONDS = 2.0


class _Address(Protocol):
    """See ``web.WebAddress``."""

    def listen(self) -> None:
        """See ``web.WebAddress``."""

    async def run(self, *, task_status: TaskStatus[None] = ...) -> None:
        """See ``web.WebAddress``."""


class StandbyServer:
    """Serves until cancelled.

    It follows the journal of the active node. So a revoked token is refused here, too, and the live
    stream shows what the active node commits.

    Args:
        queries: Queries to the active node.
        hosts: Returns the load of the shared hosts, which have been started already.
        node_status: Returns the role of this node, and the state of the active one.
        listening: The task group in which the address is served. It outlives the cancellation, so
            that the server of the active node can follow without a gap.

    Attributes:
        address: The address; ``None`` before it listens.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        vault: Vault,
        tasklog: TaskLog,
        clock: Clock,
        queries: NodeQueries,
        hosts: Callable[[], Sequence[HostLoad]],
        node_status: ReadNodeStatus,
        listening: TaskGroup,
    ) -> None:
        self._settings = settings
        self._listening = listening
        self._api = Api(
            None,
            store.limited(_QUESTION_SECONDS),
            tasklog,
            clock=clock,
            started_at=clock.now(),
            home=settings.home,
            vault=vault,
            node_queries=queries,
            node_status=node_status,
            hosts=hosts,
        )
        self.address: object | None = None

    @property
    def is_current(self) -> bool:
        """Whether the server answers requests and has seen the latest commits."""
        follower = self._api.follower
        is_behind = follower is not None and follower.lag_seconds > BEHIND_SECONDS
        return self.address is not None and not is_behind

    async def serve(self, *, task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve the API and the page; see ``web.serve``."""
        make_address, serve_web = await in_thread(_import_web)
        address = make_address(self._settings)
        async with anyio.create_task_group() as group:
            if self._api.follower is not None:
                group.start_soon(self._api.follower.run)
            address.listen()
            await self._listening.start(address.run)
            self.address = address
            never = anyio.Event()
            await serve_web(self._api, self._settings, never, at=address, task_status=task_status)


def _import_web() -> tuple[Callable[..., _Address], Callable[..., Coroutine[Any, Any, None]]]:
    from aioflow.web import WebAddress, serve

    return WebAddress, serve
