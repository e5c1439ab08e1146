"""The body of one try: the function or method to call, with its arguments, and its trace span.

The span is the current trace context of the body, so that user spans become its children. In a
process that runs one try at a time, the environment variable ``TRACEPARENT`` is set, and
subprocesses inherit it. If the OpenTelemetry package is installed, its context is set, too.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import msgspec

from aioflow.author.codec import decode
from aioflow.author.context import context_value
from aioflow.author.deferral import PokeReturnValue
from aioflow.author.node import Node
from aioflow.author.operator import runs_by_poke
from aioflow.author.trigger import TriggerEvent
from aioflow.model.ids import RUNNING, span_id, trace_id, traceparent
from aioflow.protocol.commands import RunInfo, StartTask
from aioflow.results import ResultFiles
from aioflow.worker.query.messages import ResultsPage
from aioflow.worker.task.arguments import Arguments, KnownRun, spec_of
from aioflow.worker.task.items import all_items, label_of

__all__ = (
    "Body",
    "PagesOfRun",
    "attach_span",
    "body_of_try",
    "use_span",
)

PagesOfRun: TypeAlias = Callable[[int, int, int], ResultsPage]
"""Fetches the page of results for ``(run_no, task_index, after)``."""


class Body(msgspec.Struct, frozen=True):
    """The call that a try makes.

    Attributes:
        operator: The operator instance, if the task is an operator.
        is_check: Whether this is a poke of a sensor. Its return value is whether the condition is
            met.
        label: The label of the mapped child, if it has one.
    """

    call: Callable[[], Any]
    operator: Any = None
    is_check: bool = False
    label: str | None = None


def body_of_try(
    run: KnownRun, node: Node, start: StartTask, pages: PagesOfRun, results: ResultFiles
) -> Body:
    """Return the body of a try, with its arguments resolved. Runs ``__init__`` of an operator.

    Raises:
        BadArgument: If an argument is unavailable.
    """
    is_check = node.settings.sensor is not None and not start.method
    if not node.arguments and node.fn is not None:
        return Body(node.fn, None, is_check)
    resolved = Arguments(run, node, start, partial(pages, start.run_no), results)
    arguments = resolved.all()
    label = None if node.settings.map_label is None else label_of(node, start, arguments)
    if node.fn is not None:
        return Body(partial(node.fn, **arguments), None, is_check, label)
    operator = node.make_operator(arguments)
    values = context_value("context", resolved.context)
    values["task"] = operator
    if start.is_closing and not start.method:
        pages_of_run = partial(pages, start.run_no)
        return Body(lambda: all_items(pages_of_run, start.task_no), operator)
    if not start.method:
        if not is_check:
            return Body(partial(operator.execute, values), operator, label=label)
        look = operator.poke if runs_by_poke(type(operator)) else partial(_whole, operator.execute)
        return Body(partial(look, values), operator, is_check=True, label=label)
    kwargs = {} if start.kwargs is None else decode(start.kwargs)
    if start.upto:
        return Body(_taking_events(operator, node, start, values, kwargs), operator)
    event = None if start.event is None else decode(start.event)
    method = getattr(operator, start.method)
    return Body(partial(method, values, event=event, **kwargs), operator)


def _whole(execute: Callable[[Any], Any], values: Any) -> Any:
    """Call a sensor's custom ``execute``.

    Its return value is the result, and completes the sensor.
    """
    value = execute(values)
    return _waited_for(value) if inspect.isawaitable(value) else PokeReturnValue(True, value)


async def _waited_for(value: Awaitable[Any]) -> PokeReturnValue[Any]:
    return PokeReturnValue(is_done=True, xcom_value=await value)


def _taking_events(
    operator: Any, node: Node, start: StartTask, values: Any, kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """Return the call that handles a batch of events, or a single event."""
    method = getattr(operator, start.method)
    events = [TriggerEvent(decode(payload), key) for payload, key in start.events]
    described = spec_of(node).events
    if described is not None and described.method:
        return partial(method, events, values)
    return partial(method, values, event=events[0].payload, **kwargs)


_TRACE_VARIABLE = "TRACEPARENT"


@contextmanager
def use_span(info: RunInfo | None, start: StartTask) -> Iterator[None]:
    """Make a try the current span of this process for the duration of the context."""
    if info is None:
        yield
        return
    trace = trace_id(info.run_no, info.run_id, info.created_at)
    os.environ[_TRACE_VARIABLE] = traceparent(trace, start.task_no, start.start_no)
    token = attach_span(info, start)
    try:
        yield
    finally:
        os.environ.pop(_TRACE_VARIABLE, None)
        if token is not None:
            from opentelemetry.context import detach

            detach(token)


def attach_span(info: RunInfo, start: StartTask) -> Any:
    """Make a try the current span of this context. Return the token to detach it."""
    try:
        from opentelemetry.context import attach
        from opentelemetry.trace import (
            NonRecordingSpan,
            SpanContext,
            TraceFlags,
            set_span_in_context,
        )
    except ImportError:
        return None  # without that package, no code here can trace
    trace = trace_id(info.run_no, info.run_id, info.created_at)
    span = span_id(trace, RUNNING, start.task_no, start.start_no)
    known = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return attach(set_span_in_context(NonRecordingSpan(known)))
