"""Creation of the triggers that the daemon assigns: finds and instantiates their classes.

If a task starts deferred, its trigger is created here, too, from the task's arguments.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from aioflow.author import codec
from aioflow.author.codec import Steps
from aioflow.author.deferral import TRIGGER_KWARGS, Skip, StartTriggerArgs, TaskSkippedEvent
from aioflow.author.node import Node
from aioflow.author.schedule import TimetableTrigger, is_timetable_class
from aioflow.author.trigger import FIELDS_LIMIT, Trigger, TriggerEvent, class_path, construct
from aioflow.errors import ValueTooLarge
from aioflow.protocol.commands import StartTask, StartTrigger
from aioflow.worker.code.loader import CodeCache, CodeMissing
from aioflow.worker.failures import failure_of, print_traceback
from aioflow.worker.query.client import FetchPage, HostedFiles, fetch_page, fetch_pages_ahead
from aioflow.worker.shared_host import ReportBuffer
from aioflow.worker.task.arguments import Arguments, KnownRun, Runs
from aioflow.worker.task_supervisor import Slices
from aioflow.worker.trigger.instance import TriggerWrong

__all__ = (
    "CONSTRUCT",
    "LOAD",
    "MAKE_SECONDS",
    "NoStartTrigger",
    "TriggerMaker",
    "start_trigger",
)


class NoStartTrigger(Exception):
    """Raised if a task that should start deferred defines no trigger."""


@dataclass
class Skipping(Trigger[None]):
    """A trigger that skips a task, because its arguments raised ``Skip`` before it could wait."""

    message: str

    async def run(self) -> AsyncIterator[TriggerEvent[None]]:
        """Yield the skip event."""
        yield TaskSkippedEvent(self.message)


async def start_trigger(
    run: KnownRun,
    node: Node,
    start: StartTask,
    fetch: FetchPage,
    results: HostedFiles,
    find_class: Callable[[str], Any],
) -> tuple[type[Trigger[Any]], Steps[bytes]]:
    """Return the trigger class of a task and its encoded fields. Runs user code.

    An unmapped task is instantiated, because its ``__init__`` may define the trigger. A mapped task
    is not instantiated: its class defines the trigger, and its item provides the remaining fields.

    Raises:
        BadArgument: If an argument is unavailable.
        NoStartTrigger: If the task does not define its trigger.
        Unserializable: If an argument cannot be encoded.
    """
    pages = await fetch_pages_ahead(run, node, start, fetch, results)
    read = partial(pages, start.run_no)
    resolved = Arguments(run, node, start, read, results)
    try:
        arguments = resolved.all()
    except Skip as exc:  # raised by a function given to map
        why = failure_of(exc).message
        return Skipping, _encoded_fields({"message": why}, Skipping)
    own = arguments.pop(TRIGGER_KWARGS, None) or {}
    owner: Any = node.make_operator(arguments) if node.instance is not None else node.operator
    said = getattr(owner, "start_trigger_args", None)
    if not isinstance(said, StartTriggerArgs):
        raise NoStartTrigger(f"{node.task_id!r} has no start_trigger_args")
    cls = said.trigger_cls
    found = find_class(said.class_path) if isinstance(cls, str) else cls
    fields = said.trigger_kwargs or {}
    if isinstance(owner, type) or "start_trigger_args" not in vars(owner):
        fields = resolved.rendered(fields)  # fields set by ``__init__`` are not templates
    kwargs = {**fields, **own}
    return found, _encoded_fields(kwargs, found)


def _encoded_fields(named: dict[str, Any], cls: type[Trigger[Any]]) -> Steps[bytes]:
    try:
        return (yield from codec.fields_in_steps(named, cls.__name__, FIELDS_LIMIT))
    except ValueTooLarge as exc:
        raise TriggerWrong("payload_too_large", str(exc)) from None


LOAD, CONSTRUCT = "trigger_load", "trigger_construct"
"""The stages of creating a trigger, as named in failures."""

MAKE_SECONDS = 60.0
"""Timeout for resolving a task's own arguments.

