"""Hosts watches: one coroutine each, for all the triggers that share it.

What a shared trigger costs is a ``Wait``, its place among the wanted, and what the watch itself
keeps of what is wanted.

A watch that fails is started again, after a delay that grows. Where it fails again soon, its
triggers are divided in halves, each with a watch of its own, until those of one wanted thing are
alone: only these are charged. So one trigger that no watch survives costs the others a delay.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterable
from datetime import datetime
from itertools import islice
from typing import Any, Protocol, TypeAlias

from aioflow.author.trigger import TriggerEvent
from aioflow.author.watch import Share, Watch, show_wanted
from aioflow.model.timestamps import Timestamp, to_timestamp
from aioflow.worker.crash_recorder import BlackBox, signed
from aioflow.worker.failures import print_traceback
from aioflow.worker.task_supervisor import Hosted, Nursery, watching
from aioflow.worker.trigger_events import TriggerWrong, check, events_of
from aioflow.worker.trigger_instance import Wait

__all__ = ("BUDGET_SECONDS", "Finder", "HostedWatch", "Watches")

BUDGET_SECONDS = 0.01
"""How long a watch may hand out what it found before the loop comes round."""

_EMPTY = "finished"
_FIRST_DELAY_SECONDS = 0.05
_LONGEST_DELAY_SECONDS = 5.0
_SOUND_SECONDS = 60.0
"""A watch that ran for this long has not failed because of how it was started."""
_SPREAD = 0.618
_KNOWN = object()
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
        watch: Made when it begins; ``None`` before that.
        unknown: What is wanted and the watch does not know yet, while it starts again.
        failures: How often it has failed in a row, before this one.
        delay_seconds: Until it begins.
        began: When, in seconds on the loop's clock.
    """

    __slots__ = (
        "_signer",
        "at",
        "began",
        "class_path",
        "count",
        "delay_seconds",
        "failures",
        "is_telling",
        "name",
        "unknown",
        "wants",
        "watch",
    )

    def __init__(self, at: _Key, first: Wait) -> None:
        super().__init__()
        self.watch: Watch[Any, Any] | None = None
        self.at = at
        self.name = at[0].__name__
        self.wants: dict[Hashable, _Crowd] = {}
        self.unknown: dict[Hashable, None] = {}
        self.count = 0
        self.class_path = first.kind.class_path
        self.is_telling = False
        self.failures = 0
        self.delay_seconds = 0.0
        self.began = math.inf
        self._signer = first

    def make(self) -> Watch[Any, Any]:
        """Make the watch itself. Runs user code, so it may raise anything."""
        self.watch = self.at[0](*self.at[1])
        show_wanted(self.watch, self.wants.keys())
        return self.watch

    @property
    def signer(self) -> Wait:
        """One of those it looks for; the last of them, if there is none any more."""
        if self._signer.watch is not self and self.wants:
            # Not at each leaving: finding the first of many in a dict that is being emptied
            # from its beginning takes longer and longer.
            self._signer = self.first(next(iter(self.wants)))
        return self._signer

    @property
    def number(self) -> int:
        """See ``Hosted``: what stands still here, or crashes, is found by one of its triggers."""
        return self.signer.number

    @property
    def run_no(self) -> int:
        """The run in whose name it asks."""
        return self.signer.run_no

    def first(self, wanted: Hashable) -> Wait:
        """Return one of those that want this."""
        crowd = self.wants[wanted]
        return crowd if isinstance(crowd, Wait) else next(iter(crowd))

    def add(self, wait: Wait) -> bool:
        """Take one in; whether it is the first that wants this.

        Raises:
            TypeError: If what it wants cannot be a key; then it is not taken in.
        """
        crowd = self.wants.get(wait.wanted)
        wait.watch = self
        self.count += 1
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

    def next_check(self, box: BlackBox) -> Timestamp | None:
        """Return when it looks next, if that is known. Runs user code, and does not raise."""
        return None if self.watch is None else self._instant(box, self.watch.next_check)

    def last_check(self, box: BlackBox) -> Timestamp | None:
        """Return when it looked last, if that is known. Runs user code, and does not raise."""
        return None if self.watch is None else self._instant(box, self.watch.last_check)

    def _instant(self, box: BlackBox, check: Callable[[], datetime | None]) -> Timestamp | None:
        try:
            with signed(box, self.number):
                moment = check()
            return None if moment is None else to_timestamp(moment)
        except BaseException:  # noqa: BLE001 - user code may raise anything, and it is only shown
            return None

    def take_all(self) -> list[Wait]:
        """Let all go."""
        return [wait for wanted in list(self.wants) for wait in self.take(wanted)]


