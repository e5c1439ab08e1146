"""Roles of the child processes that run user code.

All DAGs share ``async``, ``triggers`` and ``quarantine``. A DAG that is ``isolated`` in its
specification runs its coroutines in ``async:<dag_id>`` and its triggers in ``triggers:<dag_id>``.

A DAG that chooses an interpreter shares ``async@<name>``, ``triggers@<name>`` and
``quarantine@<name>`` with the other DAGs of that interpreter. If it is isolated as well, it has
``async@<name>:<dag_id>`` and ``triggers@<name>:<dag_id>``. The hosts of isolated DAGs and of chosen
interpreters run only while they have work.

``slot@<name>`` is not a process. This role is up while workers can be started in that interpreter.
"""

from __future__ import annotations

from functools import lru_cache

from aioflow.model.dag import DagSpec

__all__ = (
    "ASKED_FOR",
    "ASYNC",
    "QUARANTINE",
    "SLOT",
    "TRIGGERS",
    "async_role",
    "dag_of",
    "hosts_triggers",
    "interpreter_of",
    "is_on_demand",
    "is_own",
    "kind_of",
    "own_role",
    "shared_role",
    "shown_interpreter",
    "slot_role",
)

ASYNC, TRIGGERS, QUARANTINE, SLOT = "async", "triggers", "quarantine", "slot"

ASKED_FOR = "its file says isolated=True"
"""Reason shown for a DAG whose author requested dedicated hosts."""

_MARK = ":"
_INTERPRETER_MARK = "@"


@lru_cache(maxsize=4_096)  # one text for all runs of a DAG
def own_role(kind: str, dag_id: str, interpreter: str = "") -> str:
    """Return the role of the host that runs one kind of code for a single DAG."""
    return f"{shared_role(kind, interpreter)}{_MARK}{dag_id}"


@lru_cache(maxsize=4_096)
def shared_role(kind: str, interpreter: str = "") -> str:
    """Return the role of the host that runs one kind of code for all DAGs of an interpreter."""
    return f"{kind}{_INTERPRETER_MARK}{interpreter}" if interpreter else kind


def is_own(role: str) -> bool:
    """Return whether a host of this role serves a single DAG."""
    return _MARK in role


def is_on_demand(role: str) -> bool:
    """Return whether a host of this role is started on request and ends when it has no work."""
    return _MARK in role or _INTERPRETER_MARK in role


def dag_of(role: str) -> str:
    """Return the DAG that a host serves, or ``""`` if it serves all DAGs."""
    return role.partition(_MARK)[2]


def interpreter_of(role: str) -> str:
    """Return the interpreter of a host, or ``""`` if it is the daemon's own interpreter."""
    return role.partition(_MARK)[0].partition(_INTERPRETER_MARK)[2]


def kind_of(role: str) -> str:
    """Return the kind of code that a host of this role runs, without interpreter and DAG."""
    return role.partition(_MARK)[0].partition(_INTERPRETER_MARK)[0]


def hosts_triggers(role: str) -> bool:
    """Return whether a host of this role runs triggers."""
    return kind_of(role) in {TRIGGERS, QUARANTINE}


def async_role(spec: DagSpec) -> str:
    """Return the role of the host that runs the coroutines of a DAG version."""
    if spec.isolated:
        return own_role(ASYNC, spec.dag_id, spec.interpreter)
    return shared_role(ASYNC, spec.interpreter)


def slot_role(spec: DagSpec) -> str:
    """Return the role of the workers of a DAG version; empty for the daemon's own interpreter."""
    return shared_role(SLOT, spec.interpreter) if spec.interpreter else ""


def shown_interpreter(role: str) -> str:
    """Return a phrase that names the interpreter of a role; empty for the daemon's own."""
    return f"python {interpreter_of(role)!r}" if interpreter_of(role) else ""
