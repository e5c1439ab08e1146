"""The ids of traces and spans, worked out of what is stored: the same before and after a crash."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ("RUNNING", "run_span", "span_id", "trace_id", "traceparent")

RUNNING = "running"
"""The kind of stay that user code runs in, and whose span its own spans are below."""


def trace_id(run_no: int, run_id: str, created_at: int) -> int:
    """Return the id of a run's trace, never 0. The instant tells homes apart."""
    text = f"{run_no} {created_at} {run_id}".encode()
    return int.from_bytes(blake2b(text, digest_size=16).digest()) or 1


def span_id(trace: int, kind: str, task_no: int, number: int) -> int:
    """Return the id of a span, never 0.

    Args:
        trace: The id of its trace.
        kind: ``try``, or the kind of a stay.
        task_no: Of its task.
        number: Of a try the instant at which it began; of a stay the start it is, or follows.
    """
    text = f"{trace:x} {kind} {task_no} {number}".encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest()) or 1


def run_span(trace: int) -> int:
    """Return the id of the span of the run itself."""
    return span_id(trace, "run", 0, 0)


def traceparent(trace: int, task_no: int, start_no: int) -> str:
    """Return how W3C Trace Context names the span that a start of a task runs in."""
    return f"00-{trace:032x}-{span_id(trace, RUNNING, task_no, start_no):016x}-01"
