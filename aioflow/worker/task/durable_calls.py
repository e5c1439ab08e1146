"""The durable calls of one try: make, record and await them, or answer them from the record.

For each series of waits (see ``Trigger.series``), the last answer is remembered, so that a task
never gets the same event twice.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NoReturn, Protocol

from aioflow.author import codec
from aioflow.author.codec import Steps
from aioflow.author.deferral import Fail, NotReady, RetryAfter, Skip, TaskDeferred
from aioflow.author.durable_calls import LABEL_LENGTH, Call
from aioflow.author.trigger import Trigger, class_path, portable, serialized
from aioflow.errors import CallCutShort, CallMismatch, StepFailed, Unserializable
from aioflow.model.states import Failure
from aioflow.protocol.commands import StartTask
from aioflow.protocol.reports import (
    Awaiting,
    CallAnswered,
    EventEmitted,
    NextEventRequested,
    RecordDropped,
    Report,
    RunCalled,
    StreamOpened,
)
from aioflow.worker.failures import failure_of, text_of
from aioflow.worker.query.messages import RecordItem
from aioflow.worker.query.values import hidden, masks, without_secrets
from aioflow.worker.task.outcome import now
from aioflow.worker.task_supervisor import Slices

__all__ = (
    "ANSWER_LIMIT",
    "Conversation",
    "DurableCalls",
    "EventPositions",
)


class EventPositions:
    """The last answer in each series of waits of one coroutine.

    Derived from all answers, including recorded ones, so that a replay reaches the same positions.
    """

    __slots__ = ("_last", "_streams")

    def __init__(self) -> None:
        self._last: dict[tuple[type, str], Any] = {}
        self._streams: dict[int, Trigger[Any]] = {}

    def resume(self, trigger: Trigger[Any]) -> Trigger[Any]:
        """Return the trigger, set to continue after the last answer in its series of waits."""
        series = _series(trigger)
        if series is None or series not in self._last:
            return trigger
        return trigger.behind(self._last[series])

    def note(self, kind: str, triggers: tuple[Trigger[Any], ...], answer: Any) -> None:
        """Record the answer of a call."""
        match kind:
            case "any_of":
                branch, payload = answer
                self._note(triggers[branch], payload)
            case "all_of":
                for trigger, payload in zip(triggers, answer, strict=True):
                    self._note(trigger, payload)
            case "wait":
                self._note(triggers[0], answer)
            case _:
                pass

    def open(self, ordinal: int, trigger: Trigger[Any]) -> None:
        """Record that the call with this ordinal opened a stream."""
        self._streams[ordinal] = trigger

    def took(self, stream: int, payload: Any) -> None:
        """Record an event that the task consumed from the stream opened by call ``stream``."""
        self._note(self._streams[stream], payload)

    def _note(self, trigger: Trigger[Any], payload: Any) -> None:
        series = _series(trigger)
        if series is not None:
            self._last[series] = payload


def _series(trigger: Trigger[Any]) -> tuple[type, str] | None:
    name = trigger.series()
    return None if name is None else (type(trigger), name)


ANSWER_LIMIT = 1024 * 1024
"""Maximum size of the answer to one call, in bytes of msgpack."""

_PASSED_ON = (Skip, Fail, RetryAfter, NotReady)
"""Exceptions by which a step ends the try of its task. No result of the step is recorded then."""


class Conversation(Protocol):
    """The interface by which durable calls use the program that runs the try."""

    start: StartTask
    began_at: int

    @property
    def on_code_change(self) -> str:
        """Policy for a call that differs from the record: ``fail``, ``restart`` or ``keep``."""

    @property
    def is_over(self) -> bool:
        """Whether the try was cancelled or has ended, so that further calls have no effect."""

    def cancel(self, reason: str) -> None:
        """Cancel the try. It reports no outcome."""

    def report(self, report: Report) -> None:
        """Send a report to the engine, after the output that the try has printed so far."""

    def find_class(self, path: str) -> Any:
        """Resolve ``module:Qualname`` in the try's code version."""


