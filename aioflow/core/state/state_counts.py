"""How the ended instances of a task's parents are counted, for its rules to look at."""

from __future__ import annotations

from aioflow.model.states import TaskState

__all__ = ("TALLY", "TALLY_OFFSET")

TALLY = 6
"""Words per tally in ``Run.tallies``: parent instances in all, and of those that ended
success, failed, upstream_failed, skipped, removed."""

TALLY_OFFSET = bytes(
    {
        TaskState.SUCCESS: 1,
        TaskState.FAILED: 2,
        TaskState.CANCELLED: 2,  # for the rules, cancelled counts as failed
        TaskState.UPSTREAM_FAILED: 3,
        TaskState.SKIPPED: 4,
        TaskState.REMOVED: 5,
    }.get(state, 0)
    for state in TaskState
)
"""Which of those words counts a task that ended so."""
