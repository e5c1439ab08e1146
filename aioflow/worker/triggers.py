"""The role ``triggers``: the triggerer, which runs tens of thousands of triggers on one loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aioflow.author import codec
from aioflow.author.client import asker
from aioflow.author.signals import Fail
from aioflow.author.start import EndEvent, TaskSuccessEvent
from aioflow.author.trigger import Trigger, TriggerEvent, construct, prepare, shares
from aioflow.core.tasks.retry import TRIGGER_FAIL
from aioflow.errors import LinkClosed, Unserializable
from aioflow.model.states import CODE_MISSING, Failure
from aioflow.model.timestamps import to_datetime
from aioflow.protocol.commands import (
    Describe,
    EventsStored,
    ForgetRun,
    Hello,
    Order,
    PreviewFireTimes,
    RunInfo,
    StartTask,
    StartTrigger,
    StopTrigger,
)
from aioflow.protocol.reports import Described, TriggerEnded, TriggerFired
from aioflow.worker.code import CodeShelf
from aioflow.worker.cooperative import Slices
from aioflow.worker.crash_recorder import BlackBox, signed
from aioflow.worker.describe import Describer, public_fields_of
from aioflow.worker.failures import failure_of, print_traceback, traceback_of
from aioflow.worker.frames import packed
from aioflow.worker.loader import CodeMissing
from aioflow.worker.outcome import LostInHost, now, pack
from aioflow.worker.output_forwarder import OutputPump
from aioflow.worker.preview import Question, tell_of_slots
from aioflow.worker.query_client import Channels, GuestAsker
from aioflow.worker.result_writer import written
from aioflow.worker.shared_host import Line
from aioflow.worker.shared_poller import HostedWatch, Told, Watches
from aioflow.worker.task_supervisor import Nursery, guest
from aioflow.worker.trigger_events import TriggerWrong, check, events_of, payload_of
from aioflow.worker.trigger_factory import LOAD, TriggerMaker
from aioflow.worker.trigger_instance import HostedTrigger, Kinds, Wait

__all__ = ("CLEANUP_SECONDS", "TriggerHost", "call_cleanup")

CLEANUP_SECONDS = 10.0
"""Timeout of ``cleanup``. A cancelled ``run`` gets another such period to end."""

_RUN, _SERIALISE = "trigger", "unserializable"
"""Stages that follow the creation of the trigger, as named in failures."""

_FINISHED = "finished"
_CANCELLED = "cancelled"
_REASSIGNED = "reassigned"
_PAUSED = "paused"


class TriggerHost:
    """Runs each trigger as one supervised coroutine, or as a data-only entry of a shared watch.

    An assignment ends with the first event, on ``StopTrigger``, or when the trigger fails. Then
    ``cleanup`` runs, and ``TriggerEnded`` tells the daemon that nothing of the trigger remains
    here. If the end of a data-only trigger needs no instance, its event (``is_last``) says so, too.
    """

    evicted = 0
    """Always 0: this role suspends no coroutines."""

    def __init__(
        self, line: Line, box: BlackBox, welcome: Hello, shelf: CodeShelf | None = None
    ) -> None:
        self._line = line
        self._box = box
        asker.set(GuestAsker(Channels(line)))
        self._nursery: Nursery[HostedTrigger | HostedWatch | Question] = Nursery(
            box, 2 * CLEANUP_SECONDS, self._gone, self._abandoned
        )
        self._watches = Watches(self._nursery, self)
        self._results = Path(welcome.results)
        self._slices = Slices()
        self._describer = Describer(box)
        self._hosted: dict[int, HostedTrigger | Wait] = {}
        self._kinds = Kinds()
        shelf = shelf or CodeShelf(Path(welcome.code), exclusive=False)
        self._maker = TriggerMaker(line, shelf, self._results, self._kinds.versions, self._slices)
        self._output = OutputPump(line, self._nursery.serve, guest.get)

    def obey(self, order: Order) -> None:
        """See ``shared.Role``."""
        match order:
            case StartTrigger():
                self._take(order)
            case StopTrigger():
                hosted = self._hosted.get(order.trigger_no)
                if hosted is None or hosted.hosting != order.hosting:
                    # It ended by itself in the meantime: the confirmation has been sent, or belongs
                    # to an earlier process. Repeating it is harmless.
                    at = (order.trigger_no, order.hosting, now())
                    self._line.report(TriggerEnded(*at, reason=order.reason))
                else:
                    self._end(hosted, order.reason)
            case EventsStored():
                stream = self._hosted.get(order.trigger_no)
                if isinstance(stream, HostedTrigger) and stream.hosting == order.hosting:
                    stream.take(order.upto)
            case PreviewFireTimes():
                question = Question(order)
                self._nursery.start(question, question.answer(self._maker, self._line))
            case RunInfo():
                self._maker.runs.tell(order)
            case ForgetRun():
                self._maker.runs.forget(order.run_no)
            case Describe():
                self._describe(order)
            case _:
                raise LinkClosed(f"a trigger host was ordered {type(order).__name__}")

    def watches(self) -> Told:
        """See ``shared.Role``."""
        return self._watches.told(self._box)

    def _describe(self, order: Describe) -> None:
        triggers = self._describer.describe(order.numbers, self._hosted)
        self._line.report(Described(order.question, triggers))

    def _take(self, order: StartTrigger) -> None:
        known = self._hosted.get(order.trigger_no)
        if known is not None:
            if known.hosting >= order.hosting:
                return  # a repeated or late command
            self._end(known, _REASSIGNED)
        hosted = self._enter(order)
        if not self._keep_as_data(hosted, order):
            self._nursery.start(hosted, self._host(hosted, order))

    def _enter(self, order: StartTrigger) -> HostedTrigger:
        hosted = HostedTrigger(order, self._kinds.enter(order), LOAD)
        self._hosted[order.trigger_no] = hosted
        return hosted

    def _end(self, hosted: HostedTrigger | Wait, reason: str) -> None:
        if isinstance(hosted, Wait):
            with signed(self._box, hosted.number):
                self._watches.leave(hosted)
            self._finish(hosted, ending=reason)
        elif hosted.ending in {_REASSIGNED, _PAUSED}:
            hosted.ending = reason  # the trigger no longer has to resume elsewhere either
        elif not hosted.is_over:
            self._nursery.cancel(hosted, reason)

    # ── triggers in a shared watch ──────────────────────────────────────────────────────

    def _keep_as_data(self, hosted: HostedTrigger, order: StartTrigger) -> bool:
        """Construct a trigger whose class is already loaded, and register it in its shared watch.

        Return whether that succeeded. If not, the full path in ``_host`` reports the reason.
        """
        cls = self._maker.known(order)
        if cls is None or order.window or not shares(cls):
            return False
        token = guest.set(hosted)  # attribute its output to it
        # Inlines `signed`, whose overhead equals that of constructing the trigger.
        word = self._box.word
        before, word[0] = word[0], order.trigger_no
        if word[1]:
            self._box.stir()
        try:
            return self._join(hosted, order, self._told(construct(cls, order.kwargs), order))
        except BaseException:  # noqa: BLE001 - user code may raise anything
            return False
        finally:
            word[0] = before
            guest.reset(token)

    def _join(self, hosted: HostedTrigger, order: StartTrigger, trigger: Trigger[Any]) -> bool:
        """Register a trigger in its shared watch and keep only its data.

        Return whether the trigger shares a watch.
        """
        share = trigger.share()
        if share is None:
            return False
        keep = order.start is not None or lets_go(type(trigger))
        wait = Wait(order, hosted.kind, share.wanted, keep=keep)
        self._watches.join(wait, share)
        hosted.is_data = True
        hosted.kind.public = hosted.kind.public or public_fields_of(trigger)
        self._describer.keep(wait.number, trigger)
        self._hosted[wait.number] = wait
        return True

    async def found(self, event: TriggerEvent[object], name: str) -> Callable[[Wait], None]:
        """Encode an event once for all its triggers; see ``Finder``."""
        ends = event.ends if isinstance(event, EndEvent) else ""
        payload, fail = b"", None
        try:
            payload = await self._slices.run(payload_of(event, name))
            packed(TriggerFired(0, 0, 0, 0, payload, event.key, ends))
        except Exception as exc:  # noqa: BLE001 - what an event holds is user code
            fail = self.failed(exc)

        def tell(wait: Wait) -> None:
            if self._hosted.get(wait.number) is not wait:
                return  # it was stopped in the meantime
            if wait.order is not None:
                self._finish(wait, event=event)
            elif fail is not None:
                fail(wait)
            else:
                self._forget(wait)
                at = (*wait.key, 0, now())
                self._line.report(TriggerFired(*at, payload, event.key, ends, is_last=True))

        return tell

    def failed(self, problem: BaseException) -> Callable[[Wait], None]:
        """See ``Finder``."""
        text = traceback_of(problem)  # first, because it caches the text for `_failure`
        failure = _failure(problem, _RUN)

        def fail(wait: Wait) -> None:
            if self._hosted.get(wait.number) is wait:
                self._output.add(wait.key, text)
                self._finish(wait, failure=failure)

        return fail

    def _finish(
        self,
        wait: Wait,
        *,
        ending: str = "",
        event: TriggerEvent[object] | None = None,
        failure: Failure | None = None,
    ) -> None:
        """End a data-only assignment; build an instance only if the class still needs one."""
        if wait.order is None:
            self._forget(wait)
            self._line.report(TriggerEnded(wait.number, wait.hosting, now(), failure, ending))
            return
        self._describer.forget(wait.number)
        self._kinds.leave(wait.kind)
        hosted = self._enter(wait.order)
        hosted.failure = failure
        self._nursery.start(hosted, self._let_go(hosted, wait.order, event))
        self._over(hosted)
        hosted.ending = ending

    def _forget(self, wait: Wait) -> None:
        """Remove a data-only trigger; flush its output before its end is reported."""
        del self._hosted[wait.number]
        self._describer.forget(wait.number)
        self._kinds.leave(wait.kind)
        self._output.flush(wait.key)

    async def _let_go(
        self, hosted: HostedTrigger, order: StartTrigger, event: TriggerEvent[object] | None
    ) -> None:
        """Rebuild a shared trigger to report its event, if there is one, and to run its cleanup."""
        try:
            trigger = self._told(await self._maker.make(order, hosted.enter), order)
            hosted.trigger = trigger
            if event is not None:
                await self._fire(hosted, event)
                await asyncio.sleep(0)  # as in `_host`
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            if not hosted.ending:
                hosted.failure = hosted.failure or _failure(exc, hosted.stage)
            print_traceback(exc)
            return
        await self._clean_up(trigger, hosted.ending or _FINISHED)

    # ── one assignment ──────────────────────────────────────────────────────────────────

    async def _host(self, hosted: HostedTrigger, order: StartTrigger) -> None:
        # A trigger that waits for days keeps only this frame and that of `run` alive.
        try:
            events = await self._begin(hosted, order)
            del order
            if events is None:
                return
            try:
                async for event in events:
                    if not await self._fire(hosted, event):
                        # Yield, so that the event is sent before cleanup code can block the loop or
                        # crash the process.
                        await asyncio.sleep(0)
                        break
            finally:
                await _close(events)
            if not hosted.is_over and hosted.flow is None:
                name = type(hosted.trigger).__name__
                raise TriggerWrong("trigger_ended", f"{name} ended without an event")
        except BaseException as exc:  # noqa: BLE001 - user code may raise anything
            if not hosted.ending:
                hosted.failure = _failure(exc, hosted.stage)
            if not (hosted.ending and isinstance(exc, asyncio.CancelledError)):
                print_traceback(exc)
        self._over(hosted)
        if hosted.trigger is not None:
            await self._clean_up(hosted.trigger, hosted.ending or _FINISHED)

    async def _wait_for_replacement(self) -> None:
        """Wait to be replaced if installed packages changed: the next process may succeed."""
        if await self._line.is_outdated():
            await asyncio.get_running_loop().create_future()

    async def _begin(
        self, hosted: HostedTrigger, order: StartTrigger
    ) -> AsyncIterator[object] | None:
        """Construct a trigger and call its ``run``; ``None`` if it continues as data only."""
        try:
            trigger = self._told(await self._maker.make(order, hosted.enter), order)
        except Exception:
            await self._wait_for_replacement()
            raise
        if hosted.ending:
            raise asyncio.CancelledError  # it swallowed the cancellation
        hosted.enter(_RUN)
        may_join = not order.window and shares(type(trigger))
        if may_join and self._join(hosted, order, trigger):
            return None
        hosted.trigger = trigger
        hosted.kind.public = public_fields_of(trigger)
        tell_of_slots(trigger, hosted.key, self._line)
        return await events_of(trigger.run(), type(trigger).__name__)

    def _told(self, trigger: Trigger[Any], order: StartTrigger) -> Trigger[Any]:
        since, last = to_datetime(order.since), None if order.last is None else _last(*order.last)
        number, since_us = order.trigger_no, order.waits_since
        return prepare(trigger, since=since, since_us=since_us, last=last, number=number)

    def _over(self, hosted: HostedTrigger) -> None:
        """Mark a trigger as finished: from here on only the timeout limits it."""
        hosted.is_over = True
        self._nursery.bound(hosted)

    async def _fire(self, hosted: HostedTrigger, event: object) -> bool:
        """Report an event. Return whether another one may follow."""
        if hosted.ending:
            raise asyncio.CancelledError  # it swallowed the cancellation
        name = type(hosted.trigger).__name__
        checked = check(event, name)
        if hosted.flow is not None and isinstance(checked, EndEvent):
            raise TriggerWrong(
                "trigger_yield",
                f"{name} yielded a {type(checked).__name__} into a stream; a stream ends when "
                "`run` returns, and fails when it raises",
            )
        hosted.enter(_SERIALISE)
        sent = 0 if hosted.flow is None else hosted.flow.sent
        if isinstance(checked, TaskSuccessEvent) and hosted.start is not None:
            fired = await self._success(hosted, hosted.start, checked, sent)
        else:
            ends = checked.ends if isinstance(checked, EndEvent) else ""
            at = (*hosted.key, sent, now())
            payload = await self._slices.run(payload_of(checked, name))
            fired = TriggerFired(*at, payload, checked.key, ends)
        self._output.flush(hosted.key)
        self._line.report(fired)
        hosted.enter(_RUN)
        if hosted.flow is None:
            self._over(hosted)
            return False
        hosted.flow.sent += 1
        hosted.flow.unstored.append(checked)
        await hosted.flow.room()
        return True

    async def _success(
        self, hosted: HostedTrigger, start: StartTask, event: TaskSuccessEvent, sent: int
    ) -> TriggerFired:
        """Write the result as the task itself would; the returned event makes the task succeed."""
        node = self._maker.runs.of(start).dag.nodes[start.position]
        packed = await self._slices.run(pack(node, start, event.result, self._results))
        if packed.write is not None:
            await written(packed.write)
        body = b"" if packed.body is None else packed.body
        size = 0 if packed.body is not None else packed.size
        at = (*hosted.key, sent, now())
        return TriggerFired(*at, body, event.key, event.ends, size, packed.width)

    async def _clean_up(self, trigger: Trigger[Any], reason: str) -> None:
        """Run the trigger's ``on_kill`` and ``cleanup``, each within the timeout."""
        cls = type(trigger)
        if reason == _CANCELLED and cls.on_kill is not Trigger.on_kill:
            await _bounded(lambda: _kill(trigger))
        if cls.cleanup is not Trigger.cleanup:
            await _bounded(lambda: call_cleanup(trigger, reason))

    # ── endings ─────────────────────────────────────────────────────────────────────────

    def _gone(self, hosted: HostedTrigger | HostedWatch | Question) -> None:
        if isinstance(hosted, HostedWatch):
            self._watches.gone(hosted, LostInHost())
            return
        if isinstance(hosted, Question):
            return  # its answer has been sent
        if hosted.is_data:
            return
        if self._hosted.get(hosted.number) is hosted:
            del self._hosted[hosted.number]
        self._kinds.leave(hosted.kind)
        if not hosted.is_over and not hosted.ending:
            hosted.failure = failure_of(LostInHost(), "interrupted")
        self._output.flush(hosted.key)
        self._line.report(TriggerEnded(*hosted.key, now(), hosted.failure, hosted.ending))

    def _abandoned(self, hosted: HostedTrigger | HostedWatch | Question) -> None:
        if isinstance(hosted, HostedTrigger):
            hosted.failure = Failure(
                type="Abandoned",
                message=f"{hosted.kind.class_path} did not end when it was told to",
                reason="abandoned",
            )
        self._gone(hosted)
        self._line.give_up_if(self._nursery.abandoned_count)


