"""A trigger that waits for named events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from aioflow import (
    AioflowError,
    NamedEvent,
    NamedEvents,
    Share,
    Trigger,
    TriggerEvent,
    Watch,
    named_events,
    run_start_id,
)

__all__ = ("Emissions", "Emitted", "EventTrigger")

_Wanted: TypeAlias = tuple[str | None, int]
"""The key of an event, or ``None`` for any key, and the ``id`` that the event must exceed."""


_LENGTH = 250
"""Maximum length that ``emit`` accepts, in characters."""


class Emitted(TypedDict):
    """A named event. The ``id`` is unique and increases with each event."""

    name: str
    key: str | None
    data: object
    id: int


@dataclass(frozen=True)
class EventTrigger(Trigger[Emitted]):
    """Fires when an event of this name is emitted: by a task, a user, or a webhook.

    All events stored since the run was created count, so none is missed between the start of the
    run and the wait. Within one ``async def`` task, each wait for the same name and key continues
    after the event of the previous wait. A retry that runs from the top receives the events again.

    Attributes:
        name: The name of the events.
        key: Wait only for events with this key; ``None`` for all.
        after: Wait only for events with a larger ``id``. Waits of an ``async def`` task set it
            automatically. An operator that defers twice must pass the ``id`` that it received.

    Events:
        One, or all of them for ``stream``, in the order they were stored. ``payload`` is
        ``{"name": str, "key": str | None, "data": ..., "id": int}``; ``key`` is the ``id``, so that
        a stream yields each event once.

    Raises:
        ValueError: If the name or key is invalid: each must be 1 to 250 printable characters.

    Errors:
        None of its own.
    """

    public_fields = ("name", "key", "after")

    name: str
    key: str | None = None
    after: int | None = None

    def __post_init__(self) -> None:
        for what, text in (("name", self.name), ("key", self.key)):
            if (what == "name" or text is not None) and not _can_be_emitted(text):
                raise ValueError(
                    f"{what}={text!r:.80}: no event has it; it is 1 to {_LENGTH} printable "
                    "characters"
                )

    def share(self) -> Share:
        """Share one watch between all waits for a single event of a name."""
        after = run_start_id() if self.after is None else self.after
        return Share(Emissions, (self.key, after), of=(self.name,))

    async def run(self) -> AsyncIterator[TriggerEvent[Emitted]]:
        """Yield the events without end, for a stream."""
        after = self.after if self.last is None else self.last.payload["id"]
        events = named_events(self.name, key=self.key, after=after)
        try:
            async for event in events:
                yield _emitted(event)
        finally:
            await events.aclose()

    def series(self) -> str:
        """Return the series of this wait: its name and key.

        Each wait of a task continues after the event of the previous wait in the same series.
        """
        return repr((self.name, self.key))

    def behind(self, payload: Emitted) -> EventTrigger:
        """Return the trigger for the events after the one with this payload."""
        return EventTrigger(self.name, self.key, payload["id"])


class Emissions(Watch[_Wanted, Emitted]):
    """A watch for the events of one name.

    A wanted value has the key of the event (``None`` for any), and the ``id`` that the event must
    exceed.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._events: NamedEvents[_Wanted] | None = None
        self._received: list[tuple[_Wanted, NamedEvent | AioflowError]] = []
        self._stirred = asyncio.Event()

    def joined(self, wanted: _Wanted) -> None:
        """Subscribe to the events that match a wanted value."""
        if self._events is None:
            self._events = NamedEvents(self._name, self._on_event)
        key, after = wanted
        self._events.ask(wanted, key=key, after=after)

    def left(self, wanted: _Wanted) -> None:
        """Cancel the subscription."""
        if self._events is not None:
            self._events.forget(wanted)

    async def run(self) -> AsyncIterator[tuple[_Wanted, TriggerEvent[Emitted] | AioflowError]]:
        """Yield each event when it is stored. Does not poll: the daemon sends them."""
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            told, self._received = self._received, []
            for wanted, event in told:
                yield wanted, event if isinstance(event, AioflowError) else _emitted(event)

    def _on_event(self, wanted: _Wanted, event: NamedEvent | AioflowError) -> None:
        self._received.append((wanted, event))
        self._stirred.set()


def _can_be_emitted(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= _LENGTH and text.isprintable()


def _emitted(event: NamedEvent) -> TriggerEvent[Emitted]:
    payload = Emitted(name=event.name, key=event.key, data=event.data, id=event.id)
    return TriggerEvent(payload, key=str(event.id))
