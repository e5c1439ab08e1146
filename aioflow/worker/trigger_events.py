"""What a trigger may yield, and how that becomes a report."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator

from aioflow.author import codec
from aioflow.author.start import EndEvent, TaskFailedEvent, TaskSuccessEvent
from aioflow.author.steps import Steps
from aioflow.author.trigger import TriggerEvent
from aioflow.errors import ValueTooLarge
from aioflow.results import INLINE_LIMIT
from aioflow.worker.failures import one_line

__all__ = ("KEY_LIMIT", "PAYLOAD_LIMIT", "TriggerWrong", "check", "events_of", "payload_of")

PAYLOAD_LIMIT = 1024 * 1024
"""Bytes of msgpack an event may carry."""

KEY_LIMIT = 1024
"""Bytes of UTF-8 its key may have."""


class TriggerWrong(Exception):
    """A trigger did what a trigger must not do.

    Attributes:
        reason: Machine-readable, for the failure.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def events_of(made: object, name: str) -> AsyncIterator[object]:
    """Return what ``run`` gave as something to iterate.

    Raises:
        TriggerWrong: If it is no such thing, which says what is wrong with it.
    """
    if inspect.iscoroutine(made):
        # `async def run` without a yield: let it run, its outcome tells which mistake it is.
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


def check(event: object, name: str) -> TriggerEvent[object]:
    """Return what was yielded, if it is an event with a key that may be one.

    Raises:
        TriggerWrong: If not.
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
    """Return the msgpack of an event's payload; of one that fails its task, of the message.

    Raises:
        TriggerWrong: If it is too large.
        Unserializable: If it cannot travel.
    """
    # The result of a task goes into a row as it is.
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
            "trigger_yield", f"the key of {name}'s event is no valid text: {exc}"
        ) from exc
    if size > KEY_LIMIT:
        raise TriggerWrong(
            "payload_too_large",
            f"the key of {name}'s event has {size} bytes, {KEY_LIMIT} are allowed",
        )
