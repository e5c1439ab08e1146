"""The roles of the processes that host coroutines and triggers, and whose code each of them runs.

All DAGs share ``async``, ``triggers`` and ``quarantine``. A DAG whose specification says
``isolated`` has its coroutines in ``async:<dag_id>`` and its triggers in ``triggers:<dag_id>``:
hosts of its own, which run while they have something to do.
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
"""Why a DAG has hosts of its own whose author wants that."""

_MARK = ":"


def own_role(kind: str, dag_id: str) -> str:
    """Return the role of the host that runs things of one kind for one DAG only."""
    return f"{kind}{_MARK}{dag_id}"


def is_own(role: str) -> bool:
    """Return whether a host of this role serves a single DAG."""
    return _MARK in role


def dag_of(role: str) -> str:
    """Return the DAG that a host serves; empty if that is every DAG."""
    return role.partition(_MARK)[2]


def kind_of(role: str) -> str:
    """Return what a host of this role runs: the role that its process plays."""
    return role.partition(_MARK)[0]


def async_role(spec: DagSpec) -> str:
    """Return the role of the host that runs the coroutines of a version of a DAG."""
    return own_role(ASYNC, spec.dag_id) if spec.isolated else ASYNC
