"""A trigger in this process, as a separate coroutine or as data in a watch, and its events."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Hashable
from sys import intern
from typing import Any

from aioflow.author import codec
from aioflow.author.codec import Steps
from aioflow.author.deferral import EndEvent, TaskFailedEvent, TaskSuccessEvent
from aioflow.author.trigger import Trigger, TriggerEvent, set_last_event
from aioflow.errors import ValueTooLarge
from aioflow.model.states import Failure
from aioflow.protocol.commands import StartTask, StartTrigger
from aioflow.results import INLINE_LIMIT
from aioflow.worker.failures import one_line
from aioflow.worker.task_supervisor import UserCoroutine

__all__ = (
    "KEY_LIMIT",
    "PAYLOAD_LIMIT",
    "Flow",
    "HostedTrigger",
    "Kind",
    "Kinds",
    "TriggerWrong",
    "Wait",
    "checked_event",
    "events_of",
    "payload_of",
)


class Kind:
    """Data common to the running triggers of one class and version, shared to save memory.

    Attributes:
        count: Number of running triggers.
        run_no: Run of the latest trigger, because triggers started together mostly belong to the
            same run.
        public: Fields that the class declares public; known once an instance has been created.
    """

    __slots__ = ("class_path", "count", "newest", "public", "run_no", "version")

    def __init__(self, class_path: str, version: str, newest: str) -> None:
        self.class_path = class_path
        self.version = version
        self.newest = newest
        self.count = 0
        self.run_no = 0
        self.public: tuple[str, ...] = ()


class Kinds:
    """The kinds of all triggers that are running."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], Kind] = {}

    def add(self, command: StartTrigger) -> Kind:
        """Count a trigger. Return its kind."""
        key = (command.class_path, command.version, command.newest)
        kind = self._known.get(key)
        if kind is None:
            kind = self._known[key] = Kind(*key)
        kind.count += 1
        if kind.run_no != command.run_no:
            kind.run_no = command.run_no
        return kind

    def remove(self, kind: Kind) -> None:
        """Subtract a trigger from the count of its kind."""
        kind.count -= 1
        if not kind.count:
            del self._known[kind.class_path, kind.version, kind.newest]

    def versions(self) -> set[str]:
        """Return the code versions of all running triggers."""
        kinds = self._known.values()
        return {kind.version for kind in kinds} | {kind.newest for kind in kinds}


class Wait:
    """A trigger held as data, without an instance: an entry in a watch.

    Attributes:
        wanted: The key that the trigger waits for in the watch.
        watch: Its watch; ``None`` once the key was found or is no longer watched.
        command: The command that started the trigger, if an instance is needed to end it; ``None``
            otherwise.
    """

    __slots__ = ("assignment_id", "command", "kind", "number", "run_no", "wanted", "watch")

    def __init__(self, command: StartTrigger, kind: Kind, wanted: Hashable, *, keep: bool) -> None:
        self.number = command.trigger_no
        self.assignment_id = command.assignment_id
        self.run_no = kind.run_no if kind.run_no == command.run_no else command.run_no
        self.kind = kind
        self.wanted = wanted
        self.watch: Any = None
        self.command = command if keep else None

    @property
    def key(self) -> tuple[int, int]:
        """The key of the trigger's log."""
        return self.number, self.assignment_id


