"""Triggers: stored as plain data, and run as coroutines in the triggerer."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

from aioflow.author import codec
from aioflow.author.annotations import hints
from aioflow.author.decode import is_plain
from aioflow.author.duration import Duration, as_timedelta
from aioflow.author.event import TriggerEvent
from aioflow.author.fields import check_fields
from aioflow.author.steps import Steps, at_once
from aioflow.author.watch import Share, alone
from aioflow.errors import Unserializable
from aioflow.model.ids import TriggerNo

__all__ = (
    "FIELDS_LIMIT",
    "MODULE_PREFIX",
    "Trigger",
    "TriggerEvent",
    "class_path",
    "construct",
    "never_yields",
    "portable",
    "prepare",
    "serialize",
    "serialized",
    "set_last_event",
    "shares",
)

FIELDS_LIMIT = 1024 * 1024
"""Limit for a trigger's fields, and for the arguments of the resume method, in bytes of msgpack."""

T = TypeVar("T")


class Trigger(Generic[T]):
    """Waits for a condition. Derive a dataclass from it; its fields are stored.

    A class with its own ``__init__`` must define ``serialize()``. ``T`` is the type of the
    payloads.
    """

    public_fields: ClassVar[Sequence[str]] = ()
    """Names of the fields that viewers may read; all others are masked."""

    _hosted_since: datetime | None = None
    _hosted_since_us: int | None = None
    _hosted_last: TriggerEvent[T] | None = None
    _hosted_number: TriggerNo | None = None
    _hosted_check: tuple[datetime, datetime | None, str] | None = None

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Check the fields, so that an invalid one raises on the author's line.

        Raises:
            Unserializable: If a field cannot be serialized; the error names it.
            WrongField: If a field does not match its annotation.
        """
        is_written = not _is_restored.get()
        has_own = cls.serialize is not Trigger.serialize
        if is_written and dataclasses.is_dataclass(cls) and not has_own:
            check_fields(cls, args, kwargs)
        return super().__new__(cls)

    def run(self) -> AsyncIterator[TriggerEvent[T]]:
        """Yield an event when the condition is met. Written ``async def`` with ``yield``.

        Ending without an event, or raising, fails the task. Not required in a class with
        ``share``.
        """
        share = self.share()
        if share is None:
            raise NotImplementedError(f"{type(self).__name__} needs a method run()")
        return alone(share)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path, ``module.Name``, and the arguments that recreate the trigger.

        For a dataclass these are its fields. A class with its own ``__init__`` overrides this.

        Raises:
            Unserializable: If such a class does not override it.
        """
        cls = type(self)
        return portable(f"{cls.__module__}.{cls.__qualname__}"), _fields(self)

    def share(self) -> Share | None:
        """Return the watch and the key that this trigger shares with others, or ``None``.

        If it returns a watch, the trigger is held as data, its first event ends it, and ``run`` is
        not called. If it returns ``None``, the default, ``run`` is called; for a stream ``run`` is
        always called. Called once each time the trigger starts in a process; ``since`` is set.
        """
        return None

    async def cleanup(self, reason: str) -> None:
        """Release the resources of ``run``. Called once each time it ends, with a time limit.

        Args:
            reason: ``finished``, ``cancelled``, ``timeout``, ``reassigned``, ``paused`` or
                ``shutdown``.
        """

    async def on_kill(self) -> None:
        """Cancel work in external systems. Called only when a user cancels the task."""

    def describe(self) -> str:
        """Return a readable description of the condition, such as ``for the booking 4711``.

        Visible to everyone who may view the DAG, in ``runs why``, ``triggers list``, the API and
        the UI, so it must not contain secrets. Called on the event loop, so it must not block:
        each time it is displayed, or once per start if the trigger shares a watch. If empty, the
        default, the class and its public fields are shown.
        """
        return ""

    def note_check(self, found: str = "", *, next_in: Duration | None = None) -> None:
        """Record that the condition was checked just now, to show users the progress.

        Args:
            found: The result of the check in a few words: ``1 of 2 found``. No secrets.
            next_in: The time until the next check.
        """
        now = datetime.now(UTC)  # noqa: TID251 - the time of the user's code, in its process
        following = None if next_in is None else now + as_timedelta(next_in, "next_in")
        object.__setattr__(self, "_hosted_check", (now, following, found))

    def series(self) -> str | None:
        """Return a name for a series of waits in one task, in which each event is used once.

        If the previous wait of the same ``async def`` task has the same class and name, the next
        one is made by ``behind``, from its payload. ``None``: waits are independent.
        """
        return None

    def behind(self, payload: T) -> Trigger[T]:
        """Return the trigger that waits for what follows this event; see ``series``."""
        return self

    @property
    def since(self) -> datetime:
        """When its task began to wait, in UTC; unchanged when the trigger restarts.

        Raises:
            RuntimeError: If the trigger is not running.
        """
        if self._hosted_since is None:
            raise RuntimeError("a trigger knows `since` only while it is hosted")
        return self._hosted_since

    @property
    def since_monotonic(self) -> float:
        """Like ``since``, on the clock of the event loop. Use it to measure durations.

        ``loop.time() - self.since_monotonic`` is the number of seconds that its task has waited,
        also after a restart. Changes of the wall clock do not affect it.

        Raises:
            RuntimeError: If the trigger is not running.
        """
        if self._hosted_since_us is None:
            raise RuntimeError("a trigger knows `since_monotonic` only while it is hosted")
        return self._hosted_since_us / 1e6

    @property
    def last(self) -> TriggerEvent[T] | None:
        """Its last stored event, also from before a restart; only a stream has one.

        The payload is restored, except that dataclasses and the like are dicts.
        """
        return self._hosted_last

    @property
    def log(self) -> logging.Logger:
        """A logger that writes to the log of the waiting task."""
        return logging.getLogger(f"aioflow.trigger.{type(self).__name__}")


