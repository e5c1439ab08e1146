"""The role ``triggers``: hosts things that wait, by the tens of thousands, on one loop."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from aioflow.author import codec
from aioflow.author.asking import asker
from aioflow.author.start import EndEvent, TaskSuccessEvent
from aioflow.author.trigger import Trigger, TriggerEvent, note_last, prepare
from aioflow.errors import LinkClosed, Unserializable
from aioflow.host.asker import LineAsker, as_datetime
from aioflow.host.blackbox import BlackBox
from aioflow.host.failures import failure_of, print_traceback
from aioflow.host.loader import CodeMissing
from aioflow.host.nursery import Hosted, Nursery
from aioflow.host.outcome import LostInHost, now, pack
from aioflow.host.pump import OutputPump
from aioflow.host.shared import Line
from aioflow.host.trigger_events import TriggerWrong, check, events_of, payload_of
from aioflow.host.trigger_making import LOAD, TriggerMaker
from aioflow.messages import Fired, TriggerEnded
from aioflow.model import Failure
from aioflow.orders import End, EventsTaken, ForgetRun, Host, Order, RunInfo, Start, Welcome

__all__ = ("CLEANUP_SECONDS", "TriggerHost")

CLEANUP_SECONDS = 10.0
"""How long ``cleanup`` may take; letting go of ``run`` has as much again."""

_RUN, _SERIALISE = "trigger", "unserializable"
"""The stages after those of making one, as failures name them."""

_FINISHED = "finished"
_CANCELLED = "cancelled"
_REASSIGNED = "reassigned"


class HostedTrigger(Hosted):
    """A trigger in the nursery.

    Attributes:
        key: Whose it is what it prints.
        stage: The reason if user code raises right now.
        is_over: It has fired or failed and is letting go; no longer to be cancelled.
        failure: Why its hosting ends badly; ``None`` while or if it does not.
        sent: Events it has reported.
        taken: How many of them are stored, as the daemon said.
        unstored: Those of a stream that were reported and are not known to be stored.
        trigger: Itself, once it is made.
        has_room: Set when the daemon has taken more; ``None`` while nobody waits for that.
    """

    __slots__ = (
        "failure",
        "has_room",
        "is_over",
        "key",
        "order",
        "sent",
        "stage",
        "taken",
        "trigger",
        "unstored",
    )

    def __init__(self, order: Host) -> None:
        super().__init__()
        self.order = order
        self.key = (order.trigger_no, order.hosting)
        self.stage = LOAD
        self.is_over = False
        self.failure: Failure | None = None
        self.sent = 0
        self.taken = 0
        self.trigger: Trigger[Any] | None = None
        self.unstored: deque[TriggerEvent[Any]] | None = deque() if order.window else None
        self.has_room: asyncio.Future[None] | None = None

    def enter(self, stage: str) -> None:
        """A stage begins."""
        self.stage = stage

    def take(self, upto: int) -> None:
        """Events are stored: it may go on, if it stood still for that."""
        for _ in range(upto - self.taken):
            if self.unstored and self.trigger is not None:
                note_last(self.trigger, self.unstored.popleft())
        self.taken = max(self.taken, upto)
        if self.has_room is not None and not self.has_room.done():
            self.has_room.set_result(None)

    async def room(self) -> None:
        """Return when it is less than its window ahead of the store."""
        while self.sent - self.taken >= self.order.window:
            self.has_room = asyncio.get_running_loop().create_future()
            try:
                await self.has_room
            finally:
                self.has_room = None


class TriggerHost:
    """Hosts each trigger in one task of the nursery.

    A hosting ends after the first event, on ``End``, or when the trigger fails; then its
    ``cleanup`` runs, and ``TriggerEnded`` tells the daemon that nothing is left of it here.
    """

    def __init__(self, line: Line, box: BlackBox, welcome: Welcome) -> None:
        self._line = line
        self._nursery: Nursery[HostedTrigger] = Nursery(
            box, 2 * CLEANUP_SECONDS, self._gone, self._abandoned
        )
        self._results = Path(welcome.results)
        self._hosted: dict[int, HostedTrigger] = {}
        self._maker = TriggerMaker(line, Path(welcome.code), self._results, self._versions)
        self._output = OutputPump(line, self._nursery.serve)

    def obey(self, order: Order) -> None:
        """See ``shared.Role``."""
        match order:
            case Host():
                self._take(order)
            case End():
                hosted = self._hosted.get(order.trigger_no)
                if hosted is None or hosted.order.hosting != order.hosting:
                    # It ended by itself on the way: the confirmation has been sent, or is
                    # owed to an earlier process. Saying it again does no harm.
                    at = (order.trigger_no, order.hosting, now())
                    self._line.report(TriggerEnded(*at, reason=order.reason))
                elif hosted.ending == _REASSIGNED:
                    hosted.ending = order.reason  # nobody wants it elsewhere either
                elif not hosted.is_over:
                    self._nursery.cancel(hosted, order.reason)
            case EventsTaken():
                stream = self._hosted.get(order.trigger_no)
                if stream is not None and stream.order.hosting == order.hosting:
                    stream.take(order.upto)
            case RunInfo():
                self._maker.runs.tell(order)
            case ForgetRun():
                self._maker.runs.forget(order.run_no)
            case _:
                raise LinkClosed(f"a trigger host was ordered {type(order).__name__}")

    def _take(self, order: Host) -> None:
        known = self._hosted.get(order.trigger_no)
        if known is not None:
            if known.order.hosting >= order.hosting:
                return  # repeated, or late
            self._nursery.cancel(known, _REASSIGNED)
        hosted = self._hosted[order.trigger_no] = HostedTrigger(order)
        self._nursery.start(order.trigger_no, hosted, self._host(hosted))

    # ── one hosting ─────────────────────────────────────────────────────────────────────

    async def _host(self, hosted: HostedTrigger) -> None:
        order = hosted.order
        self._output.attribute(hosted)
        asker.set(LineAsker(self._line, order.run_no))
        trigger: Trigger[Any] | None = None
        try:
            made = await self._maker.make(order, hosted.enter)
            since, last = as_datetime(order.since), _last(order)
            trigger = prepare(made, since=since, last=last, number=order.trigger_no)
            hosted.trigger = trigger
            hosted.enter(_RUN)
            await self._watch(trigger, hosted)
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            if not hosted.ending:
                hosted.failure = _failure(exc, hosted.stage)
            if not (hosted.ending and isinstance(exc, asyncio.CancelledError)):
                print_traceback(exc)
        self._over(hosted)
        if trigger is not None:
            await self._clean_up(trigger, hosted.ending or _FINISHED)

    def _versions(self) -> set[str]:
        orders = [hosted.order for hosted in self._hosted.values()]
        return {order.version for order in orders} | {order.newest for order in orders}

    def _over(self, hosted: HostedTrigger) -> None:
        """From here on it is bounded by the clock alone."""
        hosted.is_over = True
        self._nursery.bound(hosted)

    async def _watch(self, trigger: Trigger[Any], hosted: HostedTrigger) -> None:
        """Report the first event, or all of them if it is a stream.

        The generator is closed in every case. What it does against that is its own failure
        only if it had not delivered yet.
        """
        name = type(trigger).__name__
        events = await events_of(trigger.run(), name)
        delivered = False
        try:
            async for event in events:
                await self._fire(hosted, event, name)
                if hosted.order.window:
                    await hosted.room()
                    continue
                self._over(hosted)
                delivered = True
                # Have it sent before what lets go may hold up the loop, or take the host down.
                await asyncio.sleep(0)
                break
            delivered = delivered or hosted.order.window > 0
        finally:
            if isinstance(events, AsyncGenerator):
                try:
                    await events.aclose()
                except BaseException as exc:
                    print_traceback(exc)
                    if isinstance(exc, asyncio.CancelledError):
                        raise
        if not delivered:
            raise TriggerWrong("trigger_ended", f"{name} ended without an event")

    async def _fire(self, hosted: HostedTrigger, event: object, name: str) -> None:
        if hosted.ending:
            raise asyncio.CancelledError  # told to end, it swallowed that and went on
        checked = check(event, name)
        hosted.enter(_SERIALISE)
        start = hosted.order.start
        if isinstance(checked, TaskSuccessEvent) and start is not None:
            fired = await self._success(hosted, start, checked)
        else:
            at = (hosted.order.trigger_no, hosted.order.hosting, hosted.sent, now())
            ends = checked.ends if isinstance(checked, EndEvent) else ""
            fired = Fired(*at, payload_of(checked, name), checked.key, ends)
        self._output.flush(hosted.key)
        self._line.report(fired)
        hosted.enter(_RUN)
        hosted.sent += 1
        if hosted.unstored is not None:
            hosted.unstored.append(checked)

    async def _success(self, hosted: HostedTrigger, start: Start, event: TaskSuccessEvent) -> Fired:
        """Write the result as the task itself would have; what says so succeeds it."""
        order = hosted.order
        node = self._maker.runs.of(start).dag.nodes[start.position]
        packed = pack(node, start, event.payload, self._results)
        if packed.write is not None:
            await asyncio.to_thread(packed.write)
        body = b"" if packed.body is None else packed.body
        size = 0 if packed.body is not None else packed.size
        at = (order.trigger_no, order.hosting, hosted.sent, now())
        return Fired(*at, body, event.key, event.ends, size, packed.width)

    async def _clean_up(self, trigger: Trigger[Any], reason: str) -> None:
        """Let the trigger let go, whatever it does, within the time for that."""
        cls = type(trigger)
        if reason == _CANCELLED and cls.on_kill is not Trigger.on_kill:
            await _bounded(lambda: _kill(trigger))
        if cls.cleanup is not Trigger.cleanup:
            await _bounded(lambda: _clean(trigger, reason))

    # ── endings ─────────────────────────────────────────────────────────────────────────

    def _gone(self, hosted: HostedTrigger) -> None:
        order = hosted.order
        if self._hosted.get(order.trigger_no) is hosted:
            del self._hosted[order.trigger_no]
        if not hosted.is_over and not hosted.ending:
            hosted.failure = failure_of(LostInHost(), "interrupted")
        self._output.flush(hosted.key)
        at = (order.trigger_no, order.hosting, now())
        self._line.report(TriggerEnded(*at, hosted.failure, hosted.ending))

    def _abandoned(self, hosted: HostedTrigger) -> None:
        hosted.failure = Failure(
            type="Abandoned",
            message=f"{hosted.order.class_path} did not end when it was told to",
            reason="abandoned",
        )
        self._gone(hosted)
        self._line.give_up_if(self._nursery.abandoned_count)


def _last(order: Host) -> TriggerEvent[Any] | None:
    if order.last is None:
        return None
    payload, key = order.last
    return TriggerEvent(codec.decode(payload), key)


def _kill(trigger: Any) -> object:
    return trigger.on_kill()


def _clean(trigger: Any, reason: str) -> object:
    """Call ``cleanup`` as it is written: Airflow's takes no reason."""
    takes_reason = bool(inspect.signature(trigger.cleanup).parameters)
    return trigger.cleanup(reason) if takes_reason else trigger.cleanup()


async def _bounded(call: Callable[[], object]) -> None:
    """Call a method of user code, def or async; what it raises goes to the log alone."""
    limit = asyncio.timeout(CLEANUP_SECONDS)
    try:
        async with limit:
            pending = call()
            if inspect.isawaitable(pending):
                await pending
    except BaseException as exc:  # noqa: BLE001 - user code may raise anything
        if limit.expired():
            exc.add_note(f"aioflow: cut short after {CLEANUP_SECONDS:g} s")
        print_traceback(exc)


def _failure(problem: BaseException, stage: str) -> Failure:
    match problem:
        case TriggerWrong():
            return failure_of(problem, problem.reason)
        case CodeMissing():
            return failure_of(problem, "code_missing")
        case Unserializable() if stage == _RUN:
            return failure_of(problem, _SERIALISE)
        case _:
            return failure_of(problem, stage)
