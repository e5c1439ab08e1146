"""The body of one try: the function or method to call, with its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from aioflow.author.codec import decode
from aioflow.author.context import resolve
from aioflow.author.node import Node
from aioflow.author.operator import runs_by_poke
from aioflow.author.signals import PokeReturnValue
from aioflow.author.trigger import TriggerEvent
from aioflow.protocol.commands import StartTask
from aioflow.worker.arguments import Arguments, KnownRun, spec_of
from aioflow.worker.items import all_items
from aioflow.worker.map_labels import label_of
from aioflow.worker.queries import ResultsPage

__all__ = ("Body", "PagesOfRun", "begin")

PagesOfRun: TypeAlias = Callable[[int, int, int], ResultsPage]
"""Returns the page of results for ``(run_no, position, after)``."""


class Body(msgspec.Struct, frozen=True):
    """A call to make.

    Attributes:
        operator: The operator instance, if the task is an operator.
        is_check: A poke of a sensor; its return value says whether the condition is met.
        label: The label of a mapped child, if it has one.
    """

    call: Callable[[], Any]
    operator: Any = None
    is_check: bool = False
    label: str | None = None


def begin(run: KnownRun, node: Node, start: StartTask, pages: PagesOfRun, results: Path) -> Body:
    """Return the body of a try, with its arguments resolved. Runs ``__init__`` of an operator.

    Raises:
        BadArgument: If an argument is unavailable.
    """
    is_check = node.sensor is not None and not start.method
    if not node.arguments and node.fn is not None:
        return Body(node.fn, None, is_check)
    resolved = Arguments(run, node, start, partial(pages, start.run_no), results)
    arguments = resolved.all()
    label = label_of(node, start, arguments)
    if node.fn is not None:
        return Body(partial(node.fn, **arguments), None, is_check, label)
    operator = node.make_operator(arguments)
    values = resolve("context", resolved.context)
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
    """Call a sensor's own ``execute``; its return value is the result, and the sensor is done."""
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
