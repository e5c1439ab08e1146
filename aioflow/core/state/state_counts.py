"""Layout of the tallies: counts of a task's ended parent instances, for its trigger rules."""

from __future__ import annotations

from aioflow.model.states import TaskState

__all__ = ("TALLY", "TALLY_OFFSET")

TALLY = 6
"""Words per tally in ``Run.tallies``: all parent instances, then those that ended as success,
failed, upstream_failed, skipped and removed.
"""

TALLY_OFFSET = bytes(
    {
        TaskState.SUCCESS: 1,
        TaskState.FAILED: 2,
        TaskState.CANCELLED: 2,  # trigger rules treat cancelled as failed
        TaskState.UPSTREAM_FAILED: 3,
        TaskState.SKIPPED: 4,
        TaskState.REMOVED: 5,
    }.get(state, 0)
    for state in TaskState
)
"""By state, the word of a tally that counts tasks that ended in it."""
