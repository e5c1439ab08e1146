"""The position of a task in each series of waits, so that no event is delivered twice."""

from __future__ import annotations

from typing import Any

from aioflow.author.trigger import Trigger

__all__ = ("Positions",)


class Positions:
    """The last answer in each series of waits of one coroutine.

    Built from the answers, including recorded ones, so that a replay reaches the same positions.
    """

    __slots__ = ("_last", "_streams")

    def __init__(self) -> None:
        self._last: dict[tuple[type, str], Any] = {}
        self._streams: dict[int, Trigger[Any]] = {}

    def place(self, trigger: Trigger[Any]) -> Trigger[Any]:
        """Return the trigger, positioned behind the last answer in its series."""
        series = _series(trigger)
        if series is None or series not in self._last:
            return trigger
        return trigger.behind(self._last[series])

    def note(self, kind: str, triggers: tuple[Trigger[Any], ...], answer: Any) -> None:
        """Record the answer of a call."""
        match kind:
            case "any_of":
                branch, payload = answer
                self._note(triggers[branch], payload)
            case "all_of":
                for trigger, payload in zip(triggers, answer, strict=True):
                    self._note(trigger, payload)
            case "wait":
                self._note(triggers[0], answer)
            case _:
                pass

    def open(self, ordinal: int, trigger: Trigger[Any]) -> None:
        """Record that the call with this ordinal opened a stream."""
        self._streams[ordinal] = trigger

    def took(self, stream: int, payload: Any) -> None:
        """Record an event that the task consumed from the stream opened by call ``stream``."""
        self._note(self._streams[stream], payload)

    def _note(self, trigger: Trigger[Any], payload: Any) -> None:
        series = _series(trigger)
        if series is not None:
            self._last[series] = payload


def _series(trigger: Trigger[Any]) -> tuple[type, str] | None:
    name = trigger.series()
    return None if name is None else (type(trigger), name)
