"""Hosts watches: one coroutine each, for all the triggers that share it.

What a shared trigger costs is a ``Wait``, its place among the wanted, and what the watch itself
keeps of what is wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterable
from itertools import islice
from typing import Any, Protocol, TypeAlias

from aioflow.author.trigger import TriggerEvent
from aioflow.author.watch import Share, Watch, show_wanted
from aioflow.host.blackbox import BlackBox, signed
from aioflow.host.failures import print_traceback
from aioflow.host.hosted import Wait
from aioflow.host.nursery import Hosted, Nursery, watching
from aioflow.host.trigger_events import TriggerWrong, check, events_of
from aioflow.instants import as_instant
from aioflow.model import Instant

__all__ = ("BUDGET_SECONDS", "Finder", "HostedWatch", "Watches")

BUDGET_SECONDS = 0.01
"""How long a watch may hand out what it found before the loop comes round."""

_EMPTY = "finished"
_CLASSES_TOLD = 50
_ASKED = 20

_Key: TypeAlias = tuple[type[Watch[Any, Any]], tuple[Hashable, ...]]
_Crowd: TypeAlias = Wait | dict[Wait, None]


class HostedWatch(Hosted):
    """A watch in the nursery.

    Attributes:
        name: What it is called in failures.
        wants: Who wants what. One trigger alone stands for itself.
        count: How many want something.
        class_path: Of the trigger that wanted something first.
        is_telling: It hands out what it found, and is not to be disturbed.
    """

    __slots__ = ("_signer", "at", "class_path", "count", "is_telling", "name", "wants", "watch")

    def __init__(self, watch: Watch[Any, Any], at: _Key, first: Wait) -> None:
        super().__init__()
        self.watch = watch
        self.at = at
        self.name = type(watch).__name__
        self.wants: dict[Hashable, _Crowd] = {}
        self.count = 0
        self.class_path = first.kind.class_path
        self.is_telling = False
        self._signer = first

    @property
    def signer(self) -> Wait:
        """One of those it looks for; the last of them, if there is none any more."""
        if self._signer.watch is not self and self.wants:
            # Not at each leaving: finding the first of many in a dict that is being emptied
            # from its beginning takes longer and longer.
            first = next(iter(self.wants.values()))
            self._signer = first if isinstance(first, Wait) else next(iter(first))
        return self._signer

    @property
    def number(self) -> int:
        """See ``Hosted``: what stands still here, or crashes, is found by one of its triggers."""
        return self.signer.number

    @property
    def run_no(self) -> int:
        """The run in whose name it asks."""
        return self.signer.run_no

    def add(self, wait: Wait) -> bool:
        """Take one in; whether it is the first that wants this."""
        wait.watch = self
        self.count += 1
        crowd = self.wants.get(wait.wanted)
        if crowd is None:
            self.wants[wait.wanted] = wait
            return True
        if isinstance(crowd, Wait):
            crowd = self.wants[wait.wanted] = {crowd: None}
        crowd[wait] = None
        return False

    def discard(self, wait: Wait) -> bool:
        """Let one go; whether it was the last that wanted this."""
        wait.watch = None
        self.count -= 1
        crowd = self.wants[wait.wanted]
        if isinstance(crowd, dict):
            del crowd[wait]
            if crowd:
                return False
        del self.wants[wait.wanted]
        return True

    def take(self, wanted: Hashable) -> Collection[Wait]:
        """Let all go who want this."""
        crowd = self.wants.pop(wanted, ())
        waits = (crowd,) if isinstance(crowd, Wait) else crowd
        for wait in waits:
            wait.watch = None
        self.count -= len(waits)
        return waits

    def next_check(self, box: BlackBox) -> Instant | None:
        """Return when it looks next, if that is known. Runs user code, and does not raise."""
        try:
            with signed(box, self.number):
                moment = self.watch.next_check()
            return None if moment is None else as_instant(moment)
        except BaseException:  # noqa: BLE001 - user code may raise anything, and it is only shown
            return None

    def take_all(self) -> list[Wait]:
        """Let all go."""
        return [wait for wanted in list(self.wants) for wait in self.take(wanted)]


Told: TypeAlias = tuple[tuple[str, int, Instant | None], ...]


class Finder(Protocol):
    """Whoever hosts the triggers of the watches. Neither of these raises."""

    async def found(self, event: TriggerEvent[object], name: str) -> Callable[[Wait], None]:
        """Return what tells one trigger of an event; called once for each that wanted it."""

    def failed(self, problem: BaseException) -> Callable[[Wait], None]:
        """Return what fails one trigger."""


class Watches:
    """All watches of a host.

    Args:
        nursery: Where they run.
        finder: Told of what they find.
    """

    def __init__(self, nursery: Nursery[Any], finder: Finder) -> None:
        self._nursery = nursery
        self._finder = finder
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Key, HostedWatch] = {}
        self._of_class: dict[str, dict[_Key, HostedWatch]] = {}

    def join(self, wait: Wait, share: Share) -> None:
        """Have a trigger wait in its watch.

        Runs user code, so it may raise anything; then the trigger waits nowhere.
        """
        at = (share.watch, share.of)
        hosted = self._open.get(at)
        if hosted is None:
            hosted = self._begin(at, wait)
        if hosted.add(wait):
            token = watching.set(hosted)
            try:
                hosted.watch.joined(wait.wanted)
            except BaseException:
                hosted.discard(wait)
                self._close_if_empty(hosted)
                raise
            finally:
                watching.reset(token)

    def leave(self, wait: Wait) -> None:
        """A trigger waits no more."""
        hosted: HostedWatch | None = wait.watch
        if hosted is None:
            return
        if hosted.discard(wait):
            try:
                hosted.watch.left(wait.wanted)
            except BaseException as exc:  # noqa: BLE001 - user code may raise anything
                print_traceback(exc)  # the one who leaves is not to suffer, nor are the others
        self._close_if_empty(hosted)

    def told(self, box: BlackBox) -> Told:
        """Return how many there are by class path, and when the first looks next; see ``Pong``.

        Of many of a class not all are asked: they look at much the same time.
        """
        return tuple(
            (class_path, len(of_class), _first(islice(of_class.values(), _ASKED), box))
            for class_path, of_class in islice(self._of_class.items(), _CLASSES_TOLD)
        )

    def gone(self, hosted: HostedWatch, problem: BaseException) -> None:
        """A watch has ended; whoever it still had fails."""
        self._forget(hosted)
        fail = self._finder.failed(problem)
        for wait in hosted.take_all():
            fail(wait)

    def _begin(self, at: _Key, first: Wait) -> HostedWatch:
        named: Any = at[0]
        if not (isinstance(named, type) and issubclass(named, Watch)):
            raise TriggerWrong("trigger", f"share() names {named!r}, which is no Watch class")
        watch = named(*at[1])
        hosted = self._open[at] = HostedWatch(watch, at, first)
        self._of_class.setdefault(hosted.class_path, {})[at] = hosted
        show_wanted(watch, hosted.wants.keys())
        self._nursery.start(hosted, self._run(hosted))
        return hosted

    def _close_if_empty(self, hosted: HostedWatch) -> None:
        if not hosted.wants and not hosted.is_telling:
            self._forget(hosted)
            self._nursery.cancel(hosted, _EMPTY)

    def _forget(self, hosted: HostedWatch) -> None:
        if self._open.get(hosted.at) is hosted:
            del self._open[hosted.at]
            of_class = self._of_class[hosted.class_path]
            del of_class[hosted.at]
            if not of_class:
                del self._of_class[hosted.class_path]

    # ── one watch ───────────────────────────────────────────────────────────────────────

    async def _run(self, hosted: HostedWatch) -> None:
        try:
            await self._look(hosted)
            problem: BaseException = TriggerWrong(
                "trigger_ended", f"{hosted.name}.run ended with triggers that wait in it"
            )
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            problem = exc
        self._forget(hosted)
        if hosted.wants:
            await self._each(hosted, hosted.take_all(), self._finder.failed(problem))
        elif not isinstance(problem, TriggerWrong | asyncio.CancelledError):
            print_traceback(problem)  # what it raised while it let go

    async def _look(self, hosted: HostedWatch) -> None:
        events = await events_of(hosted.watch.run(), hosted.name)
        until = self._loop.time() + BUDGET_SECONDS
        try:
            async for item in events:
                await self._tell(hosted, item)
                if not hosted.wants:
                    break
                if self._loop.time() > until:
                    await asyncio.sleep(0)
                    until = self._loop.time() + BUDGET_SECONDS
        finally:
            self._forget(hosted)  # who comes while it lets go needs another one
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _tell(self, hosted: HostedWatch, item: object) -> None:
        """Tell those who wanted this what has come of it."""
        if not (isinstance(item, tuple) and len(item) == 2):
            raise TriggerWrong(
                "trigger_yield",
                f"{hosted.name} yielded a {type(item).__name__}; "
                "it must be what is wanted, and its event",
            )
        wanted, event = item
        crowd = hosted.take(wanted)
        if not crowd:
            return
        hosted.is_telling = True
        try:
            try:
                hosted.watch.left(wanted)
            finally:
                await self._each(hosted, crowd, await self._telling(event, hosted.name))
        finally:
            hosted.is_telling = False

    async def _telling(self, event: object, name: str) -> Callable[[Wait], None]:
        if isinstance(event, Exception):
            return self._finder.failed(event)
        try:
            return await self._finder.found(check(event, name), name)
        except BaseException as exc:  # noqa: BLE001 - an event that cannot travel
            return self._finder.failed(exc)

    async def _each(
        self, hosted: HostedWatch, waits: Iterable[Wait], act: Callable[[Wait], None]
    ) -> None:
        """Do it for all, whatever happens; the loop comes round in between."""
        rest = iter(waits)
        until = self._loop.time() + BUDGET_SECONDS
        try:
            for wait in rest:
                act(wait)
                if self._loop.time() > until:
                    await asyncio.sleep(0)
                    until = self._loop.time() + BUDGET_SECONDS
        finally:
            for wait in rest:
                act(wait)


def _first(watches: Iterable[HostedWatch], box: BlackBox) -> Instant | None:
    """Return when the first of these looks next, as far as they know."""
    known = (watch.next_check(box) for watch in watches)
    return min((at for at in known if at is not None), default=None)