def prepare(
    trigger: Trigger[T],
    *,
    since: datetime,
    since_us: int | None = None,
    last: TriggerEvent[T] | None = None,
    number: TriggerNo | None = None,
) -> Trigger[T]:
    """Set the run-time state of a trigger, and return the trigger.

    Args:
        since_us: ``since`` on the monotonic clock, in microseconds.
    """
    # Works for frozen dataclasses too, as these are not fields. Assigning through vars() would
    # create the instance's __dict__, which is otherwise created only on demand.
    object.__setattr__(trigger, "_hosted_since", since)
    object.__setattr__(trigger, "_hosted_since_us", since_us)
    object.__setattr__(trigger, "_hosted_number", number)
    if last is not None:
        object.__setattr__(trigger, "_hosted_last", last)
    return trigger


def set_last_event(trigger: Trigger[T], event: TriggerEvent[T]) -> None:
    """Set the last stored event of a trigger."""
    object.__setattr__(trigger, "_hosted_last", event)


def shares(cls: type[Trigger[Any]]) -> bool:
    """Return whether triggers of a class take part in watches.

    False if a subclass overrides ``run`` of a class with ``share``: then its ``run`` is used.
    """
    for above in cls.__mro__:
        if "share" in vars(above):
            return above is not Trigger
        if "run" in vars(above):
            return False
    return False


def never_yields(cls: type[Trigger[Any]]) -> str:
    """Return why triggers of a class can never yield an event; empty if they can.

    A ``run`` that is a plain ``def`` may return an async iterator.
    """
    if cls.run is Trigger.run and not shares(cls):
        return f"{cls.__name__} needs a method run()"
    if inspect.iscoroutinefunction(cls.run) or inspect.isgeneratorfunction(cls.run):
        return f"{cls.__name__}.run must be `async def` with a yield"
    return ""


MODULE_PREFIX = "aioflow_v_"
"""Prefix of the packages for modules loaded by version; see ``worker.loader``."""


