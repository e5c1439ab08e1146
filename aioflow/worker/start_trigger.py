"""The trigger of a task that starts deferred, created in the triggerer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aioflow.author import codec
from aioflow.author.node import Node
from aioflow.author.signals import Skip
from aioflow.author.start import START_KWARGS, StartTriggerArgs, TaskSkippedEvent
from aioflow.author.steps import Steps
from aioflow.author.trigger import FIELDS_LIMIT, Trigger, TriggerEvent
from aioflow.errors import ValueTooLarge
from aioflow.protocol.commands import StartTask
from aioflow.worker.arguments import Arguments, KnownRun
from aioflow.worker.failures import failure_of
from aioflow.worker.pages import FetchPage, fetch_ahead
from aioflow.worker.trigger_events import TriggerWrong

__all__ = ("NoStartTrigger", "start_trigger")


class NoStartTrigger(Exception):
    """A task that should start deferred does not define its trigger."""


@dataclass
class Skipping(Trigger[None]):
    """Skips a task whose arguments raised ``Skip`` before it could wait."""

    message: str

    async def run(self) -> AsyncIterator[TriggerEvent[None]]:
        """Yield the skip event."""
        yield TaskSkippedEvent(self.message)


async def start_trigger(
    run: KnownRun,
    node: Node,
    start: StartTask,
    fetch: FetchPage,
    results: Path,
    find_class: Callable[[str], Any],
) -> tuple[type[Trigger[Any]], Steps[bytes]]:
    """Return the trigger class of a task and the encoding of its fields. Runs user code.

    An unmapped task is instantiated, so that ``__init__`` may define the trigger. A mapped task is
    not: its class defines the trigger, and its item the remaining fields.

    Raises:
        BadArgument: If an argument is unavailable.
        NoStartTrigger: If the task does not define its trigger.
        Unserializable: If an argument cannot be encoded.
    """
    pages = await fetch_ahead(run, node, start, fetch)
    read = partial(pages, start.run_no)
    resolved = Arguments(run, node, start, read, results)
    try:
        arguments = resolved.all()
    except Skip as exc:  # raised by a function given to map
        why = failure_of(exc).message
        return Skipping, _fields({"message": why}, Skipping)
    own = arguments.pop(START_KWARGS, None) or {}
    owner: Any = node.make_operator(arguments) if node.instance is not None else node.operator
    said = getattr(owner, "start_trigger_args", None)
    if not isinstance(said, StartTriggerArgs):
        raise NoStartTrigger(f"{node.task_id!r} has no start_trigger_args")
    cls = said.trigger_cls
    found = find_class(said.class_path) if isinstance(cls, str) else cls
    fields = said.trigger_kwargs or {}
    if isinstance(owner, type) or "start_trigger_args" not in vars(owner):
        fields = resolved.rendered(fields)  # only fields set in the class may be templates
    kwargs = {**fields, **own}
    return found, _fields(kwargs, found)


def _fields(named: dict[str, Any], cls: type[Trigger[Any]]) -> Steps[bytes]:
    try:
        return (yield from codec.fields_in_steps(named, cls.__name__, FIELDS_LIMIT))
    except ValueTooLarge as exc:
        raise TriggerWrong("payload_too_large", str(exc)) from None
