"""Row numbers, start numbers, and the ids of traces and spans.

Row numbers are laid out so that a row need not exist to be addressed: the unmapped task at
``position`` is ``run.first_task_no + position``, child ``i`` of a mapped one is
``expansion.first_task_no + i``. **A task without a row is pending.**

A **try** is one attempt as the author counts them; a **start** is one handover to a process.
``start_no`` grows by one per start of a task and never restarts. Clearing a task advances it to the
next multiple of 2^32, so the number of a start also tells how often its task was cleared.

Ids of traces and spans are computed from stored values, so they are the same before and after a
crash.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypeAlias

__all__ = (
    "RUNNING",
    "RunNo",
    "StartNo",
    "TaskNo",
    "TriggerNo",
    "after_clear",
    "clear_number",
    "run_span",
    "span_id",
    "trace_id",
    "traceparent",
)

RunNo: TypeAlias = int
TaskNo: TypeAlias = int
TriggerNo: TypeAlias = int
StartNo: TypeAlias = int

_CLEAR_BITS = 32
"""With a thousand starts a second a task takes 50 days to use up the numbers of one clear."""


def after_clear(start_no: StartNo) -> StartNo:
    """Return the start number of a cleared task, above all numbers that its starts may have had."""
    return (clear_number(start_no) + 1) << _CLEAR_BITS


def clear_number(start_no: StartNo) -> int:
    """Return how often the task of a start was cleared before it."""
    return start_no >> _CLEAR_BITS


RUNNING = "running"
"""The kind of span in which user code runs. Its own spans are children of that span."""


def trace_id(run_no: int, run_id: str, created_at: int) -> int:
    """Return the id of a run's trace, never 0. The timestamp distinguishes homes."""
    text = f"{run_no} {created_at} {run_id}".encode()
    return int.from_bytes(blake2b(text, digest_size=16).digest()) or 1


def span_id(trace: int, kind: str, task_no: int, number: int) -> int:
    """Return the id of a span, never 0.

    Args:
        trace: The id of its trace.
        kind: ``try``, or the kind of a stay in one state.
        task_no: The number of its task.
        number: For a try, the timestamp at which it started; for a stay, the start that it is, or
            follows.
    """
    text = f"{trace:x} {kind} {task_no} {number}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest()) or 1


def run_span(trace: int) -> int:
    """Return the id of the span of the run itself."""
    return span_id(trace, "run", 0, 0)


def traceparent(trace: int, task_no: int, start_no: int) -> str:
    """Return the W3C Trace Context name of the span in which a start of a task runs."""
    return f"00-{trace:032x}-{span_id(trace, RUNNING, task_no, start_no):016x}-01"
