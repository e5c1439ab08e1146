"""Ownership of a database: its claim, its fence, its owner, and whether a key decrypts its values.

The owner is the node whose row is marked as active. A claim makes a node active under a new term,
and declares the previously active node dead. A batch of the dead node then fails its fence, because
the batch and the declaration change the same row.

If a commit does not advance the commit number, ``confirm_applied`` finds out why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Select, bindparam, literal_column, null, select, union_all, update

from aioflow.crypto import Vault
from aioflow.errors import Fenced, HomeBusy, StrangeDatabase
from aioflow.errors.runtime import ANOTHER_DATABASE
from aioflow.model.batch import Batch
from aioflow.model.rows import NodeFacts, NodeMark
from aioflow.model.states import NodeState
from aioflow.model.timestamps import Timestamp
from aioflow.store import Claim, Owner, tables
from aioflow.store.columns import row_checker
from aioflow.store.membership import Membership
from aioflow.store.node_messages import NodeMessages
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.selects import literal

__all__ = (
    "DECLARE_DEAD",
    "FORGET",
    "HEARTBEAT",
    "LEAVE",
    "READ_NODES",
    "TERM",
    "ClaimPlan",
    "KnownNode",
    "OwnershipReader",
    "claim_parameters",
    "commit_times",
    "confirm_applied",
    "known_nodes",
    "own_number",
    "plan_claim",
)

TERM = "term"
"""Name of the counter of terms in ``number_lease``."""

_FIRST_NODE = 1

_node = tables.node

READ_NODES = select(
    _node.c.node_no,
    _node.c.epoch,
    _node.c.commit_no,
    _node.c.heartbeat,
    _node.c.state,
    _node.c.home,
    _node.c.host,
    _node.c.pid,
    _node.c.seen_at,
    _node.c.steady_at,
).order_by(_node.c.node_no)


class KnownNode(NamedTuple):
    """A node's row, as ``READ_NODES`` selects it."""

    node_no: int
    epoch: int
    commit_no: int
    heartbeat: int
    state: int
    home: str | None
    host: str | None
    pid: int | None
    seen_at: Timestamp | None
    steady_at: Timestamp | None

    @property
    def mark(self) -> NodeMark:
        """The mark of the node when its row was read."""
        return NodeMark(self.node_no, self.epoch, self.commit_no, self.heartbeat)


class ClaimPlan(NamedTuple):
    """The changes that a claim makes.

    Attributes:
        dead: The mark of the node that is declared dead, if any. The declaration requires its
            commit number and its heartbeat to be unchanged only if ``expects_silence``.
        seen_at, steady_at: Time of the last batch of any node.
    """

    node_no: int
    dead: NodeMark | None
    expects_silence: bool
    after_crash: bool
    seen_at: Timestamp | None
    steady_at: Timestamp | None

    def claim(self, epoch: int, commit_no: int, *, after_crash: bool) -> Claim:
        """Return the resulting claim."""
        return Claim(
            node_no=self.node_no,
            epoch=epoch,
            commit_no=commit_no,
            seen_at=self.seen_at,
            steady_at=self.steady_at,
            after_crash=after_crash,
        )


def known_nodes(rows: Sequence[Sequence[Any]]) -> list[KnownNode]:
    """Return the rows of all nodes.

    Raises:
        StrangeDatabase: If a row is damaged. No commit is possible then.
    """
    found = []
    for row in rows:
        try:
            row_checker(READ_NODES).checked([row])
        except msgspec.ValidationError as exc:
            text = f"damaged: table node, row node_no={row[0]}: {tuple(row)}: {exc}"
            raise StrangeDatabase(text) from exc
        found.append(KnownNode(*row))
    return found


