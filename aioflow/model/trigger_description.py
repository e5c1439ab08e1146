"""What the host of a trigger says of it, for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.timestamps import Timestamp

__all__ = ("Describe", "DescribeSensors", "Watched", "nothing_known", "nothing_of_sensors")


class Watched(msgspec.Struct, frozen=True, array_like=True):
    """How a hosted trigger is looked after.

    Attributes:
        shared_with: How many others are in its watch.
        next_check_at: When it looks next, if that is known.
        last_check_at: When it looked last, if it says so.
        text: What it waits for, as its author says; empty if the class does not.
        note: What its last look found; empty if it does not say.
        public: The fields that its class declares public.
    """

    shared_with: int
    next_check_at: Timestamp | None
    last_check_at: Timestamp | None = None
    text: str = ""
    note: str = ""
    public: tuple[str, ...] = ()


Describe: TypeAlias = Callable[[Sequence[TriggerNo]], Awaitable[Mapping[TriggerNo, Watched]]]
"""Returns what the hosts of triggers say of these, of as many as they do."""

DescribeSensors: TypeAlias = Callable[
    [RunNo, Sequence[TaskNo]], Awaitable[Mapping[TaskNo, Watched]]
]
"""Returns the same of tasks of a run: of those that are sensors in an async host."""


async def nothing_known(_: Sequence[TriggerNo]) -> Mapping[TriggerNo, Watched]:
    """Say nothing of any trigger: there are no hosts."""
    return {}


async def nothing_of_sensors(_: RunNo, __: Sequence[TaskNo]) -> Mapping[TaskNo, Watched]:
    """Say nothing of any sensor: there are no hosts."""
    return {}