def portable(class_path: str) -> str:
    """Return the path by which another process, with other package names, finds the class."""
    return class_path.partition(".")[2] if class_path.startswith(MODULE_PREFIX) else class_path


def class_path(cls: type[object]) -> str:
    """Return ``module:Qualname``, by which any process with the code finds the class.

    Raises:
        Unserializable: If no other process could find the class.
    """
    if "<locals>" in cls.__qualname__:
        raise Unserializable(
            cls.__qualname__, "class defined inside a function", "define it at module level"
        )
    return portable(f"{cls.__module__}:{cls.__qualname__}")


def serialize(trigger: Trigger[Any]) -> tuple[str, bytes]:
    """Return the class path of a trigger and the msgpack of its fields.

    Recreates the trigger as a check, so that an error is raised where the trigger was written.

    Raises:
        ValueTooLarge: If the fields exceed ``FIELDS_LIMIT`` bytes.
        Unserializable: If a field cannot be serialized, or the trigger cannot be recreated.
    """
    return at_once(serialized(trigger))


def serialized(trigger: Trigger[Any]) -> Steps[tuple[str, bytes]]:
    """Serialize like ``serialize``, in steps that do not block the event loop for long."""
    cls = type(trigger)
    path = class_path(cls)
    written = getattr(trigger, "serialize", None)
    if written is not None:
        named, kwargs = written()
        if named.rpartition(".")[2] != cls.__name__:
            path = portable(":".join(named.rpartition(".")[::2]))
    else:
        kwargs = _fields(trigger)
    data = yield from codec.fields_in_steps(kwargs, cls.__name__, FIELDS_LIMIT)
    if path == class_path(cls):
        construct(cls, data)
    return path, data


def construct(cls: type[Trigger[Any]], kwargs: bytes) -> Trigger[Any]:
    """Create a trigger from stored fields, each converted to its annotation.

    Raises:
        Unserializable: If the class does not accept the fields, perhaps since a code change.
    """
    name = cls.__name__
    annotations = _annotations.get(cls)
    if annotations is None:
        annotations = _annotations[cls] = _annotations_of(cls)
    fields = codec.decode_fields(kwargs, annotations, name)
    token = _is_restored.set(True)
    try:
        return cls(**fields)
    except (TypeError, ValueError) as exc:
        reason = _misfit(cls, fields) or exc
        raise Unserializable(name, "trigger", f"cannot be made of its fields: {reason}") from exc
    finally:
        _is_restored.reset(token)


def _misfit(cls: type[Trigger[Any]], fields: Mapping[str, object]) -> str:
    """Return which field is missing. Called only after a failure, as it is slow."""
    try:
        inspect.signature(cls).bind(**fields)
    except (TypeError, ValueError) as exc:
        return str(exc)
    return ""


_is_restored: ContextVar[bool] = ContextVar("is_restored", default=False)
"""Set while a trigger is created from stored fields, to skip the checks of its fields."""

_annotations: WeakKeyDictionary[type, Mapping[str, Any]] = WeakKeyDictionary()
"""Cached, as resolving takes ten times as long as creating one of thousands of triggers."""


def _annotations_of(cls: type[Trigger[Any]]) -> Mapping[str, Any]:
    """Return the annotations of a class for which restoring can change a stored value."""
    annotations = hints(cls.__init__)
    if dataclasses.is_dataclass(cls):
        annotations = hints(cls)
    return {name: kind for name, kind in annotations.items() if not is_plain(kind)}


def _fields(trigger: Trigger[Any]) -> dict[str, object]:
    if dataclasses.is_dataclass(trigger):
        return {f.name: getattr(trigger, f.name) for f in dataclasses.fields(trigger) if f.init}
    if type(trigger).__init__ is object.__init__:
        return {}
    raise Unserializable(
        type(trigger).__name__,
        "trigger with an __init__ of its own",
        "make it a dataclass, or define serialize()",
    )
