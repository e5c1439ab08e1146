"""Execution of watches. A watch is one coroutine for all the triggers that share it.

A shared trigger takes only the memory of a ``Wait``, its entry in ``wants``, and what the watch
itself stores for the wanted key.

A watch that fails is restarted after a growing delay. If it fails again soon, its triggers are
split into halves, each with a separate watch. This is repeated until the triggers of one wanted key
are alone, and only these fail. So a trigger that makes every watch fail only delays the others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterable
from datetime import datetime
from itertools import islice
from typing import Any, Protocol, TypeAlias

from aioflow.author.trigger import Share, TriggerEvent, Watch, set_wanted
from aioflow.model.timestamps import Timestamp, to_timestamp
from aioflow.worker.crash_recorder import CrashRecorder, signed
from aioflow.worker.failures import print_traceback
from aioflow.worker.task_supervisor import TaskSupervisor, UserCoroutine, watching
from aioflow.worker.trigger.instance import TriggerWrong, Wait, checked_event, events_of

__all__ = (
    "BUDGET_SECONDS",
    "Finder",
    "HostedWatch",
    "Watches",
)

BUDGET_SECONDS = 0.01
"""Maximum seconds for which a watch delivers events before it yields to the event loop."""

_EMPTY = "finished"
_FIRST_DELAY_SECONDS = 0.05
_LONGEST_DELAY_SECONDS = 5.0
_SOUND_SECONDS = 60.0
"""A failure of a watch that has run for this long counts as the first failure in a row."""
_SPREAD = 0.618
_KNOWN = object()
_CLASSES_REPORTED = 50
_ASKED = 20

_Key: TypeAlias = tuple[type[Watch[Any, Any]], tuple[Hashable, ...]]
_Waits: TypeAlias = Wait | dict[Wait, None]


class HostedWatch(UserCoroutine):
    """A supervised watch.

    Attributes:
        name: Its name in failures.
        wants: The triggers of each wanted key. A single trigger is stored without a dict.
        count: Number of triggers.
        class_path: Class path of its first trigger.
        is_delivering: Whether it is delivering events, and must not be cancelled.
        watch: The instance, created when it begins; ``None`` before that.
        unknown: Wanted keys that have not been passed to a restarting watch yet.
        failures: Number of failures in a row before the current start.
        delay_seconds: Delay before it begins.
        began: When it began, in seconds on the loop's clock.
    """

    __slots__ = (
        "_signer",
        "at",
        "began",
        "class_path",
        "count",
        "delay_seconds",
        "failures",
        "is_delivering",
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
        self.wants: dict[Hashable, _Waits] = {}
        self.unknown: dict[Hashable, None] = {}
        self.count = 0
        self.class_path = first.kind.class_path
        self.is_delivering = False
        self.failures = 0
        self.delay_seconds = 0.0
        self.began = math.inf
        self._signer = first

    def make(self) -> Watch[Any, Any]:
        """Create the watch. Runs user code, so it may raise anything."""
        self.watch = self.at[0](*self.at[1])
        set_wanted(self.watch, self.wants.keys())
        return self.watch

    @property
    def signer(self) -> Wait:
        """The trigger to which the steps are attributed. If no trigger is left, the last one."""
        if self._signer.watch is not self and self.wants:
            # Do not do this in every `discard`: finding the first key of a dict gets slower and
            # slower if the dict is emptied from its beginning.
            self._signer = self.first(next(iter(self.wants)))
        return self._signer

    @property
    def number(self) -> int:
        """Number of a trigger of the watch; a crash or a blocked loop is attributed to it."""
        return self.signer.number

    @property
    def run_no(self) -> int:
        """The run on whose behalf the watch queries."""
        return self.signer.run_no

    def first(self, wanted: Hashable) -> Wait:
        """Return one of the triggers of a wanted key."""
        waits = self.wants[wanted]
        return waits if isinstance(waits, Wait) else next(iter(waits))

    def add(self, wait: Wait) -> bool:
        """Add a trigger. Return whether its wanted key is new.

        Raises:
            TypeError: If the wanted key is not hashable. The trigger is not added then.
        """
        waits = self.wants.get(wait.wanted)
        wait.watch = self
        self.count += 1
        if waits is None:
            self.wants[wait.wanted] = wait
            return True
        if isinstance(waits, Wait):
            waits = self.wants[wait.wanted] = {waits: None}
        waits[wait] = None
        return False

    def discard(self, wait: Wait) -> bool:
        """Remove a trigger. Return whether it was the last trigger of its wanted key."""
        wait.watch = None
        self.count -= 1
        waits = self.wants[wait.wanted]
        if isinstance(waits, dict):
            del waits[wait]
            if waits:
                return False
        del self.wants[wait.wanted]
        return True

    def take(self, wanted: Hashable) -> Collection[Wait]:
        """Remove and return all triggers of a wanted key."""
        found = self.wants.pop(wanted, ())
        waits = (found,) if isinstance(found, Wait) else found
        for wait in waits:
            wait.watch = None
        self.count -= len(waits)
        return waits

    def next_check(self, recorder: CrashRecorder) -> Timestamp | None:
        """Return the time of the watch's next check, if known.

        Runs user code, but does not raise.
        """
        return None if self.watch is None else self._instant(recorder, self.watch.next_check)

    def last_check(self, recorder: CrashRecorder) -> Timestamp | None:
        """Return the time of the watch's last check, if known.

        Runs user code, but does not raise.
        """
        return None if self.watch is None else self._instant(recorder, self.watch.last_check)

    def _instant(
        self, recorder: CrashRecorder, check: Callable[[], datetime | None]
    ) -> Timestamp | None:
        try:
            with signed(recorder, self.number):
                moment = check()
            return None if moment is None else to_timestamp(moment)
        except BaseException:  # noqa: BLE001 - user code may raise anything, and it is only shown
            return None

    def take_all(self) -> list[Wait]:
        """Remove and return all triggers."""
        return [wait for wanted in list(self.wants) for wait in self.take(wanted)]


WatchReport: TypeAlias = tuple[tuple[str, int, Timestamp | None], ...]


class Finder(Protocol):
    """The interface by which watches use the triggerer. The methods never raise."""

    async def found(self, event: TriggerEvent[object], name: str) -> Callable[[Wait], None]:
        """Return a function that reports the event for a trigger. Call it once per trigger."""

    def failed(self, problem: BaseException) -> Callable[[Wait], None]:
        """Return a function that fails a trigger with this exception."""


class Watches:
    """All watches of a process.

    Args:
        supervisor: The supervisor that runs them.
        finder: Receives their events and failures.
    """

    def __init__(self, supervisor: TaskSupervisor[Any], finder: Finder) -> None:
        self._supervisor = supervisor
        self._finder = finder
        self._loop = asyncio.get_running_loop()
        self._open: dict[_Key, HostedWatch] = {}
        self._of_class: dict[str, dict[HostedWatch, None]] = {}
        self._restarts = 0

    def join(self, wait: Wait, share: Share) -> None:
        """Register a trigger in its watch. Create the watch if necessary.

        Runs user code, so it may raise anything. If it raises, the trigger is not registered.
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
        """Remove a trigger from its watch, if it has one."""
        hosted: HostedWatch | None = wait.watch
        if hosted is None:
            return
        if hosted.discard(wait):
            self._left(hosted, wait.wanted)
        self._close_if_empty(hosted)

    def report(self, recorder: CrashRecorder) -> WatchReport:
        """Return the number of watches and the earliest next check per class path; see ``Pong``.

        Only some watches of each class are queried, because watches of one class check at similar
        times.
        """
        return tuple(
            (class_path, len(of_class), _first(islice(of_class, _ASKED), recorder))
            for class_path, of_class in islice(self._of_class.items(), _CLASSES_REPORTED)
        )

    def gone(self, hosted: HostedWatch, problem: BaseException) -> None:
        """Fail the remaining triggers of a watch that has ended."""
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
        self._add(hosted)
        self._supervisor.start(hosted, self._run(hosted))
        return hosted

    def _add(self, hosted: HostedWatch) -> None:
        """Register a watch. New triggers join it, unless another watch with its key is open."""
        self._open.setdefault(hosted.at, hosted)
        self._of_class.setdefault(hosted.class_path, {})[hosted] = None

    def _close_if_empty(self, hosted: HostedWatch) -> None:
        if not hosted.wants and not hosted.is_delivering:
            self._forget(hosted)
            self._supervisor.cancel(hosted, _EMPTY)

    def _forget(self, hosted: HostedWatch) -> None:
        if self._open.get(hosted.at) is hosted:
            del self._open[hosted.at]
        of_class = self._of_class.get(hosted.class_path, {})
        of_class.pop(hosted, None)
        if not of_class:
            self._of_class.pop(hosted.class_path, None)

    def _joined(self, hosted: HostedWatch, wanted: Hashable) -> None:
        """Call ``joined`` if the watch has begun. Otherwise it gets all wanted keys when it begins.

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
        """Call ``left`` for a key that is no longer wanted, if the watch knows the key."""
        if hosted.watch is None:
            return
        if hosted.unknown and hosted.unknown.pop(wanted, _KNOWN) is not _KNOWN:
            return
        try:
            hosted.watch.left(wanted)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            print_traceback(exc)  # this must not fail any trigger

    # ── one watch ───────────────────────────────────────────────────────────────────────

    async def _run(self, hosted: HostedWatch) -> None:
        problem = await self._problem(hosted)
        self._forget(hosted)
        if len(hosted.wants) > 1:
            print_traceback(problem)
            await self._start_again(hosted)
        elif hosted.wants:
            [alone] = hosted.wants
            waits = hosted.take(alone)
            self._left(hosted, alone)
            await self._each(hosted, waits, self._finder.failed(problem))
        elif not isinstance(problem, TriggerWrong | asyncio.CancelledError):
            print_traceback(problem)  # the cleanup of the watch raised it

    async def _problem(self, hosted: HostedWatch) -> BaseException:
        """Run the watch until it ends, and return the exception with which it ended.

        If the watch ended without an exception, because its ``run`` returned or no key was wanted
        any more, return a ``TriggerWrong``.
        """
        try:
            if hosted.delay_seconds:
                await asyncio.sleep(hosted.delay_seconds)
            if hosted.watch is None:
                hosted.unknown = dict.fromkeys(hosted.wants)
                hosted.make()
                await self._register_wanted(hosted)
            hosted.began = self._loop.time()
            await self._poll(hosted)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            return exc
        return TriggerWrong(
            "trigger_ended", f"{hosted.name}.run ended with triggers that wait in it"
        )

    async def _register_wanted(self, hosted: HostedWatch) -> None:
        """Pass the wanted keys to a restarted watch.

        Fail the triggers of each key that it rejects.
        """
        until = self._loop.time() + BUDGET_SECONDS
        for wanted in list(hosted.unknown):
            if wanted not in hosted.unknown:
                continue  # the key is no longer wanted
            del hosted.unknown[wanted]
            try:
                self._joined(hosted, wanted)
            except BaseException as exc:  # noqa: BLE001 - user code may raise anything
                await self._each(hosted, hosted.take(wanted), self._finder.failed(exc))
            if self._loop.time() > until:
                await asyncio.sleep(0)
                until = self._loop.time() + BUDGET_SECONDS

    async def _start_again(self, hosted: HostedWatch) -> None:
        """Restart a watch with its wanted keys. Split it in halves if it has failed repeatedly."""
        is_sound = self._loop.time() - hosted.began > _SOUND_SECONDS
        failures = 1 if is_sound else hosted.failures + 1
        wants = list(hosted.wants)
        middle = len(wants) // 2 if failures > 1 else len(wants)
        hosted.is_delivering = True
        for part in (wants[:middle], wants[middle:]):
            left = [wanted for wanted in part if wanted in hosted.wants]
            if left:
                await self._move(hosted, left, failures)

    async def _move(self, hosted: HostedWatch, part: Iterable[Hashable], failures: int) -> None:
        """Start another watch, after a delay, for a part of the wanted keys of ``hosted``."""
        other = HostedWatch(hosted.at, hosted.first(next(iter(part))))
        other.failures = failures
        other.delay_seconds = self._delay_seconds(failures)
        other.is_delivering = True
        self._add(other)
        until = self._loop.time() + BUDGET_SECONDS
        for wanted in part:
            waits = hosted.take(wanted)
            if not waits:
                continue  # the key is no longer wanted
            self._left(hosted, wanted)
            for wait in waits:
                other.add(wait)
            if self._loop.time() > until:
                await asyncio.sleep(0)
                until = self._loop.time() + BUDGET_SECONDS
        other.is_delivering = False
        if other.wants:
            self._supervisor.start(other, self._run(other))
        else:
            self._forget(other)

    def _delay_seconds(self, failures: int) -> float:
        """Return the restart delay. It varies, because many watches may have failed together."""
        self._restarts += 1
        spread = 1 + self._restarts * _SPREAD % 1
        longest = _FIRST_DELAY_SECONDS * float(1 << min(failures - 1, 20))
        return spread * min(longest, _LONGEST_DELAY_SECONDS) / 2

    async def _poll(self, hosted: HostedWatch) -> None:
        assert hosted.watch is not None  # noqa: S101 - the watch has been created
        events = await events_of(hosted.watch.run(), hosted.name)
        until = self._loop.time() + BUDGET_SECONDS
        try:
            async for item in events:
                await self._deliver(hosted, item)
                if not hosted.wants:
                    break
                if self._loop.time() > until:
                    await asyncio.sleep(0)
                    until = self._loop.time() + BUDGET_SECONDS
        finally:
            self._forget(hosted)  # new triggers need another watch while this one closes
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _deliver(self, hosted: HostedWatch, item: object) -> None:
        """Deliver an event to the triggers that wanted its key."""
        if not (isinstance(item, tuple) and len(item) == 2):
            raise TriggerWrong(
                "trigger_yield",
                f"{hosted.name} yielded a {type(item).__name__}; "
                "it must be what is wanted, and its event",
            )
        wanted, event = item
        waits = hosted.take(wanted)
        if not waits:
            return
        hosted.is_delivering = True
        try:
            self._left(hosted, wanted)
            await self._each(hosted, waits, await self._delivery(event, hosted.name))
        finally:
            hosted.is_delivering = False

    async def _delivery(self, event: object, name: str) -> Callable[[Wait], None]:
        if isinstance(event, Exception):
            return self._finder.failed(event)
        try:
            return await self._finder.found(checked_event(event, name), name)
        except BaseException as exc:  # noqa: BLE001 - the event cannot be sent
            return self._finder.failed(exc)

    async def _each(
        self, hosted: HostedWatch, waits: Iterable[Wait], act: Callable[[Wait], None]
    ) -> None:
        """Call ``act`` for every trigger, and yield to the event loop now and then.

        If this method is cancelled, it still calls ``act`` for the remaining triggers.
        """
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


def _first(watches: Iterable[HostedWatch], recorder: CrashRecorder) -> Timestamp | None:
    """Return the time of the earliest next check; ``None`` if none is known."""
    known = (watch.next_check(recorder) for watch in watches)
    return min((at for at in known if at is not None), default=None)
