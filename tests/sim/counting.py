"""I9: the task counts reported for an active run, taken from memory, match its rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

from aioflow.core.runs.task_counts import counted, fresh_queued
from aioflow.model.states import RunState, TaskState
from tests.sim.broken import Broken

__all__ = ("counts_are_recounts",)

_UNCOUNTED = {TaskState.PENDING, TaskState.REMOVED}
"""States without a count to compare: pending tasks may have no row, removed ones do not count."""


def counts_are_recounts(node: Any, run_no: int) -> None:
    """I9: check that the task counts in memory match the rows."""
    run = node.memory.runs.get(run_no)
    if run is None or run.state is not RunState.RUNNING or run.row.quarantine is not None:
        return
    told = Counter(
        {(at, state): count for at, state, count in counted(run) if state not in _UNCOUNTED}
    )
    for group in run.groups.values():  # mapped children that only wait for a slot have no row yet
        told[group.task_index, TaskState.QUEUED] -= fresh_queued(group)
    rows = Counter(
        (row.task_index, row.state)
        for row in node.tables.tasks_of(run_no)
        if row.state not in _UNCOUNTED
    )
    if told != rows:
        raise Broken("I9 counts", f"run {run_no} tells {told}, the rows say {rows}")