class Flow:
    """Flow control of a stream: limits the number of events that are not stored yet.

    Attributes:
        window: Maximum number of unstored events.
        sent: Number of events reported.
        stored: Number of events stored, as confirmed by the daemon.
        unstored: Events that were reported but not yet confirmed as stored.
    """

    __slots__ = ("_window_open", "sent", "stored", "unstored", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.sent = 0
        self.stored = 0
        self.unstored: deque[TriggerEvent[Any]] = deque()
        self._window_open: asyncio.Future[None] | None = None

    def take(self, upto: int, trigger: Trigger[Any] | None) -> None:
        """Record that events before ``upto`` are stored. Resume the stream if it waits for that."""
        for _ in range(upto - self.stored):
            if self.unstored and trigger is not None:
                set_last_event(trigger, self.unstored.popleft())
        self.stored = max(self.stored, upto)
        if self._window_open is not None and not self._window_open.done():
            self._window_open.set_result(None)

    async def wait_for_window(self) -> None:
        """Wait until the number of unstored events is below the window."""
        while self.sent - self.stored >= self.window:
            self._window_open = asyncio.get_running_loop().create_future()
            try:
                await self._window_open
            finally:
                self._window_open = None


class HostedTrigger(UserCoroutine):
    """A trigger that runs as a supervised coroutine.

    Attributes:
        stage: The failure reason to report if user code raises now.
        is_over: Whether it has fired or failed and is cleaning up. It must not be cancelled then.
        failure: Why its assignment failed; ``None`` if it did not.
        flow: Flow control, if it is a stream.
        dag_id: The DAG of its task.
        task_key: The task index and ``map_index`` of its task.
        start: The execution of the task, whose result it may have to write.
        trigger: The instance, once created.
        is_data: Whether it continues as a ``Wait``. This coroutine must not report its end then.
    """

    __slots__ = (
        "_number",
        "assignment_id",
        "dag_id",
        "failure",
        "flow",
        "is_data",
        "is_over",
        "kind",
        "run_no",
        "stage",
        "start",
        "task_key",
        "trigger",
    )

    def __init__(self, command: StartTrigger, kind: Kind, stage: str) -> None:
        super().__init__()
        self._number = command.trigger_no
        self.assignment_id = command.assignment_id
        self.run_no = kind.run_no if kind.run_no == command.run_no else command.run_no
        self.dag_id = intern(command.dag_id)
        self.task_key = (command.task_index, command.map_index)
        self.kind = kind
        self.stage = stage
        self.is_over = False
        self.is_data = False
        self.failure: Failure | None = None
        self.flow = Flow(command.window) if command.window else None
        self.start: StartTask | None = command.start
        self.trigger: Trigger[Any] | None = None

    @property
    def number(self) -> int:
        """The number of the trigger, also in the crash recorder."""
        return self._number

    @property
    def key(self) -> tuple[int, int]:
        """The key of the trigger's log."""
        return self._number, self.assignment_id

    def enter(self, stage: str) -> None:
        """Enter a stage. Its name is the failure reason if user code raises from now on."""
        self.stage = stage

    def take(self, upto: int) -> None:
        """Record that the events before ``upto`` are stored."""
        if self.flow is not None:
            self.flow.take(upto, self.trigger)


PAYLOAD_LIMIT = 1024 * 1024
"""Maximum payload of an event, in bytes of msgpack."""

KEY_LIMIT = 1024
"""Maximum bytes of an event's key in UTF-8."""


class TriggerWrong(Exception):
    """Raised if a trigger did not follow the rules for triggers.

    Attributes:
        reason: Machine-readable reason, for the failure.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def events_of(made: object, name: str) -> AsyncIterator[object]:
    """Return the result of ``run`` as an async iterator.

    Raises:
        TriggerWrong: If the result is not an async iterator. The message explains the mistake.
    """
    if inspect.iscoroutine(made):
        # An `async def run` without a yield. Run it, because the outcome shows which mistake was
        # made.
        returned = await made
        if isinstance(returned, TriggerEvent):
            raise TriggerWrong(
                "trigger_yield", f"{name}.run returned its event; it must yield it instead"
            )
        if isinstance(returned, AsyncIterator):
            return returned
        raise TriggerWrong("trigger_ended", f"{name}.run ended without an event: it has no yield")
    if isinstance(made, AsyncIterator):
        return made
    raise TriggerWrong(
        "trigger_yield", f"{name}.run must be `async def` with a yield, not {type(made).__name__}"
    )


def checked_event(event: object, name: str) -> TriggerEvent[object]:
    """Return the yielded object if it is an event with a valid key.

    Raises:
        TriggerWrong: If the object is not an event, or its key is invalid.
    """
    if not isinstance(event, TriggerEvent):
        raise TriggerWrong(
            "trigger_yield",
            f"{name} yielded a {type(event).__name__}; wrap it: `yield TriggerEvent(...)`",
        )
    if event.key is not None:
        _check_key(event.key, name)
    return event


def payload_of(event: TriggerEvent[object], name: str) -> Steps[bytes]:
    """Encode the payload of an event. If the event fails the task, encode its message.

    Raises:
        TriggerWrong: If the encoded value is too large.
        Unserializable: If the value cannot be encoded.
    """
    # The result of a task is stored inline in its row.
    limit = INLINE_LIMIT if isinstance(event, TaskSuccessEvent) else PAYLOAD_LIMIT
    told = event.result if isinstance(event, EndEvent) else event.payload
    try:
        payload = yield from codec.in_steps(told, f"the event of {name}", limit)
    except ValueTooLarge as exc:
        raise TriggerWrong("payload_too_large", str(exc)) from None
    match event:
        case TaskFailedEvent():
            said = f"{name} gave no reason" if told is None else str(told)
            return codec.encode(one_line(said), name, limit)
        case TaskSuccessEvent() if told is None:
            return b""
        case _:
            return payload


def _check_key(key: object, name: str) -> None:
    if not isinstance(key, str):
        raise TriggerWrong("trigger_yield", f"the key of {name}'s event must be text")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as exc:
        raise TriggerWrong(
            "trigger_yield", f"the key of {name}'s event is not valid text: {exc}"
        ) from exc
    if size > KEY_LIMIT:
        raise TriggerWrong(
            "payload_too_large",
            f"the key of {name}'s event has {size} bytes, {KEY_LIMIT} are allowed",
        )
