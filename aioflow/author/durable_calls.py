"""Durable calls in plain ``async def`` tasks, which survive a crash.

Each call is numbered and recorded. A task that was interrupted runs again from the top, and its
earlier calls return their recorded results immediately, in the same order. A named event that a
task emits is received by every wait for that name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, overload
from uuid import UUID, uuid4

from aioflow.author import codec
from aioflow.author.codec import Steps, run_steps, start_steps
from aioflow.author.decode import type_hints
from aioflow.author.duration import Duration, microseconds
from aioflow.author.source_location import SourceLocation, dag_error, here
from aioflow.author.trigger import Trigger
from aioflow.errors import BadEvent, ValueTooLarge

__all__ = (
    "EVENT_LIMIT",
    "EVENT_NAME_LENGTH",
    "LABEL_LENGTH",
    "AllOf",
    "AnyOf",
    "Call",
    "Calls",
    "all_of",
    "any_of",
    "calls",
    "checked_event",
    "current_calls",
    "emit",
    "now",
    "sleep",
    "step",
    "stream",
    "uuid",
    "wait",
)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

WINDOW_LIMIT = 1_000

TRIGGERS_LIMIT = 100
"""Maximum number of triggers in one call."""

LABEL_LENGTH = 200
"""Maximum number of characters that are stored of a label; longer ones are cut."""


@dataclass(frozen=True)
class AnyOf(Generic[T]):
    """Several triggers. The first event of any of them is the result. Made by ``any_of``."""

    triggers: tuple[Trigger[T], ...]


@dataclass(frozen=True)
class AllOf(Generic[T]):
    """Several triggers. Each of them must yield an event. Made by ``all_of``."""

    triggers: tuple[Trigger[T], ...]


@dataclass(frozen=True)
class Call:
    """A durable call. When it is made again, it is compared with its record.

    Attributes:
        kind: ``wait``, ``any_of``, ``all_of``, ``ask_person``, ``stream``, ``next``, ``sleep``,
            ``step``, ``now``, ``uuid``, ``emit``, ``run_dag``, ``start_dag``.
        name: The trigger classes, the function or the DAG.
        source_location: The line that made the call.
        label: What the call is for, in the words of its author. Only shown, never compared.
    """

    kind: str
    name: str
    source_location: SourceLocation
    label: str = field(default="", compare=False)


class Calls(Protocol):
    """Records the durable calls of one task. Provided by the process that runs the task."""

    async def await_triggers(
        self, call: Call, triggers: tuple[Trigger[Any], ...], timeout_us: int | None
    ) -> Any:
        """Suspend the task until the call is answered; return the decoded answer."""
        ...

    async def open_stream(self, call: Call, trigger: Trigger[Any], window: int) -> int:
        """Start a trigger that yields several events; return the number of this call."""
        ...

    async def next_event(self, call: Call, stream: int, timeout_us: int | None) -> tuple[Any, ...]:
        """Return a tuple with the payload of the stream's next event; empty after the last one."""
        ...

    async def record(
        self, call: Call, work: Callable[[], Any], annotation: Any, *, in_thread: bool
    ) -> Any:
        """Return the recorded result of ``work``, or run it and record its result."""
        ...

    async def packed(self, steps: Steps[bytes]) -> bytes:
        """Encode the data of a call; a large value does not block the event loop for long."""
        ...

    async def emit(self, call: Call, name: str, key: str | None, data: bytes) -> None:
        """Store a named event."""
        ...

    async def run_dag(
        self, call: Call, dag_id: str, conf: bytes | None, *, waits: bool = True
    ) -> Any:
        """Start a run and return its outcome. The task is suspended until the run has ended.

        With ``waits=False``, return the id of the run at once.
        """
        ...


calls: ContextVar[Calls] = ContextVar("calls")
"""The recorder of the running task's durable calls. Set around each ``async def`` task."""


# The functions below are plain functions that return an awaitable, so that they know the line that
# called them even if an asyncio task awaits the result.


