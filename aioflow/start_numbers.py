"""Numbers of the starts of a task: they grow with each start, and by a leap with each clearing.

So the number of a start also tells how often its task was cleared, whatever was stored since.
"""

from __future__ import annotations

from aioflow.model import StartNo

__all__ = ("after_clear", "clear_number")

_CLEAR_BITS = 32
"""A task that is started a thousand times a second needs 50 days to use up as many starts."""


def after_clear(start_no: StartNo) -> StartNo:
    """Return the number of a task that is cleared: behind all that its starts may have had."""
    return (clear_number(start_no) + 1) << _CLEAR_BITS


def clear_number(start_no: StartNo) -> int:
    """Return how often the task of a start was cleared before it."""
    return start_no >> _CLEAR_BITS
