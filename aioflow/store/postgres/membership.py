"""Membership of several daemons in one PostgreSQL database; see ``store.membership``.

The active node is watched through a separate connection, see ``side_connection``.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import anyio

from aioflow.errors import Fenced, SettingsError
from aioflow.model.rows import NodeFacts, NodeMark
from aioflow.model.states import NodeState
from aioflow.model.timestamps import Timestamp
from aioflow.store.changes import CLAIM_NODE, POSTGRES
from aioflow.store.membership import ActiveNode, Joined
from aioflow.store.ownership import FORGET, HEARTBEAT, LEAVE, claim_parameters, own_number
from aioflow.store.postgres.claims import (
    known_nodes_of,
    name_session,
    new_term,
    session_name,
)
from aioflow.store.postgres.schema import translated_errors
from aioflow.store.postgres.side_connection import SideConnection
from aioflow.store.postgres.writer import Writer, execute

__all__ = ("PostgresMembership",)

_ECHO_SECONDS = 1.0
_ECHO_ATTEMPTS = 3

_ACTIVE = f"""
SELECT n.node_no, n.epoch, n.commit_no, n.heartbeat, n.home, n.name, n.heartbeat_ms,
    count(a.pid) > 0, coalesce(bool_or(a.state = 'active'), false)
FROM node n LEFT JOIN pg_stat_activity a ON a.datname = current_database()
    AND a.application_name = 'aioflow/' || n.node_no || '/' || n.epoch
WHERE n.state = {int(NodeState.ACTIVE)}
GROUP BY n.node_no
"""

# A live standby has a session in which it writes its heartbeats.
_STANDBYS = f"""
SELECT 1 FROM node n JOIN pg_stat_activity a ON a.datname = current_database()
    AND a.application_name = 'aioflow/' || n.node_no || '/' || n.epoch
WHERE n.state = {int(NodeState.STANDBY)} AND n.node_no <> $1
    AND NOT EXISTS (SELECT 1 FROM drained d WHERE d.node_no = n.node_no)
LIMIT 1
"""

_END_IDLE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = $1
    AND state LIKE 'idle in transaction%'
"""


class PostgresMembership:
    """See ``Membership``.

    Args:
        where: The database, for messages.
        writer: The connection in which this node writes.
        limit_seconds: Time limit of each statement.
    """

    def __init__(self, dsn: str, where: str, writer: Writer, *, limit_seconds: float) -> None:
        self._where = where
        self._writer = writer
        self._watching = SideConnection(
            dsn,
            where,
            limit_seconds=limit_seconds,
            settings={"application_name": "aioflow watch", "default_transaction_read_only": "on"},
        )
        self._joined: Joined | None = None

    async def check_connection(self) -> None:
        """See ``Membership``."""
        channel, heard = f"aioflow_{secrets.token_hex(8)}", anyio.Event()
        with translated_errors(self._where):
            listening = await self._watching.open()
            try:
                await listening.add_listener(channel, lambda *_: heard.set())
                for _ in range(_ECHO_ATTEMPTS):
                    async with self._writer.transaction() as connection:
                        await connection.execute(f"NOTIFY {channel}")
                    with anyio.move_on_after(_ECHO_SECONDS):
                        await heard.wait()
                        return
            finally:
                listening.terminate()
        raise SettingsError(
            f"ha.enabled needs a direct connection, but {self._where} leads through a connection "
            "pooler: a notification to itself did not arrive; set db.url to the server"
        )

    async def join(self, about: NodeFacts) -> Joined:
        """See ``Membership``."""
        async with self._writer.transaction() as connection:
            term = await new_term(connection)
            node_no = own_number(await known_nodes_of(connection), about)
            standby = NodeState.STANDBY
            values = claim_parameters(about, node_no=node_no, epoch=term, state=standby)
            await execute(connection, CLAIM_NODE[POSTGRES], values)
            await name_session(connection, node_no, term)
        self._writer.rename(session_name(node_no, term))
        self._joined = Joined(node_no=node_no, epoch=term)
        return self._joined

    async def heartbeat(self, at: Timestamp) -> None:
        """See ``Membership``."""
        if self._joined is None:
            raise RuntimeError("join() comes before the first heartbeat()")
        own = {"node_no": self._joined.node_no, "of_epoch": self._joined.epoch}
        values = {**own, "of_state": int(NodeState.STANDBY), "heartbeat_at": at}
        if not await self._writer.execute(HEARTBEAT, values):
            raise Fenced("another daemon has the identity of this home, or the node was removed")

    async def leave(self) -> None:
        """See ``Membership``."""
        if self._joined is None:
            return
        own = {"node_no": self._joined.node_no, "of_epoch": self._joined.epoch}
        await self._writer.execute(LEAVE, own)

    async def has_standby(self) -> bool:
        """See ``Membership``."""
        own = -1 if self._joined is None else self._joined.node_no
        return bool(await self._ask(_STANDBYS, own))

    async def is_drained(self) -> bool:
        """See ``Membership``."""
        own = -1 if self._joined is None else self._joined.node_no
        return bool(await self._ask("SELECT 1 FROM drained WHERE node_no = $1", own))

    async def forget(self, node_no: int) -> None:
        """See ``Membership``."""
        await self._writer.execute(FORGET, {"node_no": node_no})

    async def find_active(self) -> ActiveNode | None:
        """See ``Membership``."""
        rows = await self._ask(_ACTIVE)
        if not rows:
            return None
        node_no, epoch, commit_no, heartbeat, home, name, heartbeat_ms, has, works = rows[0]
        return ActiveNode(
            mark=NodeMark(node_no, epoch, commit_no, heartbeat),
            home=home or "",
            name=name or "",
            heartbeat_ms=heartbeat_ms,
            has_sessions=has,
            is_working=works,
        )

    async def end_idle_session(self, mark: NodeMark) -> bool:
        """See ``Membership``."""
        return bool(await self._ask(_END_IDLE, session_name(mark.node_no, mark.epoch)))

    async def end_own_session(self) -> None:
        """See ``Membership``."""
        await self._writer.close()

    async def close(self) -> None:
        """Close the connection at once."""
        self._watching.discard()

    async def _ask(self, sql: str, *values: Any) -> Sequence[Any]:
        async with self._watching.statement() as connection:
            rows: Sequence[Any] = await connection.fetch(sql, *values)
            return rows
