"""The role ``triggers``: the triggerer, which runs tens of thousands of triggers on one loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aioflow.author import codec
from aioflow.author.client import query_sender
from aioflow.author.deferral import EndEvent, Fail, TaskSuccessEvent
from aioflow.author.trigger import Trigger, TriggerEvent, construct, prepare, shares
from aioflow.core.tasks.retry import TRIGGER_FAIL
from aioflow.errors import LinkClosed, Unserializable
from aioflow.model.states import CODE_MISSING, Failure
from aioflow.model.timestamps import to_datetime
from aioflow.protocol.commands import (
    Command,
    Describe,
    EventsStored,
    ForgetRun,
    Hello,
    PreviewFireTimes,
    RunInfo,
    StartTask,
    StartTrigger,
    StopTrigger,
)
from aioflow.protocol.reports import Described, TriggerEnded, TriggerFired
from aioflow.results import result_size
from aioflow.worker.code.loader import CodeCache, CodeMissing
from aioflow.worker.crash_recorder import CrashRecorder, signed
from aioflow.worker.failures import failure_of, print_traceback, traceback_of
from aioflow.worker.link import packed
from aioflow.worker.query.client import HostedFiles, QueryChannels, TriggerQueryClient
from aioflow.worker.shared_host import OutputForwarder, ReportBuffer
from aioflow.worker.task.outcome import LostInHost, now, pack, write_result_in_thread
from aioflow.worker.task_supervisor import Slices, TaskSupervisor, current_coroutine
from aioflow.worker.trigger.description import (
    Describer,
    FireTimePreview,
    public_fields_of,
    report_next_fire_time,
)
from aioflow.worker.trigger.factory import LOAD, TriggerMaker
from aioflow.worker.trigger.instance import (
    HostedTrigger,
    Kinds,
    TriggerWrong,
    Wait,
    checked_event,
    events_of,
    payload_of,
)
from aioflow.worker.trigger.shared_poller import HostedWatch, Watches, WatchReport

__all__ = (
    "CLEANUP_SECONDS",
    "TriggerHost",
    "call_cleanup",
)

CLEANUP_SECONDS = 10.0
"""Timeout of ``cleanup``. A cancelled ``run`` gets the same time to end."""

_RUN, _SERIALISE = "trigger", "unserializable"
"""The stages that follow the creation of the trigger, as named in failures."""

_FINISHED = "finished"
_CANCELLED = "cancelled"
_REASSIGNED = "reassigned"
_PAUSED = "paused"


class TriggerHost:
    """Runs each trigger as one supervised coroutine, or as a data-only entry of a shared watch.

    An assignment ends with the trigger's first event, with its failure, or on ``StopTrigger``. Then
    ``cleanup`` runs, and ``TriggerEnded`` tells the daemon that nothing of the trigger remains in
    this process. If a data-only trigger can end without an instance, its event itself confirms the
    end (``is_last``).
    """

    evicted = 0
    """Always 0, because this role suspends no coroutines."""

    def __init__(
        self,
        reports: ReportBuffer,
        recorder: CrashRecorder,
        hello: Hello,
        code_cache: CodeCache | None = None,
    ) -> None:
        self._reports = reports
        self._recorder = recorder
        query_sender.set(TriggerQueryClient(QueryChannels(reports)))
        self._supervisor: TaskSupervisor[HostedTrigger | HostedWatch | FireTimePreview] = (
            TaskSupervisor(recorder, 2 * CLEANUP_SECONDS, self._gone, self._abandoned)
        )
        self._watches = Watches(self._supervisor, self)
        self._results = HostedFiles(hello, reports)
        self._slices = Slices()
        self._describer = Describer(recorder)
        self._hosted: dict[int, HostedTrigger | Wait] = {}
        self._kinds = Kinds()
        code_cache = code_cache or CodeCache(Path(hello.code), exclusive=False)
        self._maker = TriggerMaker(
            reports, code_cache, self._results, self._kinds.versions, self._slices
        )
        self._output = OutputForwarder(reports, self._supervisor.serve, current_coroutine.get)

    def handle(self, command: Command) -> None:
        """See ``shared_host.Role``."""
        match command:
            case StartTrigger():
                self._start(command)
            case StopTrigger():
                hosted = self._hosted.get(command.trigger_no)
                if hosted is None or hosted.assignment_id != command.assignment_id:
                    # The trigger ended by itself in the meantime. Its end has been confirmed, or
                    # the command was meant for an earlier process. It is harmless to confirm the
                    # end again.
                    at = (command.trigger_no, command.assignment_id, now())
                    self._reports.report(TriggerEnded(*at, reason=command.reason))
                else:
                    self._end(hosted, command.reason)
            case EventsStored():
                stream = self._hosted.get(command.trigger_no)
                if (
                    isinstance(stream, HostedTrigger)
                    and stream.assignment_id == command.assignment_id
                ):
                    stream.take(command.upto)
            case PreviewFireTimes():
                question = FireTimePreview(command)
                self._supervisor.start(question, question.answer(self._maker, self._reports))
            case RunInfo():
                self._maker.runs.add(command)
            case ForgetRun():
                self._maker.runs.forget(command.run_no)
            case Describe():
                self._describe(command)
            case _:
                raise LinkClosed(f"a trigger host was ordered {type(command).__name__}")

    def watches(self) -> WatchReport:
        """See ``shared_host.Role``."""
        return self._watches.report(self._recorder)

    def _describe(self, command: Describe) -> None:
        triggers = self._describer.describe(command.numbers, self._hosted)
        self._reports.report(Described(command.question, triggers))

    def _start(self, command: StartTrigger) -> None:
        known = self._hosted.get(command.trigger_no)
        if known is not None:
            if known.assignment_id >= command.assignment_id:
                return  # a repeated or late command
            self._end(known, _REASSIGNED)
        hosted = self._register(command)
        if not self._keep_as_data(hosted, command):
            self._supervisor.start(hosted, self._host(hosted, command))

    def _register(self, command: StartTrigger) -> HostedTrigger:
        hosted = HostedTrigger(command, self._kinds.add(command), LOAD)
        self._hosted[command.trigger_no] = hosted
        return hosted

    def _end(self, hosted: HostedTrigger | Wait, reason: str) -> None:
        if isinstance(hosted, Wait):
            with signed(self._recorder, hosted.number):
                self._watches.leave(hosted)
            self._finish(hosted, ending=reason)
        elif hosted.ending in {_REASSIGNED, _PAUSED}:
            hosted.ending = reason  # now the trigger need not resume elsewhere either
        elif not hosted.is_over:
            self._supervisor.cancel(hosted, reason)

    # ── triggers in a shared watch ──────────────────────────────────────────────────────

    def _keep_as_data(self, hosted: HostedTrigger, command: StartTrigger) -> bool:
        """Construct a trigger whose class is already loaded, and register it in its shared watch.

        Return whether that succeeded. If it did not, ``_host`` starts over and reports the reason.
        """
        cls = self._maker.known(command)
        if cls is None or command.window or not shares(cls):
            return False
        token = current_coroutine.set(hosted)  # attribute the output of user code to the trigger
        # This inlines `signed`, whose overhead is as large as constructing the trigger.
        word = self._recorder.word
        before, word[0] = word[0], command.trigger_no
        if word[1]:
            self._recorder.wake_watchdog()
        try:
            return self._join(
                hosted, command, self._prepared(construct(cls, command.kwargs), command)
            )
        except BaseException:  # noqa: BLE001 - user code may raise anything
            return False
        finally:
            word[0] = before
            current_coroutine.reset(token)

    def _join(self, hosted: HostedTrigger, command: StartTrigger, trigger: Trigger[Any]) -> bool:
        """Register a trigger in its shared watch and keep only its data.

        Return whether the trigger has a shared watch.
        """
        share = trigger.share()
        if share is None:
            return False
        keep = command.start is not None or has_cleanup(type(trigger))
        wait = Wait(command, hosted.kind, share.wanted, keep=keep)
        self._watches.join(wait, share)
        hosted.is_data = True
        hosted.kind.public = hosted.kind.public or public_fields_of(trigger)
        self._describer.keep(wait.number, trigger)
        self._hosted[wait.number] = wait
        return True

    async def found(self, event: TriggerEvent[object], name: str) -> Callable[[Wait], None]:
        """Encode an event once for all triggers that receive it; see ``Finder``."""
        ends = event.ends if isinstance(event, EndEvent) else ""
        payload, fail = b"", None
        try:
            payload = await self._slices.run(payload_of(event, name))
            packed(TriggerFired(0, 0, 0, 0, payload, event.key, ends))
        except Exception as exc:  # noqa: BLE001 - the content of an event is user code
            fail = self.failed(exc)

        def tell(wait: Wait) -> None:
            if self._hosted.get(wait.number) is not wait:
                return  # the trigger was stopped in the meantime
            if wait.command is not None:
                self._finish(wait, event=event)
            elif fail is not None:
                fail(wait)
            else:
                self._forget(wait)
                at = (*wait.key, 0, now())
                self._reports.report(TriggerFired(*at, payload, event.key, ends, is_last=True))

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
        """End the assignment of a data-only trigger. Build an instance only if the end needs it."""
        if wait.command is None:
            self._forget(wait)
            self._reports.report(
                TriggerEnded(wait.number, wait.assignment_id, now(), failure, ending)
            )
            return
        self._describer.forget(wait.number)
        self._kinds.remove(wait.kind)
        hosted = self._register(wait.command)
        hosted.failure = failure
        self._supervisor.start(hosted, self._end_rebuilt(hosted, wait.command, event))
        self._finish_running(hosted)
        hosted.ending = ending

    def _forget(self, wait: Wait) -> None:
        """Remove a data-only trigger, and flush its output before its end is reported."""
        del self._hosted[wait.number]
        self._describer.forget(wait.number)
        self._kinds.remove(wait.kind)
        self._output.flush(wait.key)

    async def _end_rebuilt(
        self, hosted: HostedTrigger, command: StartTrigger, event: TriggerEvent[object] | None
    ) -> None:
        """Rebuild a shared trigger to report its event, if there is one, and to run its cleanup."""
        try:
            trigger = self._prepared(await self._maker.make(command, hosted.enter), command)
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

    async def _host(self, hosted: HostedTrigger, command: StartTrigger) -> None:
        # Only this frame and that of `run` exist while a trigger waits for days.
        try:
            events = await self._begin(hosted, command)
            del command
            if events is None:
                return
            try:
                async for event in events:
                    if not await self._fire(hosted, event):
                        # Yield to the loop, so that the event is sent before cleanup code can block
                        # the loop or crash the process.
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
        self._finish_running(hosted)
        if hosted.trigger is not None:
            await self._clean_up(hosted.trigger, hosted.ending or _FINISHED)

    async def _wait_for_replacement(self) -> None:
        """Wait to be replaced if installed packages have changed. The next process may succeed."""
        if await self._reports.is_outdated():
            await asyncio.get_running_loop().create_future()

    async def _begin(
        self, hosted: HostedTrigger, command: StartTrigger
    ) -> AsyncIterator[object] | None:
        """Construct a trigger and call ``run``. Return ``None`` if it continues as data only."""
        try:
            trigger = self._prepared(await self._maker.make(command, hosted.enter), command)
        except Exception:
            await self._wait_for_replacement()
            raise
        if hosted.ending:
            raise asyncio.CancelledError  # user code swallowed the cancellation
        hosted.enter(_RUN)
        may_join = not command.window and shares(type(trigger))
        if may_join and self._join(hosted, command, trigger):
            return None
        hosted.trigger = trigger
        hosted.kind.public = public_fields_of(trigger)
        report_next_fire_time(trigger, hosted.key, self._reports)
        return await events_of(trigger.run(), type(trigger).__name__)

    def _prepared(self, trigger: Trigger[Any], command: StartTrigger) -> Trigger[Any]:
        since, last = (
            to_datetime(command.since),
            None if command.last is None else _last(*command.last),
        )
        number, since_us = command.trigger_no, command.waits_since
        return prepare(trigger, since=since, since_us=since_us, last=last, number=number)

    def _finish_running(self, hosted: HostedTrigger) -> None:
        """Mark a trigger as finished. From then on, only the cleanup timeout limits it."""
        hosted.is_over = True
        self._supervisor.bound(hosted)

    async def _fire(self, hosted: HostedTrigger, event: object) -> bool:
        """Report an event. Return whether another event may follow."""
        if hosted.ending:
            raise asyncio.CancelledError  # user code swallowed the cancellation
        name = type(hosted.trigger).__name__
        checked = checked_event(event, name)
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
        self._reports.report(fired)
        hosted.enter(_RUN)
        if hosted.flow is None:
            self._finish_running(hosted)
            return False
        hosted.flow.sent += 1
        hosted.flow.unstored.append(checked)
        await hosted.flow.wait_for_window()
        return True

    async def _success(
        self, hosted: HostedTrigger, start: StartTask, event: TaskSuccessEvent, sent: int
    ) -> TriggerFired:
        """Write the result as the task itself would. Return the event that ends the task."""
        node = self._maker.runs.of(start).dag.nodes[start.task_index]
        packed = await self._slices.run(pack(node, start, event.result, self._results))
        if packed.write is not None:
            await self._results.may_write(start, result_size(packed.size, packed.width))
            await write_result_in_thread(packed.write)
        body = b"" if packed.body is None else packed.body
        size = 0 if packed.body is not None else packed.size
        at = (*hosted.key, sent, now())
        file = None if packed.write is None else (start.task_no, start.start_no)
        return TriggerFired(*at, body, event.key, event.ends, size, packed.width, result=file)

    async def _clean_up(self, trigger: Trigger[Any], reason: str) -> None:
        """Run the trigger's ``on_kill`` and ``cleanup``, each within the timeout."""
        cls = type(trigger)
        if reason == _CANCELLED and cls.on_kill is not Trigger.on_kill:
            await _bounded(lambda: _kill(trigger))
        if cls.cleanup is not Trigger.cleanup:
            await _bounded(lambda: call_cleanup(trigger, reason))

    # ── endings ─────────────────────────────────────────────────────────────────────────

    def _gone(self, hosted: HostedTrigger | HostedWatch | FireTimePreview) -> None:
        if isinstance(hosted, HostedWatch):
            self._watches.gone(hosted, LostInHost())
            return
        if isinstance(hosted, FireTimePreview):
            return  # the preview has been answered
        if hosted.is_data:
            return
        if self._hosted.get(hosted.number) is hosted:
            del self._hosted[hosted.number]
        self._kinds.remove(hosted.kind)
        if not hosted.is_over and not hosted.ending:
            hosted.failure = failure_of(LostInHost(), "interrupted")
        self._output.flush(hosted.key)
        self._reports.report(TriggerEnded(*hosted.key, now(), hosted.failure, hosted.ending))

    def _abandoned(self, hosted: HostedTrigger | HostedWatch | FireTimePreview) -> None:
        if isinstance(hosted, HostedTrigger):
            hosted.failure = Failure(
                type="Abandoned",
                message=f"{hosted.kind.class_path} did not end when it was stopped",
                reason="abandoned",
            )
        self._gone(hosted)
        self._reports.exit_if_abandoned(self._supervisor.abandoned_count)


def _last(payload: bytes, key: str | None) -> TriggerEvent[Any]:
    return TriggerEvent(codec.decode(payload), key)


def has_cleanup(cls: type[Trigger[Any]]) -> bool:
    """Return whether triggers of a class define ``cleanup`` or ``on_kill``."""
    return cls.cleanup is not Trigger.cleanup or cls.on_kill is not Trigger.on_kill


async def _close(events: AsyncIterator[object]) -> None:
    """Close a generator. Log the exceptions that it raises. Only a cancellation propagates."""
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
    """Call ``cleanup`` with the arguments that it accepts. Airflow's takes no reason."""
    takes_reason = bool(inspect.signature(trigger.cleanup).parameters)
    return trigger.cleanup(reason) if takes_reason else trigger.cleanup()


async def _bounded(call: Callable[[], object]) -> None:
    """Call a sync or async user method within the timeout. Its exceptions are only logged."""
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
