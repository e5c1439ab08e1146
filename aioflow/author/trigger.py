"""What waits: small objects that are data at rest and a coroutine while they are hosted."""

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
    "note_last",
    "portable",
    "prepare",
    "serialize",
    "serialized",
    "shares",
)

FIELDS_LIMIT = 1024 * 1024
"""Bytes of msgpack the fields of a trigger may have, and the arguments of the method behind it."""

T = TypeVar("T")


class Trigger(Generic[T]):
    """A wait. Derive a dataclass from it; its fields are what is stored.

    A class with an ``__init__`` of its own defines ``serialize()``. ``T`` is the type of the
    payloads.
    """

    public_fields: ClassVar[Sequence[str]] = ()
    """Names of the fields that viewers may read; the others are masked."""

    _hosted_since: datetime | None = None
    _hosted_since_us: int | None = None
    _hosted_last: TriggerEvent[T] | None = None
    _hosted_number: TriggerNo | None = None
    _hosted_check: tuple[datetime, datetime | None, str] | None = None

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Refuse a field that cannot travel, or is of another type, on the line that wrote it.

        Raises:
            Unserializable: If one cannot; it is named.
            WrongField: If one is not what it is annotated with.
        """
        is_written = not _is_restored.get()
        has_own = cls.serialize is not Trigger.serialize
        if is_written and dataclasses.is_dataclass(cls) and not has_own:
            check_fields(cls, args, kwargs)
        return super().__new__(cls)

    def run(self) -> AsyncIterator[TriggerEvent[T]]:
        """Yield an event when what it waits for has come. Written ``async def`` with ``yield``.

        Ending without an event, or raising, fails the task. A class with ``share`` need not
        have it.
        """
        share = self.share()
        if share is None:
            raise NotImplementedError(f"{type(self).__name__} needs a method run()")
        return alone(share)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return its class path, ``module.Name``, and the arguments that make an equal one.

        Of a dataclass these are its fields. A class with an ``__init__`` of its own overrides it.

        Raises:
            Unserializable: If such a class does not.
        """
        cls = type(self)
        return portable(f"{cls.__module__}.{cls.__qualname__}"), _fields(self)

    def share(self) -> Share | None:
        """Return what this trigger waits for in a watch that it shares with others.

        Then one event ends it, it is hosted as data, and ``run`` is not called. Asked once per
        hosting; ``since`` is known. ``None``, as here, has ``run`` called; so has a stream.
        """
        return None

    async def cleanup(self, reason: str) -> None:
        """Let go of what ``run`` holds. Once per hosting; the time is limited.

        Args:
            reason: ``finished``, ``cancelled``, ``timeout``, ``reassigned``, ``paused`` or
            ``shutdown``.
        """

    async def on_kill(self) -> None:
        """Undo what was started outside; called only when a person cancels the task."""

    def describe(self) -> str:
        """Say in a sentence what it waits for, for people: ``for the booking 4711``.

        Shown by ``runs why``, ``triggers list``, the API and the page to all who may look, so
        name no secret. Called on the event loop, and must not wait: each time somebody looks,
        or once per hosting where the trigger shares a watch. Empty, as here: its class and its
        public fields are shown.
        """
        return ""

    def note_check(self, found: str = "", *, next_in: Duration | None = None) -> None:
        """Note that it has looked just now, for people who ask what it waits for.

        Args:
            found: What there was, in a few words: ``1 of 2 found``. No secret.
            next_in: How long until it looks again.
        """
        now = datetime.now(UTC)  # noqa: TID251 - the time of the user's code, in its process
        following = None if next_in is None else now + as_timedelta(next_in, "next_in")
        object.__setattr__(self, "_hosted_check", (now, following, found))

    def series(self) -> str | None:
        """Name what several waits of one task go through together, each event once.

        A wait of the same class and name is made by ``behind``, with what the one before it in
        the same ``async def`` task was given. ``None``: each wait is on its own.
        """
        return None

    def behind(self, payload: T) -> Trigger[T]:
        """Return the wait for what comes after this event; see ``series``."""
        return self

    @property
    def since(self) -> datetime:
        """When its task began to wait: the same after every re-hosting. UTC.

        Raises:
            RuntimeError: Unless it is hosted.
        """
        if self._hosted_since is None:
            raise RuntimeError("a trigger knows `since` only while it is hosted")
        return self._hosted_since

    @property
    def since_monotonic(self) -> float:
        """As ``since``, by the clock of the event loop: measure lengths of time from this.

        ``loop.time() - self.since_monotonic`` is how long its task has waited in seconds, after
        a restart, too. A wall clock that is set does not change it.

        Raises:
            RuntimeError: Unless it is hosted.
        """
        if self._hosted_since_us is None:
            raise RuntimeError("a trigger knows `since_monotonic` only while it is hosted")
        return self._hosted_since_us / 1e6

    @property
    def last(self) -> TriggerEvent[T] | None:
        """Its last stored event, from an earlier hosting too; only a stream has one.

        The payload is what it was, but for dataclasses and the like, which are dicts.
        """
        return self._hosted_last

    @property
    def log(self) -> logging.Logger:
        """Writes into the log of the waiting task."""
        return logging.getLogger(f"aioflow.trigger.{type(self).__name__}")


