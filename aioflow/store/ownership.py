"""Ownership of a database: its claim, its fence, its owner, and whether a key decrypts its values.

If a commit does not advance the commit number, ``confirm_applied`` finds out why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Select, bindparam, delete, literal_column, select, union_all, update
from sqlalchemy.dialects import postgresql

from aioflow.crypto import Vault
from aioflow.errors import Fenced, StrangeDatabase
from aioflow.model.batch import Batch
from aioflow.model.rows import NodeFacts
from aioflow.model.timestamps import Timestamp
from aioflow.store import Claim, Owner, tables
from aioflow.store.columns import row_checker
from aioflow.store.query_protocol import QueryInterface

__all__ = (
    "CLEAR_OWNER",
    "HEARTBEAT",
    "NODE_NO",
    "READ_EPOCH",
    "READ_OWNER",
    "SET_OWNER",
    "OwnershipReader",
    "claim_from_row",
    "claim_parameters",
    "commit_times",
    "confirm_applied",
)

NODE_NO = 1

_claimed_node = tables.node
_CLAIMED = select(
    _claimed_node.c.epoch,
    _claimed_node.c.commit_no,
    _claimed_node.c.seen_at,
    _claimed_node.c.steady_at,
)


def claim_parameters(about: NodeFacts | None) -> dict[str, Any]:
    """Return the parameters of the statement that claims the database."""
    return {
        "node_no": NODE_NO,
        "started_at": None if about is None else about.started_at,
        "seen_at": None if about is None else about.started_at,
        "version": None if about is None else about.version,
        "pid": None if about is None else about.pid,
        "host": None if about is None else about.host,
    }


def claim_from_row(row: Sequence[Any], *, after_crash: bool) -> Claim:
    """Return the claim that a row from the claiming statement describes.

    Args:
        after_crash: See ``Claim``.

    Raises:
        StrangeDatabase: If the row of this node is damaged, so that no commit is possible.
    """
    try:
        row_checker(_CLAIMED).checked([row])
    except msgspec.ValidationError as exc:
        found = f"damaged: table node, row node_no={NODE_NO}: {tuple(row)}: {exc}"
        raise StrangeDatabase(found) from exc
    epoch, commit_no, seen_at, steady_at = row
    return Claim(
        node_no=NODE_NO,
        epoch=epoch,
        commit_no=commit_no,
        seen_at=seen_at,
        steady_at=steady_at,
        after_crash=after_crash,
    )


def commit_times(batch: Batch) -> dict[str, Any]:
    """Return the time of a batch as parameters of the statement that advances the node."""
    return {"at": batch.at, "steady": batch.at if batch.steady_at is None else batch.steady_at}


def confirm_applied(node: Sequence[Any] | None, *, epoch: int, number: int) -> None:
    """Check that a batch has been applied already. Called if it did not advance this node's row.

    That is the case if the reply to the first commit of the batch was lost.

    Args:
        node: Epoch and commit number in this node's row; ``None`` if the row is missing.
        epoch: The epoch under which this node writes.
        number: Number of the batch.

    Raises:
        Fenced: If the row has another epoch.
        StrangeDatabase: If the row is missing or has any other commit number.
    """
    if node is None:
        raise StrangeDatabase("this node is no longer in the database")
    found_epoch, found_number = node
    if found_epoch != epoch:
        raise Fenced(f"this node writes under epoch {epoch}, but {found_epoch} has begun")
    if found_number != number:
        raise StrangeDatabase(
            f"the database is at commit {found_number}, where this node expected "
            f"{number - 1}; was it restored from a copy?"
        )


_SAMPLE = 20
"""Number of encrypted rows to try in each table. It suffices that one can be decrypted."""

_OWNER_KEY = "holder"

_node, _meta = tables.node, tables.meta
_is_mine = _node.c.node_no == literal_column(str(NODE_NO))
_is_owner_row = _meta.c.name == literal_column(f"'{_OWNER_KEY}'")


_OWNER = select(
    _meta.c.value, _node.c.epoch, _node.c.commit_no, _node.c.seen_at, _node.c.host, _node.c.pid
).where(_is_mine, _is_owner_row)


def _set_owner() -> Any:
    value = bindparam("home", type_=_meta.c.value.type)
    noted = postgresql.insert(_meta).values(name=literal_column(f"'{_OWNER_KEY}'"), value=value)
    return noted.on_conflict_do_update(
        index_elements=["name"], set_={"value": noted.excluded.value}
    )


SET_OWNER = _set_owner()
"""Records the home of the daemon that claims the database."""

CLEAR_OWNER = delete(_meta).where(_is_owner_row)

READ_OWNER = select(_meta.c.value).where(_is_owner_row)
"""Reads the home of the daemon that claimed the database, unless it shut down cleanly."""

READ_EPOCH = select(_node.c.epoch).where(_is_mine).with_for_update()
"""Reads the epoch of this node and locks its row until the transaction ends."""

HEARTBEAT = (
    update(_node)
    .where(_is_mine, _node.c.epoch == bindparam("of_epoch", type_=_node.c.epoch.type))
    .values(seen_at=bindparam("at", type_=_node.c.seen_at.type))
)
"""Records a heartbeat of the daemon that writes under an epoch."""


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
        .limit(literal_column(str(_SAMPLE)))
        .subquery()
        for table, number, encrypted in columns
    ]
    every = union_all(*(select(sample) for sample in samples)).subquery()
    return select(every.c.of, every.c.number, every.c.encrypted)


_ENCRYPTED_ROWS = _encrypted_rows()


class OwnershipReader(QueryInterface):
    """The part of a store that reads its owner. The owner of a SQLite file is known by its lock."""

    _vault: Vault

    async def can_decrypt(self) -> bool:
        """See ``Store``."""
        (found,) = await self._fetch([self._question(_ENCRYPTED_ROWS)])
        # A damaged row says nothing about the key. Reads of its table report it.
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
        """See ``Store``."""
        found = await self._one(tuple, _OWNER)
        if found is None:
            return None
        home, epoch, commit_no, seen_at, host, pid = found
        return Owner(
            home=home, epoch=epoch, commit_no=commit_no, seen_at=seen_at, host=host, pid=pid
        )

    async def heartbeat(self, at: Timestamp) -> None:
        """See ``Store``."""

    async def leave(self) -> None:
        """See ``Store``."""