class DurableCalls:
    """The durable calls of one try, in order. Implements ``aioflow.author.durable_calls.Calls``.

    Args:
        recorded: Calls made by earlier executions of the task.
        code: Folder of the task's code version, with a trailing slash. Source locations are
            relative to it.
    """

    def __init__(
        self,
        talk: Conversation,
        recorded: list[RecordItem],
        threads: Executor,
        code: str,
        slices: Slices,
    ) -> None:
        self._talk = talk
        self._recorded = deque(recorded)
        self._threads = threads
        self._code = code
        self._slices = slices
        self._made = 0
        self._under_way: Call | None = None
        self._is_recorded = False
        self._is_refused = False
        self._awaited: Call | None = None
        self._cut_short: CallCutShort | None = None
        self._reply: asyncio.Future[tuple[bytes | None, Failure | None]] | None = None

    @cached_property
    def _positions(self) -> EventPositions:
        return EventPositions()

    @property
    def is_suspended(self) -> bool:
        """Whether the coroutine is suspended in a call that has no answer yet."""
        return self._awaited is not None and self._reply is not None

    # ── called by user code ─────────────────────────────────────────────────────────────

    async def await_triggers(
        self, call: Call, triggers: tuple[Trigger[Any], ...], timeout_us: int | None
    ) -> Any:
        async with self._making(call) as known:
            if known is not None:
                answer = self._outcome(known.answer, known.failure)
            else:
                placed = [self._positions.resume(trigger) for trigger in triggers]
                stored = [
                    await self._slices.run(serialized(without_secrets(one))) for one in placed
                ]
                self._report(self._awaiting(call, tuple(stored), timeout_us))
                answer = self._outcome(*await self._awaited_answer(call))
            self._positions.note(call.kind, triggers, answer)
            return answer

    async def record(
        self, call: Call, work: Callable[[], Any], annotation: Any, *, in_thread: bool
    ) -> Any:
        call = replace(call, name=portable(call.name))
        async with self._making(call) as known:
            if known is not None:
                return self._outcome(known.answer, known.failure, annotation)
            answer, problem = await self._worked(work, call, in_thread=in_thread)
            failure = None if problem is None else _failure(problem)
            start = self._talk.start
            self._report(
                CallAnswered(
                    start.task_no,
                    start.start_no,
                    self._made,
                    call.kind,
                    call.name,
                    self._source_location(call),
                    answer,
                    failure,
                    _label(call),
                )
            )
            await self._answer()
            if problem is not None:
                raise problem
            return codec.decode(answer, annotation, f"the result of {call.name}")

    async def open_stream(self, call: Call, trigger: Trigger[Any], window: int) -> int:
        async with self._making(call) as known:
            ordinal = self._made
            self._positions.open(ordinal, trigger)
            if known is None:
                start = self._talk.start
                stored = await self._slices.run(serialized(self._positions.resume(trigger)))
                self._report(
                    StreamOpened(
                        start.task_no,
                        start.start_no,
                        ordinal,
                        call.kind,
                        call.name,
                        self._source_location(call),
                        *stored,
                        window,
                        _label(call),
                    )
                )
                await self._answer()
            return ordinal

    async def next_event(self, call: Call, stream: int, timeout_us: int | None) -> tuple[Any, ...]:
        async with self._making(call) as known:
            if known is not None:
                answer, failure = known.answer, known.failure
            else:
                start = self._talk.start
                self._report(
                    NextEventRequested(
                        start.task_no,
                        start.start_no,
                        self._talk.began_at,
                        now(),
                        self._made,
                        call.kind,
                        call.name,
                        self._source_location(call),
                        stream,
                        timeout_us,
                    )
                )
                answer, failure = await self._awaited_answer(call)
            if failure is None and answer is None:
                return ()
            outcome = self._outcome(answer, failure)
            self._positions.took(stream, outcome)
            return (outcome,)

    async def packed(self, steps: Steps[bytes]) -> bytes:
        return await self._slices.run(steps)

    async def emit(self, call: Call, name: str, key: str | None, data: bytes) -> None:
        async with self._making(call) as known:
            if known is None:
                at, start = self._source_location(call), self._talk.start
                made = (start.task_no, start.start_no, self._made, call.kind, call.name, at)
                self._report(EventEmitted(*made, name, key, data))
                await self._answer()

    async def run_dag(
        self, call: Call, dag_id: str, conf: bytes | None, *, waits: bool = True
    ) -> Any:
        async with self._making(call) as known:
            if known is not None:
                return self._outcome(known.answer, known.failure)
            start, began_at = self._talk.start, self._talk.began_at
            made = (self._made, call.kind, call.name, self._source_location(call))
            told = (*made, dag_id, conf, waits)
            self._report(RunCalled(start.task_no, start.start_no, began_at, now(), *told))
            if not waits:
                return self._outcome(*await self._answer())
            return self._outcome(*await self._awaited_answer(call))

    def handle_reply(
        self,
        answer: bytes | None = None,
        failure: Failure | None = None,
        *,
        ordinal: int | None = None,
    ) -> None:
        """Pass the stored answer to the call in flight, unless it is for an earlier ``ordinal``."""
        if ordinal is not None and ordinal != self._made:
            return
        if self._reply is not None and not self._reply.done():
            self._reply.set_result((answer, failure))

    def end(self) -> None:
        """End the calls after the body has returned.

        Raises:
            CallCutShort: If an asyncio task of the body is still suspended in a call. The answer to
                that call would be lost.
        """
        if self._reply is not None:
            self._reply.cancel()
        if self._awaited is not None:
            raise self._cut(self._awaited)

    def explained(self, problem: BaseException) -> BaseException:
        """Return the real cause of an exception that the body raised.

        The cause is either the exception itself or a ``CallCutShort``.
        """
        if self._reply is not None:
            self._reply.cancel()
        cut = self._cut_short if isinstance(problem, asyncio.CancelledError) else None
        if self._awaited is not None and isinstance(problem, Skip | TaskDeferred):
            cut = self._cut(self._awaited)
        return problem if cut is None else cut.with_traceback(problem.__traceback__)

    # ── internals ───────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _making(self, call: Call) -> AsyncIterator[RecordItem | None]:
        """Ensure that only one call is in flight. Yield the record of the call, or ``None``.

        Raises:
            RuntimeError: If another call is in flight.
            CallCutShort: If an earlier call was cut short.
            CallMismatch: If another call is recorded at this position.
            CancelledError: If the try has ended although its code still runs.
        """
        if self._talk.is_over:
            await self._refuse()
        if self._cut_short is not None:
            raise self._cut_short
        if self._under_way is not None:
            raise RuntimeError(
                f"{_shown(call, self._source_location(call))} while {self._under_way.kind}() of "
                f"{self._source_location(self._under_way)} is under way; a task makes one durable "
                "call at a time: wait for several triggers with any_of() or all_of()"
            )
        known = self._known(call)
        self._under_way, self._is_recorded = call, known is not None
        try:
            yield known
        except asyncio.CancelledError:
            self._cut(call)
            raise
        finally:
            self._under_way = None
            self._made += self._is_recorded

    async def _refuse(self) -> NoReturn:
        """Raise ``CancelledError`` once.

        If user code swallowed it, suspend the next call forever.
        """
        if self._is_refused:  # code that calls again in a loop would starve the other coroutines
            await asyncio.get_running_loop().create_future()
        self._is_refused = True
        raise asyncio.CancelledError

    def _known(self, call: Call) -> RecordItem | None:
        """Return the record of a call, or ``None`` if it has none.

        If another call is recorded at this position, act according to ``on_code_change``.
        """
        if not self._recorded:
            return None
        known = self._recorded[0]
        if (known.kind, known.name) == (call.kind, call.name):
            return self._recorded.popleft()
        if self._talk.on_code_change == "keep":
            self._recorded.clear()
            self._drop(self._made)
            return None
        if self._talk.on_code_change == "restart":
            self._drop(0, starts_over=True)
            self._talk.cancel("restarted")
            raise asyncio.CancelledError
        recorded = f"{known.kind}({known.name}) at {known.source_location}"
        raise CallMismatch(self._made, recorded, _shown(call, self._source_location(call)))

    def _drop(self, first: int, *, starts_over: bool = False) -> None:
        start = self._talk.start
        self._talk.report(RecordDropped(start.task_no, start.start_no, first, starts_over))

    def _report(self, report: Report) -> None:
        """Report the call in flight. From then on it counts as made, whatever its outcome."""
        self._talk.report(report)
        self._is_recorded = True

    def _cut(self, call: Call) -> CallCutShort:
        """Forbid further calls, because a replay of this call could have a different outcome.

        Return the error that the further calls raise.
        """
        self._cut_short = CallCutShort(_shown(call, self._source_location(call)))
        return self._cut_short

    async def _awaited_answer(self, call: Call) -> tuple[bytes | None, Failure | None]:
        """Return the answer of a call that suspends the coroutine."""
        self._awaited = call
        answer = await self._answer()
        self._awaited = None
        return answer

    async def _answer(self) -> tuple[bytes | None, Failure | None]:
        self._reply = asyncio.get_running_loop().create_future()
        try:
            return await self._reply
        finally:
            self._reply = None

    def _awaiting(
        self, call: Call, triggers: tuple[tuple[str, bytes], ...], timeout_us: int | None
    ) -> Awaiting:
        start = self._talk.start
        return Awaiting(
            start.task_no,
            start.start_no,
            self._talk.began_at,
            now(),
            self._made,
            call.kind,
            call.name,
            self._source_location(call),
            triggers,
            timeout_us,
            _label(call),
        )

    async def _worked(
        self, work: Callable[[], Any], call: Call, *, in_thread: bool
    ) -> tuple[bytes, Exception | None]:
        """Run the step and return its encoded result.

        If it raised, return the encoded arguments of the exception, and the exception itself.
        """
        try:
            if in_thread:
                context = contextvars.copy_context()
                loop = asyncio.get_running_loop()
                value = await loop.run_in_executor(self._threads, context.run, work)
            else:
                value = work()
            if inspect.isawaitable(value):
                value = await value
            return await self.packed(_encoded(value, call.name)), None
        except _PASSED_ON:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a step raises is its outcome
            return await self.packed(_arguments(exc)), exc

    def _outcome(self, answer: bytes | None, failure: Failure | None, annotation: Any = Any) -> Any:
        if failure is not None:
            raise self._raised(answer, failure)
        return None if answer is None else codec.decode(answer, annotation)

    def _raised(self, arguments: bytes | None, failure: Failure) -> Exception:
        """Rebuild the exception that a call raised. The class is the same if it can be resolved."""
        if failure.reason == "timeout" and failure.type == "TimeoutError":
            return TimeoutError(failure.message)
        try:
            cls = self._talk.find_class(failure.type)
            if isinstance(cls, type) and issubclass(cls, Exception) and arguments is not None:
                made: Exception = cls(*codec.decode(arguments))
                return made
        except Exception as exc:  # noqa: BLE001 - the __init__ of user code may do anything
            return StepFailed(failure.type, f"{failure.message} (made again: {exc!r})")
        return StepFailed(failure.type, failure.message)

    def _source_location(self, call: Call) -> str:
        return str(call.source_location).removeprefix(self._code)