Told: TypeAlias = tuple[tuple[str, int, Timestamp | None], ...]


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
        self._of_class: dict[str, dict[HostedWatch, None]] = {}
        self._restarts = 0

    def join(self, wait: Wait, share: Share) -> None:
        """Have a trigger wait in its watch.

        Runs user code, so it may raise anything; then the trigger waits nowhere.
        """
        at = (share.watch, share.of)
        hosted = self._open.get(at)
        if hosted is None:
            hosted = self._begin(at, wait)
        try:
            if hosted.add(wait):
                self._joined(hosted, wait.wanted)
        except BaseException:
            if wait.watch is not None:
                hosted.discard(wait)
            self._close_if_empty(hosted)
            raise

    def leave(self, wait: Wait) -> None:
        """A trigger waits no more."""
        hosted: HostedWatch | None = wait.watch
        if hosted is None:
            return
        if hosted.discard(wait):
            self._left(hosted, wait.wanted)
        self._close_if_empty(hosted)

    def told(self, box: BlackBox) -> Told:
        """Return how many there are by class path, and when the first looks next; see ``Pong``.

        Of many of a class not all are asked: they look at much the same time.
        """
        return tuple(
            (class_path, len(of_class), _first(islice(of_class, _ASKED), box))
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
        hosted = HostedWatch(at, first)
        hosted.make()
        self._enter(hosted)
        self._nursery.start(hosted, self._run(hosted))
        return hosted

    def _enter(self, hosted: HostedWatch) -> None:
        """Count it, and have it taken by who comes, unless there is another one for that."""
        self._open.setdefault(hosted.at, hosted)
        self._of_class.setdefault(hosted.class_path, {})[hosted] = None

    def _close_if_empty(self, hosted: HostedWatch) -> None:
        if not hosted.wants and not hosted.is_telling:
            self._forget(hosted)
            self._nursery.cancel(hosted, _EMPTY)

    def _forget(self, hosted: HostedWatch) -> None:
        if self._open.get(hosted.at) is hosted:
            del self._open[hosted.at]
        of_class = self._of_class.get(hosted.class_path, {})
        of_class.pop(hosted, None)
        if not of_class:
            self._of_class.pop(hosted.class_path, None)

    def _joined(self, hosted: HostedWatch, wanted: Hashable) -> None:
        """Call ``joined``; a watch that has not begun learns of all wants when it does.

        Runs user code, so it may raise anything.
        """
        if hosted.watch is None:
            return
        token = watching.set(hosted)
        try:
            hosted.watch.joined(wanted)
        finally:
            watching.reset(token)

    def _left(self, hosted: HostedWatch, wanted: Hashable) -> None:
        """Tell a watch that this is wanted no more, unless it never knew that it was."""
        if hosted.watch is None:
            return
        if hosted.unknown and hosted.unknown.pop(wanted, _KNOWN) is not _KNOWN:
            return
        try:
            hosted.watch.left(wanted)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            print_traceback(exc)  # the one who leaves is not to suffer, nor are the others

    # ── one watch ───────────────────────────────────────────────────────────────────────

    async def _run(self, hosted: HostedWatch) -> None:
        problem = await self._problem(hosted)
        self._forget(hosted)
        if len(hosted.wants) > 1:
            print_traceback(problem)
            await self._start_again(hosted)
        elif hosted.wants:
            [alone] = hosted.wants
            crowd = hosted.take(alone)
            self._left(hosted, alone)
            await self._each(hosted, crowd, self._finder.failed(problem))
        elif not isinstance(problem, TriggerWrong | asyncio.CancelledError):
            print_traceback(problem)  # what it raised while it let go

    async def _problem(self, hosted: HostedWatch) -> BaseException:
        """Look until nothing is wanted any more, or it fails; return what has ended it."""
        try:
            if hosted.delay_seconds:
                await asyncio.sleep(hosted.delay_seconds)
            if hosted.watch is None:
                hosted.unknown = dict.fromkeys(hosted.wants)
                hosted.make()
                await self._tell_what_is_wanted(hosted)
            hosted.began = self._loop.time()
            await self._look(hosted)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            return exc
        return TriggerWrong(
            "trigger_ended", f"{hosted.name}.run ended with triggers that wait in it"
        )

    async def _tell_what_is_wanted(self, hosted: HostedWatch) -> None:
        """Tell a watch that begins again; what it does not take fails those who want that."""
        until = self._loop.time() + BUDGET_SECONDS
        for wanted in list(hosted.unknown):
            if wanted not in hosted.unknown:
                continue  # given up meanwhile
            del hosted.unknown[wanted]
            try:
                self._joined(hosted, wanted)
            except BaseException as exc:  # noqa: BLE001 - user code may raise anything
                await self._each(hosted, hosted.take(wanted), self._finder.failed(exc))
            if self._loop.time() > until:
                await asyncio.sleep(0)
                until = self._loop.time() + BUDGET_SECONDS

    async def _start_again(self, hosted: HostedWatch) -> None:
        """Have those it looked for looked for again, in halves if it has failed before."""
        is_sound = self._loop.time() - hosted.began > _SOUND_SECONDS
        failures = 1 if is_sound else hosted.failures + 1
        wants = list(hosted.wants)
        middle = len(wants) // 2 if failures > 1 else len(wants)
        hosted.is_telling = True
        for part in (wants[:middle], wants[middle:]):
            left = [wanted for wanted in part if wanted in hosted.wants]
            if left:
                await self._move(hosted, left, failures)

    async def _move(self, hosted: HostedWatch, part: Iterable[Hashable], failures: int) -> None:
        """Begin another watch, some time later, for a part of what this one looked for."""
        other = HostedWatch(hosted.at, hosted.first(next(iter(part))))
        other.failures = failures
        other.delay_seconds = self._delay_seconds(failures)
        other.is_telling = True
        self._enter(other)
        until = self._loop.time() + BUDGET_SECONDS
        for wanted in part:
            crowd = hosted.take(wanted)
            if not crowd:
                continue  # given up meanwhile
            self._left(hosted, wanted)
            for wait in crowd:
                other.add(wait)
            if self._loop.time() > until:
                await asyncio.sleep(0)
                until = self._loop.time() + BUDGET_SECONDS
        other.is_telling = False
        if other.wants:
            self._nursery.start(other, self._run(other))
        else:
            self._forget(other)

    def _delay_seconds(self, failures: int) -> float:
        """Return how long a watch rests; not all of them equally long, as many may have failed."""
        self._restarts += 1
        spread = 1 + self._restarts * _SPREAD % 1
        longest = _FIRST_DELAY_SECONDS * float(1 << min(failures - 1, 20))
        return spread * min(longest, _LONGEST_DELAY_SECONDS) / 2

    async def _look(self, hosted: HostedWatch) -> None:
        assert hosted.watch is not None  # noqa: S101 - it has been made
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
            self._left(hosted, wanted)
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


def _first(watches: Iterable[HostedWatch], box: BlackBox) -> Timestamp | None:
    """Return when the first of these looks next, as far as they know."""
    known = (watch.next_check(box) for watch in watches)
    return min((at for at in known if at is not None), default=None)
