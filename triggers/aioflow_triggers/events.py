"""Triggers that wait for what somebody emits under a name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypedDict

from aioflow import Trigger, TriggerEvent, named_events

__all__ = ("Emitted", "EventTrigger")


class Emitted(TypedDict):
    """A named event. ``id`` grows with each event, and no two have the same."""

    name: str
    key: str | None
    data: object
    id: int


@dataclass(frozen=True)
class EventTrigger(Trigger[Emitted]):
    """Fires when somebody emits an event of this name: a task, a person, a webhook.

    Events that were stored since the run began count, so nothing is missed between the start of
    the run and the wait. Within one ``async def`` task each wait for the same name and key goes
    on behind the event that the one before it was given; a retry that begins at the top gets
    them again, like everything it does again.

    Attributes:
        name: Of the events.
        key: Only those of this key; ``None`` for all.
        after: Only those behind this ``id``. Waits of an ``async def`` task see to it themselves;
            an operator that defers twice passes on the ``id`` it was given.

    Events:
        One, or each of them to ``stream``, in the order they were stored. ``payload`` is
        ``{"name": str, "key": str | None, "data": ..., "id": int}``; ``key`` is the ``id``, so a
        stream has each of them once.

    Errors:
        None of its own.
    """

    name: str
    key: str | None = None
    after: int | None = None

    async def run(self) -> AsyncIterator[TriggerEvent[Emitted]]:
        """Yield the events, without end."""
        after = self.after if self.last is None else self.last.payload["id"]
        events = named_events(self.name, key=self.key, after=after)
        try:
            async for event in events:
                payload = Emitted(name=event.name, key=event.key, data=event.data, id=event.id)
                yield TriggerEvent(payload, key=str(event.id))
        finally:
            await events.aclose()

    def series(self) -> str:
        """Waits for the same name and key go through the same events."""
        return repr((self.name, self.key))

    def behind(self, payload: Emitted) -> EventTrigger:
        """Return the wait for the events after this one."""
        return EventTrigger(self.name, self.key, payload["id"])
