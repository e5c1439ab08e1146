"""A host's side of a trigger that counts, for tests with random actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import msgspec

from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.reports import TriggerFired


@dataclass
class Hosting:
    """An assignment. Continues after the last event it was given, or some events earlier."""

    number: int
    assignment_id: int
    next: int = 0
    sent: int = 0
    confirmed: int = 0
    window: int = 64

    @classmethod
    def of(cls, order: StartTrigger, back: int = 0) -> Self:
        first = 0 if order.last is None else msgspec.msgpack.decode(order.last[0])["n"] + 1
        begins = max(0, first - back)
        return cls(order.trigger_no, order.assignment_id, begins, window=order.window)

    def reports(self, count: int, upto: int, now: int) -> list[TriggerFired]:
        """Return the next events: at most ``count``, below ``upto``, and within the window."""
        found = []
        while len(found) < count and self.next < upto and self.sent - self.confirmed < self.window:
            payload = msgspec.msgpack.encode({"n": self.next})
            at = (self.number, self.assignment_id, self.sent, now)
            found.append(TriggerFired(*at, payload, str(self.next)))
            self.next += 1
            self.sent += 1
        return found
