"""Triggers: stored as plain data, and run as coroutines in the triggerer.

A trigger whose ``share()`` names a watch has neither a coroutine nor an instance of its own: the
triggerer stores its key in that watch. One watch serves all triggers that name it. So a single
poller serves many triggers, and each of them costs only its data.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar
from weakref import WeakKeyDictionary

from aioflow.author import codec
from aioflow.author.codec import Steps, run_steps
from aioflow.author.decode import is_plain, is_protocol, restore, type_hints
from aioflow.author.duration import Duration, as_timedelta
from aioflow.errors import Unserializable, WrongField
from aioflow.model.ids import TriggerNo

__all__ = (
    "FIELDS_LIMIT",
    "MODULE_PREFIX",
    "Share",
    "Trigger",
    "TriggerEvent",
    "Watch",
    "check_fields",
    "class_path",
    "construct",
    "never_yields",
    "portable",
    "prepare",
    "serialize",
    "serialized",
    "set_last_event",
    "set_wanted",
    "shares",
    "watch_alone",
)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class TriggerEvent(Generic[T_co]):
    """An event that a trigger observed.

    Attributes:
        payload: The value that the waiting task receives.
        key: Identifies the event. If another process observes an event with the same key, the
            daemon drops the duplicate.
    """

    payload: T_co
    key: str | None = None


Wanted = TypeVar("Wanted", bound=Hashable)
T = TypeVar("T")


class Watch(Generic[Wanted, T]):
    """Polls one thing, such as a folder, on behalf of all triggers that wait for something in it.

    The triggerer creates one watch for all triggers whose ``share()`` names the same class and the
    same ``of``, which is passed to ``__init__``. It drops the watch with the last of these
    triggers. ``Wanted`` is the type of the keys that triggers wait for, ``T`` the type of the
    payloads. All methods are called on the event loop.
    """

    _wanted: Collection[Wanted] = ()

    @property
    def wanted(self) -> Collection[Wanted]:
        """The keys that triggers currently wait for, each once.

        A live view maintained by the triggerer; membership tests are cheap.
        """
        return self._wanted

    def joined(self, wanted: Wanted) -> None:
        """Handle a new key. May be called before ``run`` starts. Must not block.

        An exception fails the triggers that wait for this key.
        """

    def left(self, wanted: Wanted) -> None:
        """Handle that a key was found, or that no trigger waits for it any more. Must not block."""

    def next_check(self) -> datetime | None:
        """Return the time of the next check, with a time zone; ``None`` if the watch does not poll.

        For display to users. The check may happen earlier. Must not block.
        """
        return None

    def last_check(self) -> datetime | None:
        """Return the time of the last check, with a time zone; ``None`` if the watch does not poll.

        For display to users, like ``next_check``. Must not block.
        """
        return None

    def run(self) -> AsyncIterator[tuple[Wanted, TriggerEvent[T] | Exception]]:
        """Yield each key that was found, with its event or with the error that fails its triggers.

        Written as ``async def`` with ``yield``. Cancelled when no key is left. A yielded key is
        removed from ``wanted``; yielding a key that is not wanted is harmless.

        If this method raises or ends, a new watch is started after a short delay. If the new watch
        fails soon as well, its triggers are divided among several watches, repeatedly, until a key
        that makes every watch fail has a watch of its own. Only the triggers of that key fail then.
        To fail single triggers, yield the error instead, which is cheaper.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method run()")


class Share(NamedTuple):
    """A trigger's part in a watch.

    Attributes:
        watch: The class of the watch.
        wanted: The key this trigger waits for. Stored per trigger, so use text, a number or
            another small hashable value.
        of: Arguments of ``watch``, which name what to poll. Triggers with the same ``watch`` and
            the same ``of`` share one watch.
    """

    watch: type[Watch[Any, Any]]
    wanted: Hashable
    of: tuple[Hashable, ...] = ()


def set_wanted(watch: Watch[Wanted, T], wanted: Collection[Wanted]) -> None:
    """Set the live view of the keys that a watch serves."""
    watch._wanted = wanted  # noqa: SLF001 - set by the triggerer only


async def watch_alone(share: Share) -> AsyncGenerator[TriggerEvent[Any], None]:
    """Yield the event of one share, from a watch that serves nothing else."""
    watch = share.watch(*share.of)
    set_wanted(watch, {share.wanted})
    watch.joined(share.wanted)
    found = watch.run()
    try:
        async for wanted, event in found:
            if wanted != share.wanted:
                continue
            if isinstance(event, Exception):
                raise event
            yield event
            return
    finally:
        try:
            watch.left(share.wanted)
        finally:
            if isinstance(found, AsyncGenerator):
                await found.aclose()


