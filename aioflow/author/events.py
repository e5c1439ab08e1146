"""Named events: emitted by a task, and received by every wait for that name."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from aioflow.author import codec
from aioflow.author.source_location import here
from aioflow.author.steps import Steps, at_once, start_steps
from aioflow.author.waiting import Call, Calls, current_calls
from aioflow.errors import BadEvent, ValueTooLarge

__all__ = ("EVENT_LIMIT", "NAME_LENGTH", "checked_event", "emit")

EVENT_LIMIT = 1024 * 1024
"""Maximum size of an event with its name and key, in bytes of msgpack."""

NAME_LENGTH = 250
"""Maximum length of a name, and of a key, in characters."""

_FRAME_BYTES = 64  # overhead when a trigger passes the event on

_INSTEAD = "make the task `async def`, or use `aioflow events emit` or POST /api/v1/events/NAME"


def emit(name: str, *, key: str | None = None, data: object = None) -> Coroutine[Any, Any, None]:
    """Emit a named event. Must be awaited.

    A durable call: the event is stored in the same transaction as its record, so it is emitted
    exactly once, however often the task runs again from the top. Once it is stored, it reaches
    every task that waits with ``EventTrigger("approved")``, and also later waits of runs that
    were created before the event.

    Args:
        name: 1 to 250 printable characters.
        key: Distinguishes events of one name; the same limits.
        data: Any serializable value. The limit is 1 MiB for name, key and data together.

    Raises:
        RuntimeError: Outside an ``async def`` task: in a ``def`` task, or in a ``def`` step.
        BadEvent: If the name or key is invalid, or the event is too large.
        Unserializable: If the data cannot be serialized.
    """
    import asyncio  # imported late: a DAG file that only describes tasks does not need it

    made = current_calls("emit", instead=_INSTEAD)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            f"emit() was called in a thread, as in a `def` step; {_INSTEAD}"
        ) from None
    call = Call("emit", "emit", here())
    return _emit(made, call, name, key, start_steps(_checked(name, key, data)))


async def _emit(made: Calls, call: Call, name: str, key: str | None, data: Steps[bytes]) -> None:
    await made.emit(call, name, key, await made.packed(data))


def checked_event(name: str, key: str | None, data: object) -> bytes:
    """Return the msgpack of an event's data.

    Raises:
        BadEvent: If the name or key is invalid, or the event is too large.
        Unserializable: If the data cannot be serialized.
    """
    return at_once(_checked(name, key, data))


def _checked(name: str, key: str | None, data: object) -> Steps[bytes]:
    _check_name(name, "name")
    if key is not None:
        _check_name(key, "key")
    room = EVENT_LIMIT - len(name.encode()) - len((key or "").encode()) - _FRAME_BYTES
    try:
        return (yield from codec.in_steps(data, f"the data of event {name!r}", room))
    except ValueTooLarge as exc:
        raise BadEvent(str(ValueTooLarge(exc.where, EVENT_LIMIT))) from None


def _check_name(text: object, what: str) -> None:
    good = isinstance(text, str) and 0 < len(text) <= NAME_LENGTH and text.isprintable()
    if not good:
        raise BadEvent(f"the {what} of an event is 1 to {NAME_LENGTH} printable characters")