@overload
def wait(
    what: AnyOf[T], *, timeout: Duration | None = None, label: str | None = None
) -> Coroutine[Any, Any, tuple[int, T]]: ...
@overload
def wait(
    what: AllOf[T], *, timeout: Duration | None = None, label: str | None = None
) -> Coroutine[Any, Any, list[T]]: ...
@overload
def wait(
    what: Trigger[T], *, timeout: Duration | None = None, label: str | None = None
) -> Coroutine[Any, Any, T]: ...
def wait(
    what: Trigger[T] | AnyOf[T] | AllOf[T],
    *,
    timeout: Duration | None = None,
    label: str | None = None,
) -> Coroutine[Any, Any, Any]:
    """Wait for a trigger's event, without using a slot, and return its payload.

    Args:
        what: A trigger; or ``any_of(...)``, which returns ``(index, payload)`` of the first event;
            or ``all_of(...)``, which returns the payloads of all, in order.
        timeout: How long to wait.
        label: What the task waits for in words, such as ``"the bank's answer"``. It is shown first
            wherever the wait is shown. A replay does not compare it, so it may change.

    Raises:
        TimeoutError: If no event arrived in time.
        RuntimeError: Outside an ``async def`` task, or while another durable call of the task is
            in flight.
        CallCutShort: If the task itself has cancelled an earlier durable call.
    """
    limit = None if timeout is None else microseconds(timeout, "timeout")
    match what:
        case AnyOf(triggers):
            return _first(_await("any_of", triggers, limit, here(), label))
        case AllOf(triggers):
            return _await("all_of", triggers, limit, here(), label)
        case Trigger():
            return _await("wait", (what,), limit, here(), label)
    raise TypeError(f"wait() takes a Trigger, any_of() or all_of(), not {type(what).__name__}")


class stream(AsyncIterator[T]):  # noqa: N801 - it is called and iterated, like `range`
    """Every event of a trigger, in order, each once: ``async for event in stream(trigger)``.

    The trigger continues while the task handles an event. It may be at most ``window`` events ahead
    of the store. Stored events wait for the task. When the task ends, the trigger is stopped. After
    a crash, events that were handled earlier are replayed from the record, in the same order.

    Args:
        timeout: How long to wait for each event.
        window: From 1 to 1,000. With 1, a ``yield`` of the trigger returns once its event is
            stored.
        label: What the task waits for in words; see ``wait``.

    Raises:
        TimeoutError: If no event arrived in time; the stream can still be continued.
    """

    def __init__(
        self,
        trigger: Trigger[T],
        *,
        timeout: Duration | None = None,
        window: int = 64,
        label: str | None = None,
    ) -> None:
        if not isinstance(trigger, Trigger):
            raise dag_error(f"stream() takes a trigger, got a {type(trigger).__name__}")
        if type(trigger).__name__ == "PersonTrigger":
            raise dag_error("a PersonTrigger has one event; wait for it, or use ask_person()")
        if not 1 <= window <= WINDOW_LIMIT:
            raise dag_error(f"stream(window=) takes 1 to {WINDOW_LIMIT}, got {window}")
        self._trigger = trigger
        self._timeout_us = None if timeout is None else microseconds(timeout, "timeout")
        self._window = window
        self._label = _checked_label("stream", label)
        self._ordinal = -1

    def __aiter__(self) -> Self:
        """Return the stream itself. A second loop continues where the first one stopped."""
        return self

    def __anext__(self) -> Coroutine[Any, Any, T]:
        """Return an awaitable for the next event."""
        return self._next(here())

    async def _next(self, source_location: SourceLocation) -> T:
        made, name = current_calls("stream"), type(self._trigger).__qualname__
        if self._ordinal < 0:
            opening = Call("stream", name, source_location, self._label)
            self._ordinal = await made.open_stream(opening, self._trigger, self._window)
        call = Call("next", f"{name}#{self._ordinal}", source_location)
        events: tuple[T, ...] = await made.next_event(call, self._ordinal, self._timeout_us)
        if not events:
            raise StopAsyncIteration
        return events[0]


@overload
def any_of(*triggers: Trigger[T]) -> AnyOf[T]: ...
@overload
def any_of(*triggers: Trigger[Any]) -> AnyOf[Any]: ...
def any_of(*triggers: Trigger[Any]) -> AnyOf[Any]:
    """Wait for the first event of any trigger.

    The other triggers are stopped in the transaction that stores the event.
    """
    return AnyOf(_several("any_of", triggers))


