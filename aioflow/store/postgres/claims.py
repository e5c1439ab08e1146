"""The claim of a PostgreSQL database, in one transaction.

The counter of terms is locked first, so claims and joins of standbys run one after the other. A
batch locks only the row of its own node, so there can be no deadlock.
"""

from __future__ import annotations

import asyncpg

from aioflow.errors import HomeBusy
from aioflow.errors.runtime import ANOTHER_DATABASE
from aioflow.model.rows import NodeFacts
from aioflow.store import Claim
from aioflow.store.changes import CLAIM_NODE, LEASE_NUMBERS, POSTGRES, compiled
from aioflow.store.ownership import (
    DECLARE_DEAD,
    READ_NODES,
    TERM,
    ClaimPlan,
    KnownNode,
    claim_parameters,
    known_nodes,
    plan_claim,
)
from aioflow.store.postgres.writer import execute, one_row

__all__ = (
    "claim",
    "known_nodes_of",
    "name_session",
    "new_term",
    "session_name",
)

_LOCK_SECONDS = 0.5


def session_name(node_no: int, epoch: int) -> str:
    """Return the name of the sessions in which a node writes under an epoch."""
    return f"aioflow/{node_no}/{epoch}"


async def claim(connection: asyncpg.Connection, about: NodeFacts | None, where: str) -> Claim:
    """Make a node active in the open transaction. Declare the previously active node dead.

    Raises:
        Fenced: If the claiming standby was removed, or its home has another daemon.
        HomeBusy: If another node is active, and either is not the one to take over from or is
            still alive.
        StoreUnavailable: If the dead node is within a transaction, which locks its row.
    """
    if about is not None and about.joined_epoch:
        await connection.execute(f"SET LOCAL lock_timeout = '{round(1000 * _LOCK_SECONDS)}ms'")
    term = await new_term(connection)
    plan = plan_claim(await known_nodes_of(connection), about, term=term, where=where)
    if plan.dead is not None:
        await _declare_dead(connection, plan, term=term, where=where)
        term = await new_term(connection)
    values = claim_parameters(about, node_no=plan.node_no, epoch=term)
    row = await one_row(connection, CLAIM_NODE[POSTGRES], values)
    await name_session(connection, plan.node_no, term)
    return plan.claim(*row, after_crash=plan.after_crash)


async def name_session(connection: asyncpg.Connection, node_no: int, epoch: int) -> None:
    """Name the session of the open transaction. A rollback restores the earlier name."""
    name = session_name(node_no, epoch)
    await connection.execute("SELECT set_config('application_name', $1, false)", name)


async def _declare_dead(
    connection: asyncpg.Connection, plan: ClaimPlan, *, term: int, where: str
) -> None:
    """Declare the active node dead.

    If that node is just committing a batch, wait for the commit.
    """
    if plan.dead is None:
        return
    was = {f"was_{name}": value for name, value in plan.dead._asdict().items()}
    values = {"node_no": plan.dead.node_no, "term": term, **was}
    if not await execute(connection, DECLARE_DEAD[plan.expects_silence], values):
        raise HomeBusy(where, f"node {plan.dead.node_no}", ANOTHER_DATABASE)


async def new_term(connection: asyncpg.Connection) -> int:
    """Take the next term. Other claims wait until the transaction has ended."""
    lease = {"name": TERM, "count": 1}
    (end,) = await one_row(connection, LEASE_NUMBERS[POSTGRES], lease)
    return int(end) - 1


async def known_nodes_of(connection: asyncpg.Connection) -> list[KnownNode]:
    """Return the rows of all nodes."""
    rows = await connection.fetch(compiled(READ_NODES, POSTGRES).sql)
    return known_nodes([tuple(row) for row in rows])
