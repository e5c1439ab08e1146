"""Sets the span of a try as the current trace context, so that user spans become its children.

In a process that runs one try at a time the variable ``TRACEPARENT`` is set, which subprocesses
inherit. In addition, the OpenTelemetry context is set if that package is installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aioflow.model.ids import RUNNING, span_id, trace_id, traceparent
from aioflow.protocol.commands import RunInfo, StartTask

__all__ = ("enter", "within")

_VARIABLE = "TRACEPARENT"


@contextmanager
def within(info: RunInfo | None, start: StartTask) -> Iterator[None]:
    """Set a try as the current span of this process while the context is active."""
    if info is None:
        yield
        return
    trace = trace_id(info.run_no, info.run_id, info.created_at)
    os.environ[_VARIABLE] = traceparent(trace, start.task_no, start.start_no)
    token = enter(info, start)
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        if token is not None:
            from opentelemetry.context import detach

            detach(token)


def enter(info: RunInfo, start: StartTask) -> Any:
    """Set a try as the current span of this context; return the token to detach it."""
    try:
        from opentelemetry.context import attach
        from opentelemetry.trace import (
            NonRecordingSpan,
            SpanContext,
            TraceFlags,
            set_span_in_context,
        )
    except ImportError:
        return None  # then no code here can trace
    trace = trace_id(info.run_no, info.run_id, info.created_at)
    span = span_id(trace, RUNNING, start.task_no, start.start_no)
    known = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return attach(set_span_in_context(NonRecordingSpan(known)))
