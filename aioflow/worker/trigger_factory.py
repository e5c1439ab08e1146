"""Creates the triggers that the daemon assigns: finds their class and constructs them."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, cast

from aioflow.author.timetables import TimetableTrigger, is_timetable_class
from aioflow.author.trigger import Trigger, class_path, construct
from aioflow.protocol.commands import StartTask, StartTrigger
from aioflow.worker.code import CodeCache
from aioflow.worker.cooperative import Slices
from aioflow.worker.failures import print_traceback
from aioflow.worker.loader import CodeMissing
from aioflow.worker.pages import fetch_page
from aioflow.worker.runs import Runs
from aioflow.worker.shared_host import ReportBuffer
from aioflow.worker.start_trigger import start_trigger
from aioflow.worker.trigger_events import TriggerWrong

__all__ = ("CONSTRUCT", "LOAD", "MAKE_SECONDS", "TriggerMaker")

LOAD, CONSTRUCT = "trigger_load", "trigger_construct"
"""The stages of creating a trigger, as named in failures."""

MAKE_SECONDS = 60.0
"""Timeout for resolving a task's own arguments. Loading and constructing do not wait: code that
blocks there blocks the event loop, and is detected by the watchdog."""


class TriggerMaker:
    """Creates triggers from the newest code that accepts their fields, else their run's version.

    Args:
        in_use: Returns the versions of the triggers running now.
        slices: Encode values on the event loop.
    """

    def __init__(
        self,
        reports: ReportBuffer,
        code_cache: CodeCache,
        results: Path,
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
        """Return the trigger's class if it is loaded and the command contains all its fields."""
        if command.is_made_there:
            return None
        return self._classes.get((command.newest or command.version, command.class_path))

    async def make(self, command: StartTrigger, enter: Callable[[str], None]) -> Trigger[Any]:
        """Create the trigger of a command. Runs user code, so it may raise anything.

        Args:
            command: The start command.
            enter: Called with each stage that begins.
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
            raise TriggerWrong(LOAD, f"{path} is no timetable")
        return cast("type", found)

    def _of_newest(self, command: StartTrigger, path: str, kwargs: bytes) -> Trigger[Any] | None:
        try:
            return self._constructed(command.newest, self._class(command.newest, path), kwargs)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            print(  # noqa: T201 - into the log of the task
                f"aioflow: the newest code cannot host {path} #{command.trigger_no}; "
                "it goes on as its run's own version has it"
            )
            print_traceback(exc)
            return None

    async def _of_start(
        self, command: StartTrigger, start: StartTask, enter: Callable[[str], None]
    ) -> tuple[type[Trigger[Any]], bytes]:
        run = self.runs.of(start)
        node = run.dag.nodes[start.position]
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
            self._put_back_versions()
        return known

    def _find(self, version: str, path: str) -> Any:
        try:
            return self._code_cache.version(version).find_class(path)
        except CodeMissing:
            # A trigger of an installed package does not need the version.
            module, _, name = path.partition(":")
            try:
                return getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError):
                pass  # it is defined in a DAG file, whose name may equal a package's
            raise
        except (ImportError, AttributeError) as exc:
            raise TriggerWrong(LOAD, f"{path} cannot be loaded: {exc}") from exc

    def _put_back_versions(self) -> None:
        gone = self._code_cache.put_back(self._in_use)
        if gone:
            self._classes = {k: c for k, c in self._classes.items() if k[0] not in gone}


def _trigger_class(found: Any, path: str) -> type[Trigger[Any]]:
    """Return the trigger class to run: for a timetable, the trigger that yields its fire times."""
    if isinstance(found, type) and issubclass(found, Trigger):
        return found
    if is_timetable_class(found):
        return TimetableTrigger
    raise TriggerWrong(LOAD, f"{path} is not a Trigger class")
