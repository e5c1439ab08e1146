"""Claim of the database, and the reason why a commit did not advance the commit number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import select

from aioflow.errors import Fenced, StrangeDatabase
from aioflow.model.batch import Batch
from aioflow.model.rows import NodeFacts
from aioflow.store import Claim, tables
from aioflow.store.column_checks import checker

__all__ = ("NODE_NO", "claimed", "claiming", "committed_at", "confirm_applied")

NODE_NO = 1

_node = tables.node
_CLAIMED = select(_node.c.epoch, _node.c.commit_no, _node.c.seen_at, _node.c.steady_at)


def claiming(about: NodeFacts | None) -> dict[str, Any]:
    """Return the parameters of the statement that claims the database."""
    return {
        "node_no": NODE_NO,
        "started_at": None if about is None else about.started_at,
        "seen_at": None if about is None else about.started_at,
        "version": None if about is None else about.version,
        "pid": None if about is None else about.pid,
        "host": None if about is None else about.host,
    }


def claimed(row: Sequence[Any], *, after_crash: bool) -> Claim:
    """Return the claim from the row that the claiming statement returned.

    Args:
        after_crash: See ``Claim``.

    Raises:
        StrangeDatabase: If the row of this node is damaged, so that no commit is possible.
    """
    try:
        checker(_CLAIMED).checked([row])
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


def committed_at(batch: Batch) -> dict[str, Any]:
    """Return the time of a batch as parameters of the statement that advances the node."""
    return {"at": batch.at, "steady": batch.at if batch.steady_at is None else batch.steady_at}


def confirm_applied(node: Sequence[Any] | None, *, epoch: int, number: int) -> None:
    """Check that a batch is already applied, which happens after a lost reply.

    Args:
        node: Epoch and commit number of this node's row; ``None`` if it is missing.
        epoch: The epoch under which this node writes.
        number: Number of the batch that could not advance the row.

    Raises:
        Fenced: If the row has another epoch.
        StrangeDatabase: If the row is missing or has any other commit number.
    """
    if node is None:
        raise StrangeDatabase("the database does not know this node any more")
    found_epoch, found_number = node
    if found_epoch != epoch:
        raise Fenced(f"this node writes under epoch {epoch}, but {found_epoch} has begun")
    if found_number != number:
        raise StrangeDatabase(
            f"the database stands at commit {found_number}, where this node expected "
            f"{number - 1}; was it restored from a copy?"
        )