@overload
def all_of(*triggers: Trigger[T]) -> AllOf[T]: ...
@overload
def all_of(*triggers: Trigger[Any]) -> AllOf[Any]: ...
def all_of(*triggers: Trigger[Any]) -> AllOf[Any]:
    """Wait for an event of each trigger."""
    return AllOf(_several("all_of", triggers))


def sleep(duration: Duration, *, label: str | None = None) -> Coroutine[Any, Any, None]:
    """Sleep, even across restarts: the duration counts from the first time the call is made.

    Args:
        label: What the task sleeps for in words, such as ``"the cooling-off period"``; see
            ``wait``.

    Raises:
        BadSchedule: If ``duration`` is not a duration.
    """
    return _await("sleep", (), microseconds(duration, "duration"), here(), label)


@overload
def step(
    fn: Callable[..., Coroutine[Any, Any, R]], /, *args: Any, label: str, **kwargs: Any
) -> Coroutine[Any, Any, R]: ...
@overload
def step(
    fn: Callable[..., R], /, *args: Any, label: str, **kwargs: Any
) -> Coroutine[Any, Any, R]: ...
@overload
def step(
    fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
) -> Coroutine[Any, Any, R]: ...
@overload
def step(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...
def step(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
    """Call a function once: its result is recorded, and replayed if the task runs again.

    If the process dies before the result is recorded, the function may run again. A ``def`` runs
    in a thread. The result must be serializable and take at most 1 MiB. It is converted to the
    function's return annotation, whether it is new or from the record. An exception is also
    recorded, and raised again by a replay, except ``Skip``, ``Fail`` and ``RetryAfter``.

    Args:
        label: What the step does in words, such as ``"charge the card"``. A replay does not compare
            it. It is not passed to the function.

    Returns:
        The return value of the function, awaited for an ``async def``.

    Raises:
        TypeError: If the function itself has a parameter ``label``. Bind that parameter with
            ``functools.partial`` instead.
    """
    label = kwargs.pop("label", None)
    if label is not None and _has_parameter(fn, "label"):
        raise TypeError(
            f"step() takes label= itself, and {getattr(fn, '__qualname__', fn)!s} has a parameter "
            "of that name; pass it with functools.partial(), or rename it"
        )
    name = f"{getattr(fn, '__module__', '')}:{getattr(fn, '__qualname__', type(fn).__name__)}"
    in_thread = not inspect.iscoroutinefunction(fn)
    annotation = type_hints(fn).get("return", Any)
    work = functools.partial(fn, *args, **kwargs)
    return _record("step", name, work, annotation, here(), in_thread=in_thread, label=label)


def now() -> Coroutine[Any, Any, datetime]:
    """Return the time in UTC. It is recorded, so it is the same when the task runs again."""
    return _record("now", "now", _utc_now, datetime, here())


def uuid() -> Coroutine[Any, Any, UUID]:
    """Return a random UUID. It is recorded, so it is the same when the task runs again."""
    return _record("uuid", "uuid", uuid4, UUID, here())


def _several(kind: str, triggers: tuple[Trigger[T], ...]) -> tuple[Trigger[T], ...]:
    if not 1 <= len(triggers) <= TRIGGERS_LIMIT:
        raise dag_error(f"{kind}() takes 1 to {TRIGGERS_LIMIT} triggers, got {len(triggers)}")
    for trigger in triggers:
        if not isinstance(trigger, Trigger):
            raise dag_error(f"{kind}() takes triggers, got a {type(trigger).__name__}")
    return triggers


async def _await(
    kind: str,
    triggers: tuple[Trigger[Any], ...],
    timeout_us: int | None,
    source_location: SourceLocation,
    label: str | None,
) -> Any:
    name = ", ".join(type(trigger).__qualname__ for trigger in triggers)
    call = Call(kind, name, source_location, _checked_label(kind, label))
    return await current_calls(kind).await_triggers(call, triggers, timeout_us)


async def _first(answer: Coroutine[Any, Any, list[Any]]) -> tuple[Any, ...]:
    return tuple(await answer)


async def _record(
    kind: str,
    name: str,
    work: Callable[[], Any],
    annotation: Any,
    source_location: SourceLocation,
    *,
    in_thread: bool = False,
    label: str | None = None,
) -> Any:
    call = Call(kind, name, source_location, _checked_label(kind, label))
    return await current_calls(kind).record(call, work, annotation, in_thread=in_thread)


def _checked_label(kind: str, label: object) -> str:
    """Return a label in one line; empty for ``None``.

    It is cut to ``LABEL_LENGTH`` characters after its secrets are masked: half a secret has no
    mask.

    Raises:
        TypeError: If it is not a text.
    """
    if label is None:
        return ""
    if not isinstance(label, str):
        raise TypeError(f"{kind}(label=) takes a string, got a {type(label).__name__}")
    return " ".join(label.replace("\0", " ").split())


def _has_parameter(fn: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False


def current_calls(kind: str, *, instead: str = "a `def` task waits by Operator.defer()") -> Calls:
    """Return the recorder of durable calls for the current task.

    Args:
        kind: The name of the called function, for the error.
        instead: The alternative that the error suggests.

    Raises:
        RuntimeError: Outside an ``async def`` task.
    """
    try:
        return calls.get()
    except LookupError:
        raise RuntimeError(
            f"{kind}() works in `async def` tasks that aioflow runs, and nowhere else; {instead}"
        ) from None


def _utc_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the time of the user's code, in its process


EVENT_LIMIT = 1024 * 1024
"""Maximum size of an event with its name and key, in bytes of msgpack."""

EVENT_NAME_LENGTH = 250
"""Maximum length of a name, and of a key, in characters."""

_FRAME_BYTES = 64  # overhead when a trigger passes the event on

_INSTEAD_OF_EMIT = (
    "make the task `async def`, or use `aioflow events emit` or POST /api/v1/events/NAME"
)


def emit(name: str, *, key: str | None = None, data: object = None) -> Coroutine[Any, Any, None]:
    """Emit a named event. Must be awaited.

    A durable call: the event is stored in the same transaction as the record of this call. So it is
    emitted exactly once, however often the task runs again from the top. An event ``approved``
    resumes every task that waits with ``EventTrigger("approved")``. It is also received by a task
    that begins to wait later, if its run was created before the event.

    Args:
        name: 1 to 250 printable characters.
        key: Distinguishes events with the same name; 1 to 250 printable characters.
        data: Any serializable value. Name, key and data together may take at most 1 MiB.

    Raises:
        RuntimeError: Outside an ``async def`` task: in a ``def`` task, or in a ``def`` function
            that ``step`` calls.
        BadEvent: If the name or key is invalid, or the event is too large.
        Unserializable: If the data cannot be serialized.
    """
    import asyncio  # imported late: a DAG file that only describes tasks does not need it

    made = current_calls("emit", instead=_INSTEAD_OF_EMIT)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            f"emit() was called in a thread, as in a `def` step; {_INSTEAD_OF_EMIT}"
        ) from None
    call = Call("emit", "emit", here())
    return _emit(made, call, name, key, start_steps(_checked_data(name, key, data)))


async def _emit(made: Calls, call: Call, name: str, key: str | None, data: Steps[bytes]) -> None:
    await made.emit(call, name, key, await made.packed(data))


def checked_event(name: str, key: str | None, data: object) -> bytes:
    """Return the msgpack of an event's data.

    Raises:
        BadEvent: If the name or key is invalid, or the event is too large.
        Unserializable: If the data cannot be serialized.
    """
    return run_steps(_checked_data(name, key, data))


def _checked_data(name: str, key: str | None, data: object) -> Steps[bytes]:
    _check_event_name(name, "name")
    if key is not None:
        _check_event_name(key, "key")
    room = EVENT_LIMIT - len(name.encode()) - len((key or "").encode()) - _FRAME_BYTES
    try:
        return (yield from codec.in_steps(data, f"the data of event {name!r}", room))
    except ValueTooLarge as exc:
        raise BadEvent(str(ValueTooLarge(exc.where, EVENT_LIMIT))) from None


def _check_event_name(text: object, what: str) -> None:
    good = isinstance(text, str) and 0 < len(text) <= EVENT_NAME_LENGTH and text.isprintable()
    if not good:
        raise BadEvent(f"the {what} of an event is 1 to {EVENT_NAME_LENGTH} printable characters")
