"""An active node and a standby in one process, with messages in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from msgspec.structs import replace

from aioflow.api import Api
from aioflow.api.access.authentication import Passwords
from aioflow.api.node_queries import NodeQueries
from aioflow.clock import SystemClock
from aioflow.crypto import Vault
from aioflow.model.nodes import ActiveState, NodeRole, NodeStatus
from aioflow.store.node_messages import NodeMessage
from aioflow.telemetry.task_log import TaskLog
from aioflow.web.app import create_app
from aioflow.web.forwarding import respond
from aioflow.web.guard import Trusted
from aioflow.web.tokens import Token
from tests.web.node import QUICK, Answer, Node, ask, node

__all__ = ("ACTIVE", "STANDBY", "SUCCESSOR", "Messages", "Pair", "pair")

ACTIVE, STANDBY, SUCCESSOR = 11, 12, 13
"""Terms of the nodes."""


class Messages:
    """An in-memory replacement for ``NodeMessages``."""

    def __init__(self) -> None:
        self.sent: defaultdict[int, list[NodeMessage]] = defaultdict(list)
        self._arrived: dict[int, anyio.Event] = {}

    async def send(self, message: NodeMessage, *, to_epoch: int, seconds: float) -> None:
        assert seconds > 0
        self.sent[to_epoch].append(message)
        self._arrived.setdefault(to_epoch, anyio.Event()).set()

    async def take(self, epoch: int) -> list[NodeMessage]:
        self._arrived[epoch] = anyio.Event()
        return self.sent.pop(epoch, [])

    async def wait(self, epoch: int, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._arrived[epoch].wait()


class Pair:
    """An active node and its standby.

    Attributes:
        active_epoch: The term that the standby believes to be active.
        status: The status of the standby, including what it knows about the active node.
    """

    def __init__(self, active: Node, home: Path) -> None:
        clock = SystemClock()
        self.vault = Vault.open(active.home / "key")
        self.messages = Messages()
        self.active_epoch: int | None = ACTIVE
        self.status = NodeStatus(role=NodeRole.STANDBY, term=STANDBY)
        self.active = active
        self.queries_of_active = self._queries(ACTIVE)
        self.queries = self._queries(STANDBY)
        self.tasklog = TaskLog(home / "logs", clock)
        self.api = Api(
            None,
            active.store,
            self.tasklog,
            clock=clock,
            home=home,
            vault=self.vault,
            passwords=Passwords(QUICK),
            node_queries=self.queries,
            node_status=lambda: self.status,
        )
        self.active_app = create_app(active.api, Token("a-token-of-the-active-node"))
        self.app = create_app(self.api, Token("another-token-of-the-standby"))
        self.queries_of_active.respond = respond(self.active_app, active.api)

    def _queries(self, epoch: int) -> NodeQueries:
        return NodeQueries(
            self.messages,
            self.vault,
            SystemClock(),
            own_epoch=lambda: epoch,
            active_epoch=lambda: self.active_epoch,
        )

    def lose_active(self, state: ActiveState = ActiveState.MISSING) -> None:
        """Tell the standby that no node is active, or that the active node is silent."""
        self.active_epoch = ACTIVE if state is ActiveState.SILENT else None
        self.status = replace(self.status, active=state)

    def succeed(self) -> None:
        """Let the active node become active again, under another term."""
        self.active_epoch = SUCCESSOR
        self.queries_of_active._own_epoch = lambda: SUCCESSOR
        self.queries_of_active.renew_term()

    @property
    def follower(self) -> Any:
        """The follower of the standby."""
        return self.api.follower

    async def ask(self, method: str, path: str, **more: Any) -> Answer:
        """Send a request to the standby, as the owner of its home."""
        return await ask(Trusted(self.app), method, f"/api/v1{path}", **more)

    async def ask_active(self, method: str, path: str, **more: Any) -> Answer:
        """Send a request to the active node, as the owner of its home."""
        return await ask(Trusted(self.active_app), method, f"/api/v1{path}", **more)


@asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[Pair]:
    """Run an active node and its standby."""
    async with node(folder / "active") as active, anyio.create_task_group() as group:
        both = Pair(active, folder / "standby")
        await group.start(active.api.access.run)
        await group.start(both.tasklog.run)
        await group.start(both.api.access.run)
        await both.follower.catch_up()
        group.start_soon(both.queries.run)
        group.start_soon(both.queries_of_active.run)
        group.start_soon(both.follower.run)
        group.start_soon(both.api.reads.commits.run)
        yield both
        group.cancel_scope.cancel()
