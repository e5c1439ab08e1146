"""Draining of a node: it starts no further task and assigns no further trigger.

Running tasks continue to their end, and hosted triggers stay hosted. The node stays drained until
it is undrained, also over restarts.
"""

from __future__ import annotations

from aioflow.core.state.child_roles import ASYNC, kind_of
from aioflow.core.transaction import Transaction
from aioflow.core.triggers import dag_triggers
from aioflow.core.triggers.assignment import host_all, want_own_hosts
from aioflow.errors import UnknownNode
from aioflow.protocol.effects import RecallTries
from aioflow.protocol.requests import DrainNode

__all__ = ("recall_claims", "set_drained")


def set_drained(request: DrainNode, tx: Transaction) -> bool:
    """Drain or undrain a node. Return whether that changes its state.

    Raises:
        UnknownNode: If it is not this node: no other one is reachable.
    """
    memory = tx.memory
    if request.node_no != memory.node_no:
        raise UnknownNode(request.node_no)
    if memory.is_drained == request.is_drained:
        return False
    if tx.was_drained is None:
        tx.was_drained = memory.is_drained
    memory.is_drained = request.is_drained
    tx.batch.drained.append((request.node_no, tx.now if request.is_drained else None))
    if request.is_drained:
        memory.group_may_begin_since = None
        recall_claims(tx)
        return True
    for role in sorted(role for role in memory.hosts_up if kind_of(role) != ASYNC):
        host_all(role, tx)
        dag_triggers.host_all(role, tx)
    want_own_hosts(tx)
    dag_triggers.place_all(tx)
    return True


def recall_claims(tx: Transaction) -> None:
    """Recall tries that were prefetched to workers and have not started."""
    for worker in tx.slots.workers:
        if worker.claims:
            tries = tuple((task.task_no, task.start_no) for task in worker.claims)
            tx.effects.append(RecallTries(worker.number, tries))