_CHECK_STEPS = 100
"""Maximum number of steps of the check of a new trigger's arguments: a few milliseconds of work."""


@dataclass(frozen=True)
class _Shape:
    """The signature of a trigger class.

    Attributes:
        names: Names of the positional arguments.
        annotations: Types of the arguments, without those that are missing or ``Any``.
        optional: Arguments whose default is ``None``, whatever their annotation says.
    """

    names: tuple[str, ...]
    annotations: Mapping[str, Any]
    optional: frozenset[str]


_shapes: WeakKeyDictionary[type, _Shape] = WeakKeyDictionary()


def check_fields(cls: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise if an argument cannot be serialized, or does not match its annotation.

    Every value from which the annotated type can be restored is accepted: text for a date, a
    number for a ``timedelta``. A hand-written ``__init__`` may take any serializable value.
    Arguments that take long to check would block the event loop, so they are checked only when the
    trigger is stored.

    Raises:
        Unserializable: If an argument cannot be serialized; the error names it.
        WrongField: If an argument does not match its annotation.
    """
    shape = _shapes.get(cls)
    if shape is None:
        shape = _shapes[cls] = _shape_of(cls)
    given = dict(zip(shape.names, args, strict=False)) | dict(kwargs)
    if not _is_packed_soon(given, cls.__name__):
        return
    for name, annotation in shape.annotations.items():
        if name in given and not (given[name] is None and name in shape.optional):
            where = f"{cls.__name__}.{name}"
            _check_field(given[name], annotation, where, is_public=name in cls.public_fields)


def _is_packed_soon(given: Mapping[str, object], owner: str) -> bool:
    """Return whether all arguments could be serialized within the step limit."""
    steps = codec.fields_in_steps(given, owner, codec.VALUE_LIMIT)
    return sum(1 for _ in islice(steps, _CHECK_STEPS)) < _CHECK_STEPS


def _check_field(value: object, annotation: Any, where: str, *, is_public: bool) -> None:
    if is_protocol(annotation):
        return
    if isinstance(annotation, type) and isinstance(value, annotation):
        return  # this includes a bool as an int, and a subclass of str
    try:
        plain = codec.decode(codec.encode(value, where, codec.VALUE_LIMIT), where=where)
        restore(plain, annotation, where, strict=True)
    except Unserializable:
        # The error is public, but a field that is not public may contain a password.
        is_shown = is_public or value is None or isinstance(value, int | float)
        raise WrongField(where, value, _type_text(annotation), is_shown=is_shown) from None


def _shape_of(cls: type) -> _Shape:
    init: Any = cls.__init__  # type: ignore[misc]
    parameters = tuple(inspect.signature(init).parameters.values())[1:]
    names = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    said, types = getattr(init, "__annotations__", {}), type_hints(cls)
    fields = [
        field
        for field in dataclasses.fields(cls)
        if field.init and said.get(field.name) == field.type
    ]
    return _Shape(
        names,
        {f.name: types[f.name] for f in fields if types.get(f.name, Any) is not Any},
        frozenset(field.name for field in fields if field.default is None),
    )


def _type_text(annotation: Any) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


FIELDS_LIMIT = 1024 * 1024
"""Limit for a trigger's fields, and for the arguments of the resume method, in bytes of msgpack."""


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
        """Yield an event when the condition is met. Written as ``async def`` with ``yield``.

        If it raises, or ends without an event, the task fails. Not required in a class with
        ``share``.
        """
        share = self.share()
        if share is None:
            raise NotImplementedError(f"{type(self).__name__} needs a method run()")
        return watch_alone(share)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path, ``module.Name``, and the arguments that recreate the trigger.

        For a dataclass these are its fields. A class with its own ``__init__`` overrides this.

        Raises:
            Unserializable: If a class with its own ``__init__`` does not override this.
        """
        cls = type(self)
        return portable(f"{cls.__module__}.{cls.__qualname__}"), _field_values(self)

    def share(self) -> Share | None:
        """Return the watch and the key that this trigger shares with others, or ``None``.

        If this returns a watch, the trigger is only data in the triggerer, its first event ends it,
        and ``run`` is not called. If this returns ``None``, the default, ``run`` is called. For a
        stream ``run`` is always called. ``share`` is called once each time the trigger starts in a
        process, with ``since`` already set.
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
        the UI, so it must not contain secrets. Called on the event loop, so it must not block. It
        is called each time it is displayed, or once per start if the trigger shares a watch. If it
        returns an empty text, the default, the class and its public fields are shown.
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

        If the previous wait of the same ``async def`` task has the same class and name, ``behind``
        makes the trigger of the next wait from the payload of the previous one. If the name is
        ``None``, waits are independent.
        """
        return None

    def behind(self, payload: T) -> Trigger[T]:
        """Return the trigger that waits for the events after ``payload``; see ``series``."""
        return self

    @property
    def since(self) -> datetime:
        """The time at which the trigger's task began to wait, in UTC. Restarts do not change it.

        Raises:
            RuntimeError: If the trigger is not running.
        """
        if self._hosted_since is None:
            raise RuntimeError("a trigger knows `since` only while it is hosted")
        return self._hosted_since

    @property
    def since_monotonic(self) -> float:
        """The time of ``since`` on the clock of the event loop. Use it to measure durations.

        ``loop.time() - self.since_monotonic`` is how many seconds the trigger's task has waited,
        even after a restart. Changes of the wall clock do not affect it.

        Raises:
            RuntimeError: If the trigger is not running.
        """
        if self._hosted_since_us is None:
            raise RuntimeError("a trigger knows `since_monotonic` only while it is hosted")
        return self._hosted_since_us / 1e6

    @property
    def last(self) -> TriggerEvent[T] | None:
        """The last stored event of a stream, even from before a restart; ``None`` if there is none.

        The payload is restored, except that dataclasses and the like remain dicts.
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
    # Works for frozen dataclasses too, because the names set here are not fields. Assigning through
    # vars() would create the instance's __dict__, which is otherwise created only on demand.
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
    """Return whether triggers of a class use watches.

    ``False`` if a subclass overrides ``run`` of a class with ``share``. Its ``run`` is then used.
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
"""Prefix of the packages for modules loaded by version; see ``worker.code.loader``."""


def portable(class_path: str) -> str:
    """Return the path by which another process, with other package names, finds the class."""
    return class_path.partition(".")[2] if class_path.startswith(MODULE_PREFIX) else class_path


def class_path(cls: type[object]) -> str:
    """Return ``module:Qualname``, by which any process that has the code finds the class.

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

    Recreates the trigger to check it, so that an error is raised where the author wrote it.

    Raises:
        ValueTooLarge: If the fields exceed ``FIELDS_LIMIT`` bytes.
        Unserializable: If a field cannot be serialized, or the trigger cannot be recreated.
    """
    return run_steps(serialized(trigger))


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
        kwargs = _field_values(trigger)
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
        reason = _missing_field(cls, fields) or exc
        raise Unserializable(name, "trigger", f"cannot be made of its fields: {reason}") from exc
    finally:
        _is_restored.reset(token)


def _missing_field(cls: type[Trigger[Any]], fields: Mapping[str, object]) -> str:
    """Return which field is missing. Called only after a failure, as it is slow."""
    try:
        inspect.signature(cls).bind(**fields)
    except (TypeError, ValueError) as exc:
        return str(exc)
    return ""


_is_restored: ContextVar[bool] = ContextVar("is_restored", default=False)
"""Set while a trigger is created from stored fields, to skip the checks of its fields."""

_annotations: WeakKeyDictionary[type, Mapping[str, Any]] = WeakKeyDictionary()
"""Annotations by class, cached because resolving them takes ten times as long as creating a
trigger."""


def _annotations_of(cls: type[Trigger[Any]]) -> Mapping[str, Any]:
    """Return the annotations of a class for which restoring can change a stored value."""
    annotations = type_hints(cls.__init__)
    if dataclasses.is_dataclass(cls):
        annotations = type_hints(cls)
    return {name: kind for name, kind in annotations.items() if not is_plain(kind)}


def _field_values(trigger: Trigger[Any]) -> dict[str, object]:
    if dataclasses.is_dataclass(trigger):
        return {f.name: getattr(trigger, f.name) for f in dataclasses.fields(trigger) if f.init}
    if type(trigger).__init__ is object.__init__:
        return {}
    raise Unserializable(
        type(trigger).__name__,
        "trigger with an __init__ of its own",
        "make it a dataclass, or define serialize()",
    )
