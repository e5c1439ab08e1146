"""The event that a trigger yields when its condition is met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ("TriggerEvent",)

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