It does not apply to loading and constructing. Code that blocks there blocks the event loop, and the
watchdog detects that.
"""


class TriggerMaker:
    """Creates triggers from the newest code if it accepts the fields, else from the run's version.

    Args:
        in_use: Returns the versions of the triggers that are running now.
        slices: Encodes values in slices on the event loop.
    """

    def __init__(
        self,
        reports: ReportBuffer,
        code_cache: CodeCache,
        results: HostedFiles,
        in_use: Callable[[], Collection[str]],
        slices: Slices,
    ) -> None:
        self._reports = reports
        self._results = results
        self._in_use = in_use
        self._slices = slices
        self._code_cache = code_cache
        self._classes: dict[tuple[str, str], type[Trigger[Any]]] = {}
        self.runs = Runs(self._code_cache)

    def known(self, command: StartTrigger) -> type[Trigger[Any]] | None:
        """Return the trigger's class if it is loaded and the command contains all its fields.

        Return ``None`` otherwise.
        """
        if command.is_made_there:
            return None
        return self._classes.get((command.newest or command.version, command.class_path))

    async def make(self, command: StartTrigger, enter: Callable[[str], None]) -> Trigger[Any]:
        """Create the trigger of a command. Runs user code, so it may raise anything.

        Args:
            command: The start command.
            enter: Called with the name of each stage when it begins.
        """
        enter(LOAD)
        own: type[Trigger[Any]] | None = None
        path, kwargs = command.class_path, command.kwargs
        if command.start is not None and command.is_made_there:
            own, kwargs = await self._of_start(command, command.start, enter)
            path = class_path(own)
        if command.newest and (made := self._of_newest(command, path, kwargs)) is not None:
            return made
        if own is None:
            own = self._class(command.version, path)
        enter(CONSTRUCT)
        return self._constructed(command.version, own, kwargs)

    def _constructed(self, version: str, cls: type[Trigger[Any]], kwargs: bytes) -> Trigger[Any]:
        made = construct(cls, kwargs)
        if isinstance(
            made, TimetableTrigger
        ):  # of a timetable, whose code is loaded from the version too
            made.load(lambda path: self._timetable(version, path))
        return made

    def _timetable(self, version: str, path: str) -> type:
        found = self._find(version, path)
        if not is_timetable_class(found):
            raise TriggerWrong(LOAD, f"{path} is not a timetable")
        return cast("type", found)

    def _of_newest(self, command: StartTrigger, path: str, kwargs: bytes) -> Trigger[Any] | None:
        try:
            return self._constructed(command.newest, self._class(command.newest, path), kwargs)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            print(  # noqa: T201 - into the log of the task
                f"aioflow: the newest code cannot host {path} #{command.trigger_no}; "
                "it continues in the version of its run"
            )
            print_traceback(exc)
            return None

    async def _of_start(
        self, command: StartTrigger, start: StartTask, enter: Callable[[str], None]
    ) -> tuple[type[Trigger[Any]], bytes]:
        run = self.runs.of(start)
        node = run.dag.nodes[start.task_index]
        enter(CONSTRUCT)

        def find(path: str) -> type[Trigger[Any]]:
            return self._class(command.version, path)

        fetch = partial(fetch_page, self._reports)
        async with asyncio.timeout(MAKE_SECONDS):
            cls, fields = await start_trigger(run, node, start, fetch, self._results, find)
            return cls, await self._slices.run(fields)

    def _class(self, version: str, path: str) -> type[Trigger[Any]]:
        known = self._classes.get((version, path))
        if known is None:
            known = self._classes[version, path] = _trigger_class(self._find(version, path), path)
            self._unload_unused_versions()
        return known

    def _find(self, version: str, path: str) -> Any:
        try:
            return self._code_cache.version(version).find_class(path)
        except CodeMissing:
            # If the trigger's class is in an installed package, it does not need the version.
            module, _, name = path.partition(":")
            try:
                return getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError):
                pass  # a DAG file defines the class; its name may equal that of a package
            raise
        except (ImportError, AttributeError) as exc:
            raise TriggerWrong(LOAD, f"{path} cannot be loaded: {exc}") from exc

    def _unload_unused_versions(self) -> None:
        gone = self._code_cache.unload_unused(self._in_use)
        if gone:
            self._classes = {k: c for k, c in self._classes.items() if k[0] not in gone}


def _trigger_class(found: Any, path: str) -> type[Trigger[Any]]:
    """Return the trigger class to run.

    For a timetable, this is the trigger that yields its fire times.
    """
    if isinstance(found, type) and issubclass(found, Trigger):
        return found
    if is_timetable_class(found):
        return TimetableTrigger
    raise TriggerWrong(LOAD, f"{path} is not a Trigger class")
