"""Encryption of stored values with a new key of the home, one page per turn.

A row that another change of the same turn writes is skipped, because it is encrypted with the new
key anyway.
"""

from __future__ import annotations

from aioflow.core.transaction import Transaction
from aioflow.protocol.requests import Reencrypt, Reencrypted

__all__ = ("PAGE", "reencrypt")

PAGE = 1_000
"""Triggers per turn."""


def reencrypt(request: Reencrypt, tx: Transaction) -> Reencrypted:
    """Write the rows again that were loaded for this request.

    If requested twice in one turn, the second request writes nothing, and no page follows it.
    """
    values, triggers = tx.memory.encrypted
    tx.memory.encrypted = [], []
    batch = tx.batch
    changed = {(row.kind, row.name) for row in batch.values}
    opened = [row for row in values if row.value is not None]
    batch.values += [row for row in opened if (row.kind, row.name) not in changed]
    readable = [
        (row.trigger_no, row.kwargs, row.next_kwargs) for row in triggers if row.kwargs is not None
    ]
    batch.reencrypted += readable
    if request.after is None:
        tx.accounts.reencrypt()
    standing, shut = _reencrypt_dag_triggers(request, tx)
    unopened = len(values) + len(triggers) - len(opened) - len(readable)
    after = -1 if request.after is None else None
    if len(triggers) == PAGE:
        after = triggers[-1].trigger_no
    return Reencrypted(len(opened) + len(readable) + standing, unopened + shut, after)


def _reencrypt_dag_triggers(request: Reencrypt, tx: Transaction) -> tuple[int, int]:
    """Write the triggers that start runs again, together with the first page, as there are few.

    Returns:
        How many were written, and how many were not because no key decrypts them.
    """
    if request.after is not None:
        return 0, 0
    known = list(tx.memory.dag_triggers)
    readable = [one for one in known if one.row.kwargs is not None]
    for one in readable:
        tx.dag_triggers.rewrite(one)
    return len(readable), len(known) - len(readable)
