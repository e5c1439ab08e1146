"""Roles of the child processes that run coroutines and triggers.

All DAGs share ``async``, ``triggers`` and ``quarantine``. A DAG whose specification says
``isolated`` runs its coroutines in ``async:<dag_id>`` and its triggers in ``triggers:<dag_id>``.
Such dedicated hosts run only while they have work.
"""

from __future__ import annotations

from aioflow.model.dag import DagSpec

__all__ = (
    "ASKED_FOR",
    "ASYNC",
    "QUARANTINE",
    "TRIGGERS",
    "async_role",
    "dag_of",
    "is_own",
    "kind_of",
    "own_role",
)

ASYNC, TRIGGERS, QUARANTINE = "async", "triggers", "quarantine"

ASKED_FOR = "its file says isolated=True"
"""Reason shown for a DAG whose author requested dedicated hosts."""

_MARK = ":"


def own_role(kind: str, dag_id: str) -> str:
    """Return the role of the host that runs one kind of code for a single DAG."""
    return f"{kind}{_MARK}{dag_id}"


def is_own(role: str) -> bool:
    """Return whether a host of this role serves a single DAG."""
    return _MARK in role


def dag_of(role: str) -> str:
    """Return the DAG that a host serves, or ``""`` if it serves all DAGs."""
    return role.partition(_MARK)[2]


def kind_of(role: str) -> str:
    """Return the kind of code that a host of this role runs, without the DAG."""
    return role.partition(_MARK)[0]


def async_role(spec: DagSpec) -> str:
    """Return the role of the host that runs the coroutines of a DAG version."""
    return own_role(ASYNC, spec.dag_id) if spec.isolated else ASYNC