def plan_claim(
    nodes: Sequence[KnownNode],
    about: NodeFacts | None,
    *,
    term: int,
    where: str,
    is_alone: bool = False,
) -> ClaimPlan:
    """Decide which changes a claim makes.

    An earlier daemon of the same home must have ended, because this daemon has locked the home. Any
    other active node must be the one to take over from, and must not have changed since it was
    observed.

    Args:
        nodes: All nodes, read after ``term`` was taken, which locks out other claims.
        about: The claiming node; ``None`` to claim the first node, whatever its state.
        where: The database, for messages.
        is_alone: Whether the database has only one node, whichever home that node belongs to.

    Raises:
        Fenced: If the standby that claims has been replaced.
        HomeBusy: If another node is active.
        StrangeDatabase: If a node has a term that was never issued.
    """
    for node in nodes:
        if node.epoch >= term:
            text = f"damaged: table node, row node_no={node.node_no}, column epoch: {node.epoch}"
            raise StrangeDatabase(f"{text}: the last term was {term - 1}")
    node_no = _FIRST_NODE if is_alone else own_number(nodes, about)
    if about is not None and about.joined_epoch:
        own = next((node for node in nodes if node.node_no == node_no), None)
        if own is None or own.epoch != about.joined_epoch:
            raise Fenced("another daemon has the identity of this home, or the node was removed")
    active = next((node for node in nodes if node.state == NodeState.ACTIVE), None)
    dead, expects_silence = None, False
    if about is not None and active is not None and active.node_no != node_no:
        if not about.is_forced and active.mark != about.after:
            raise HomeBusy(where, f"process {active.pid} on {active.host}", ANOTHER_DATABASE)
        dead, expects_silence = active.mark, not about.is_forced
    last = max(nodes, key=_last_batch, default=None)
    return ClaimPlan(
        node_no=node_no,
        dead=dead,
        expects_silence=expects_silence,
        after_crash=active is not None,
        seen_at=None if last is None else last.seen_at,
        steady_at=None if last is None else last.steady_at,
    )


def own_number(nodes: Sequence[KnownNode], about: NodeFacts | None) -> int:
    """Return the number of the claiming node.

    A home keeps its number. A node that is not active and whose home is unknown is assigned to the
    first home that asks.
    """
    home = None if about is None else about.home
    if not home:
        return _FIRST_NODE
    own = (node.node_no for node in nodes if node.home == home)
    free = (n.node_no for n in nodes if n.home is None and n.state != NodeState.ACTIVE)
    for found in (*own, *free):
        return found
    return max((node.node_no for node in nodes), default=_FIRST_NODE - 1) + 1


def _last_batch(node: KnownNode) -> int:
    return -1 if node.steady_at is None else node.steady_at


def claim_parameters(
    about: NodeFacts | None, *, node_no: int, epoch: int, state: NodeState = NodeState.ACTIVE
) -> dict[str, Any]:
    """Return the parameters of the statement that claims the database."""
    if about is None:
        facts: dict[str, Any] = dict.fromkeys(("started_at", "version", "pid", "host", "name"))
        facts |= {"home": None, "heartbeat_ms": 0}
    else:
        facts = {
            "started_at": about.started_at,
            "version": about.version,
            "pid": about.pid,
            "host": about.host,
            "home": about.home or None,
            "name": about.name or about.host,
            "heartbeat_ms": about.heartbeat_ms,
        }
    return {
        **facts,
        "node_no": node_no,
        "epoch": epoch,
        "state": int(state),
        "seen_at": facts["started_at"],
    }


def commit_times(batch: Batch) -> dict[str, Any]:
    """Return the time of a batch as parameters of the ``FENCE`` statement."""
    return {"at": batch.at, "steady": batch.at if batch.steady_at is None else batch.steady_at}


def confirm_applied(node: Sequence[Any] | None, *, epoch: int, number: int) -> None:
    """Check that a batch had already been applied.

    Called if the batch did not advance this node's row.

    A batch has already been applied if the reply to its first commit was lost.

    Args:
        node: Epoch, commit number and state in this node's row; ``None`` if the row is missing.
        epoch: The epoch under which this node writes.
        number: Number of the batch.

    Raises:
        Fenced: If the row has another epoch, or this node is not active any more.
        StrangeDatabase: If the row is missing or has any other commit number.
    """
    if node is None:
        raise StrangeDatabase("this node is no longer in the database")
    found_epoch, found_number, state = node
    if found_epoch != epoch:
        raise Fenced(f"this node writes under epoch {epoch}, but {found_epoch} has begun")
    if state != NodeState.ACTIVE:
        raise Fenced(f"this node writes under epoch {epoch}, but is no longer active")
    if found_number != number:
        raise StrangeDatabase(
            f"the database is at commit {found_number}, where this node expected "
            f"{number - 1}; was it restored from a copy?"
        )


_SAMPLE = 20
"""Number of encrypted rows to try in each table. One that can be decrypted is enough."""


def _bound(column: str, name: str | None = None) -> Any:
    return bindparam(name or column, type_=_node.c[column].type)


