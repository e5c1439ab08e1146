"""What a trigger tells when what it waits for has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ("TriggerEvent",)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class TriggerEvent(Generic[T_co]):
    """Something a trigger saw.

    Attributes:
        payload: What the waiting task is given.
        key: Same key, same event: what another host sees again is dropped by it.
    """

    payload: T_co
    key: str | None = None
