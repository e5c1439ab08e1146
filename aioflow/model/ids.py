"""Row numbers, start numbers, and the ids of traces and spans.

Numbers of task rows are computed, so they are known before the row exists. The number of an
unmapped task is ``run.first_task_no + task_index``; the number of child ``i`` of a mapped task is
``expansion.first_task_no + i``. **A task without a row is pending.**

A **try** is one attempt as the author counts them; a **start** is one handover to a process.
``start_no`` grows by one per start of a task and is never reset. Clearing a task advances it to the
next multiple of 2^32, so a start number also shows how often the task was cleared.

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
"""A task has 2^32 start numbers per clear: enough for 50 days at a thousand starts per second."""


def after_clear(start_no: StartNo) -> StartNo:
    """Return the start number of a cleared task, which is above the numbers of all its starts."""
    return (clear_number(start_no) + 1) << _CLEAR_BITS


def clear_number(start_no: StartNo) -> int:
    """Return how often a task had been cleared before the start with this number."""
    return start_no >> _CLEAR_BITS


RUNNING = "running"
"""The kind of span in which user code runs. Spans created by user code are its children."""


def trace_id(run_no: int, run_id: str, created_at: int) -> int:
    """Return the id of a run's trace, never 0. The time distinguishes runs of different homes."""
    text = f"{run_no} {created_at} {run_id}".encode()
    return int.from_bytes(blake2b(text, digest_size=16).digest()) or 1


def span_id(trace: int, kind: str, task_no: int, number: int) -> int:
    """Return the id of a span, never 0.

    Args:
        trace: The id of its trace.
        kind: ``try``, or the kind of a period in which the task is in one state.
        task_no: The number of its task.
        number: For a try, the timestamp at which it started. For a period in one state, the number
            of the start that the period covers or follows.
    """
    text = f"{trace:x} {kind} {task_no} {number}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest()) or 1


def run_span(trace: int) -> int:
    """Return the id of the span of the run itself."""
    return span_id(trace, "run", 0, 0)


def traceparent(trace: int, task_no: int, start_no: int) -> str:
    """Return the W3C ``traceparent`` of the span in which a start of a task runs."""
    return f"00-{trace:032x}-{span_id(trace, RUNNING, task_no, start_no):016x}-01"