_OWNER = select(
    _node.c.home,
    _node.c.node_no,
    _node.c.epoch,
    _node.c.commit_no,
    _node.c.heartbeat,
    _node.c.host,
    _node.c.pid,
).where(tables.is_active)

_is_declared = (_node.c.node_no == _bound("node_no")) & tables.is_active

DECLARE_DEAD = {
    expects_silence: update(_node)
    .where(
        _is_declared,
        *(
            _node.c[column] == _bound(column, f"was_{column}")
            for column in ("epoch", "commit_no", "heartbeat")
            if expects_silence
        ),
    )
    .values(epoch=_bound("epoch", "term"), state=literal(NodeState.DEAD))
    for expects_silence in (False, True)
}
"""Declares the active node dead.

If silence is expected, only if the node has not changed meanwhile.

The dead node gets a new term, so no daemon writes under its old one.
"""

# A heartbeat need not be synced to disk. If the server crashes and loses it, the node's sessions
# are lost as well, so every observer of the node restarts its timer.
_unsynced = select(
    literal_column("set_config('synchronous_commit', 'off', true)").label("is_synced")
).cte("unsynced")

HEARTBEAT = (
    update(_node)
    .where(
        _unsynced.c.is_synced == literal_column("'off'"),
        _node.c.node_no == _bound("node_no"),
        _node.c.epoch == _bound("epoch", "of_epoch"),
        _node.c.state == _bound("state", "of_state"),
    )
    .values(heartbeat=_node.c.heartbeat + literal(1), heartbeat_at=_bound("heartbeat_at"))
)
"""Records a heartbeat of a node in a state under an epoch, on PostgreSQL."""

LEAVE = (
    update(_node)
    .where(_node.c.node_no == _bound("node_no"), _node.c.epoch == _bound("epoch", "of_epoch"))
    .values(state=literal(NodeState.LEFT))
)

FORGET = (
    update(_node)
    .where(
        _node.c.node_no == _bound("node_no"),
        _node.c.state >= literal(NodeState.LEFT),
    )
    .values(home=null(), name=null(), host=null(), state=literal(NodeState.LEFT))
)


def _encrypted_rows() -> Select[Any]:
    """Return the statement for the newest rows of each table with encrypted values."""
    wait, dag_trigger, value = tables.task_trigger, tables.dag_trigger, tables.named_value
    head, decision = tables.audit_head, tables.decision
    columns = (
        (wait, wait.c.trigger_no, wait.c.kwargs),
        (dag_trigger, dag_trigger.c.trigger_no, dag_trigger.c.kwargs),
        (value, value.c.value_no, value.c.encrypted),
        (head, head.c.head_no, head.c.encrypted),
        (decision, decision.c.decision_no, decision.c.question),
    )
    samples = [
        select(
            literal_column(f"'{table.name}'").label("of"),
            number.label("number"),
            encrypted.label("encrypted"),
        )
        .where(encrypted.is_not(None))
        .order_by(number.desc())
        .limit(literal(_SAMPLE))
        .subquery()
        for table, number, encrypted in columns
    ]
    every = union_all(*(select(sample) for sample in samples)).subquery()
    return select(every.c.of, every.c.number, every.c.encrypted)


_ENCRYPTED_ROWS = _encrypted_rows()


class OwnershipReader(QueryInterface):
    """The part of a store that reads the database's owner."""

    membership: Membership | None = None
    node_messages: NodeMessages | None = None
    _vault: Vault

    async def can_decrypt(self) -> bool:
        """See ``Store``."""
        (found,) = await self._fetch([self._question(_ENCRYPTED_ROWS)])
        # A damaged row proves nothing about the key. Reads of its table report the damage.
        samples = [
            (table, number, encrypted)
            for table, number, encrypted in found
            if isinstance(number, int) and isinstance(encrypted, bytes)
        ]
        return not samples or any(
            self._vault.decrypt(table, number, encrypted) is not None
            for table, number, encrypted in samples
        )

    async def find_owner(self) -> Owner | None:
        """See ``Store``. A SQLite file overrides this: its lock shows whether a daemon is alive."""
        found = await self._one(tuple, _OWNER)
        if found is None:
            return None
        home, node_no, epoch, commit_no, heartbeat, host, pid = found
        mark = NodeMark(node_no, epoch, commit_no, heartbeat)
        return Owner(home=home or "", mark=mark, host=host, pid=pid)

    async def heartbeat(self, at: Timestamp) -> None:
        """See ``Store``."""

    async def leave(self) -> None:
        """See ``Store``."""