def prepare(
    trigger: Trigger[T],
    *,
    since: datetime,
    since_us: int | None = None,
    last: TriggerEvent[T] | None = None,
    number: TriggerNo | None = None,
) -> Trigger[T]:
    """Tell a trigger what it may know while it is hosted, and return it.

    Args:
        since_us: As ``since``, by the monotonic clock, in microseconds.
    """
    # Also a frozen dataclass is told: these are no fields of it. Nor is its dict asked for, which
    # is not made until somebody does.
    object.__setattr__(trigger, "_hosted_since", since)
    object.__setattr__(trigger, "_hosted_since_us", since_us)
    object.__setattr__(trigger, "_hosted_number", number)
    if last is not None:
        object.__setattr__(trigger, "_hosted_last", last)
    return trigger


def note_last(trigger: Trigger[T], event: TriggerEvent[T]) -> None:
    """Tell a trigger that an event of it is stored."""
    object.__setattr__(trigger, "_hosted_last", event)


def shares(cls: type[Trigger[Any]]) -> bool:
    """Return whether triggers of a class take part in watches.

    Not if the class has ``run`` from nearer than ``share``: whoever derives from a shared one
    and writes a ``run`` means that.
    """
    for above in cls.__mro__:
        if "share" in vars(above):
            return above is not Trigger
        if "run" in vars(above):
            return False
    return False


def never_yields(cls: type[Trigger[Any]]) -> str:
    """Return why triggers of a class can have no event, empty if they can.

    A ``run`` that is a plain ``def`` may return who yields.
    """
    if cls.run is Trigger.run and not shares(cls):
        return f"{cls.__name__} needs a method run()"
    if inspect.iscoroutinefunction(cls.run) or inspect.isgeneratorfunction(cls.run):
        return f"{cls.__name__}.run must be `async def` with a yield"
    return ""


MODULE_PREFIX = "aioflow_v_"
"""Begins the package of modules without a name of their own in a process: see ``worker.loader``."""


def portable(class_path: str) -> str:
    """Return ``module:Qualname`` as another process finds it, which has other namespaces."""
    return class_path.partition(".")[2] if class_path.startswith(MODULE_PREFIX) else class_path


def class_path(cls: type[object]) -> str:
    """Return ``module:Qualname`` as any process that has the code finds it.

    Raises:
        Unserializable: If no other process could find the class.
    """
    if "<locals>" in cls.__qualname__:
        raise Unserializable(
            cls.__qualname__, "class defined inside a function", "define it at module level"
        )
    return portable(f"{cls.__module__}:{cls.__qualname__}")


def serialize(trigger: Trigger[Any]) -> tuple[str, bytes]:
    """Return a trigger as its class path and the msgpack of its fields.

    The way back is tried at once, so that what cannot be hosted fails where it was written.

    Raises:
        ValueTooLarge: If the fields have more than ``FIELDS_LIMIT`` bytes.
        Unserializable: If a field cannot travel, or no equal trigger can be made of them.
    """
    return at_once(serialized(trigger))


def serialized(trigger: Trigger[Any]) -> Steps[tuple[str, bytes]]:
    """As ``serialize``, for a loop that has other things to do."""
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
    """Make a trigger from stored fields, each restored by its annotation.

    Raises:
        Unserializable: If the class does not take them (any more).
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
    """Say what is missing. Asked once it has failed: it costs more than making a trigger does."""
    try:
        inspect.signature(cls).bind(**fields)
    except (TypeError, ValueError) as exc:
        return str(exc)
    return ""


_is_restored: ContextVar[bool] = ContextVar("is_restored", default=False)
"""Set while a trigger is made of stored fields: nobody has written them just now."""

_annotations: WeakKeyDictionary[type, Mapping[str, Any]] = WeakKeyDictionary()
"""Looking them up costs ten times what making a trigger does, and thousands are of one class."""


def _annotations_of(cls: type[Trigger[Any]]) -> Mapping[str, Any]:
    """Return the types of what a class is made of, as far as a stored value depends on them."""
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