def _encoded(value: object, name: str) -> Steps[bytes]:
    return (yield from codec.in_steps(value, f"the result of {name}", ANSWER_LIMIT))


def _label(call: Call) -> str:
    """Return the label of a call, without the secrets that this process has received."""
    text = masks.masked_text(call.label) if call.label else ""
    return text if len(text) <= LABEL_LENGTH else f"{text[: LABEL_LENGTH - 3]}..."


def _shown(call: Call, source_location: str) -> str:
    return f"{call.kind}({call.name}) at {source_location}"


def _arguments(problem: Exception) -> Steps[bytes]:
    try:
        hidden_args = [hidden(arg) for arg in _arguments_of(problem)]
        where = "the arguments of an exception"
        return (yield from codec.in_steps(hidden_args, where, ANSWER_LIMIT))
    except Unserializable:
        pass
    where = "the message of an exception"
    try:
        return codec.encode([hidden(text_of(problem))], where, ANSWER_LIMIT)
    except Unserializable:
        return codec.encode([failure_of(problem).message], where, ANSWER_LIMIT)


def _arguments_of(problem: Exception) -> tuple[Any, ...]:
    """Return the arguments given by the exception's ``__reduce__``, or else its ``args``."""
    try:
        match problem.__reduce__():
            case (cls, tuple() as arguments, *_) if cls is type(problem):
                return arguments
    except Exception:  # noqa: BLE001, S110 - the __reduce__ of user code may do anything
        pass
    return problem.args


def _failure(problem: Exception) -> Failure:
    try:
        path = class_path(type(problem))
    except Unserializable:
        path = type(problem).__name__
    found = failure_of(problem, "step")
    return Failure(type=path, message=found.message, reason="step")