def _last(payload: bytes, key: str | None) -> TriggerEvent[Any]:
    return TriggerEvent(codec.decode(payload), key)


def lets_go(cls: type[Trigger[Any]]) -> bool:
    """Return whether triggers of a class define ``cleanup`` or ``on_kill``."""
    return cls.cleanup is not Trigger.cleanup or cls.on_kill is not Trigger.on_kill


async def _close(events: AsyncIterator[object]) -> None:
    """Close a generator. Log what it raises; only a cancellation propagates."""
    if isinstance(events, AsyncGenerator):
        try:
            await events.aclose()
        except BaseException as exc:
            print_traceback(exc)
            if isinstance(exc, asyncio.CancelledError):
                raise


def _kill(trigger: Any) -> object:
    return trigger.on_kill()


def call_cleanup(trigger: Any, reason: str) -> object:
    """Call ``cleanup`` with the signature it has: Airflow's takes no reason."""
    takes_reason = bool(inspect.signature(trigger.cleanup).parameters)
    return trigger.cleanup(reason) if takes_reason else trigger.cleanup()


async def _bounded(call: Callable[[], object]) -> None:
    """Call a user method, sync or async, within the timeout; its exceptions are only logged."""
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
            return failure_of(problem, CODE_MISSING)
        case Unserializable() if stage == _RUN:
            return failure_of(problem, _SERIALISE)
        case Fail() if stage == _RUN:
            return failure_of(problem, TRIGGER_FAIL)
        case _:
            return failure_of(problem, stage)
