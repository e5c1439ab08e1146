"""Checks the events that triggers yield and encodes them for reports."""

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
"""Maximum payload of an event, in bytes of msgpack."""

KEY_LIMIT = 1024
"""Maximum bytes of an event's key in UTF-8."""


class TriggerWrong(Exception):
    """A trigger violated the protocol for triggers.

    Attributes:
        reason: Machine-readable reason, for the failure.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


async def events_of(made: object, name: str) -> AsyncIterator[object]:
    """Return the result of ``run`` as an async iterator.

    Raises:
        TriggerWrong: If it is not one; the message explains the mistake.
    """
    if inspect.iscoroutine(made):
        # `async def run` without a yield: run it, since its outcome shows which mistake it is.
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
    """Return the yielded object if it is an event with a valid key.

    Raises:
        TriggerWrong: If it is not.
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
    """Return the msgpack of an event's payload, or of the message if the event fails its task.

    Raises:
        TriggerWrong: If it is too large.
        Unserializable: If it cannot be encoded.
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
            "trigger_yield", f"the key of {name}'s event is no valid text: {exc}"
        ) from exc
    if size > KEY_LIMIT:
        raise TriggerWrong(
            "payload_too_large",
            f"the key of {name}'s event has {size} bytes, {KEY_LIMIT} are allowed",
        )
