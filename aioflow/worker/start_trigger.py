"""The trigger of a task that waits straight from its start, made where it is hosted."""

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
    """A task was to wait straight from its start, and does not say for what."""


@dataclass
class Skipping(Trigger[None]):
    """Skips a task that is not to wait at all."""

    message: str

    async def run(self) -> AsyncIterator[TriggerEvent[None]]:
        """Say so."""
        yield TaskSkippedEvent(self.message)


async def start_trigger(
    run: KnownRun,
    node: Node,
    start: StartTask,
    fetch: FetchPage,
    results: Path,
    find_class: Callable[[str], Any],
) -> tuple[type[Trigger[Any]], Steps[bytes]]:
    """Return the trigger class of a task, and what packs its fields. Runs user code.

    An unmapped task is made an instance of, so that ``__init__`` may say what it waits for; of
    a mapped one ``__init__`` is skipped, and the class says what its item does not.

    Raises:
        BadArgument: If an argument cannot be had.
        NoStartTrigger: If the task does not say what it waits for.
        Unserializable: If an argument cannot travel.
    """
    pages = await fetch_ahead(run, node, start, fetch)
    read = partial(pages, start.run_no)
    resolved = Arguments(run, node, start, read, results)
    try:
        arguments = resolved.all()
    except Skip as exc:  # of a function given to map
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
        fields = resolved.rendered(fields)  # they stand in the file; those of __init__ need not
    kwargs = {**fields, **own}
    return found, _fields(kwargs, found)


def _fields(named: dict[str, Any], cls: type[Trigger[Any]]) -> Steps[bytes]:
    try:
        return (yield from codec.fields_in_steps(named, cls.__name__, FIELDS_LIMIT))
    except ValueTooLarge as exc:
        raise TriggerWrong("payload_too_large", str(exc)) from None
