"""Descriptions of triggers by their hosts, for people."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from aioflow.model.ids import RunNo, TaskNo, TriggerNo
from aioflow.model.timestamps import Timestamp

__all__ = ("Describe", "DescribeSensors", "Watched", "nothing_known", "nothing_of_sensors")


class Watched(msgspec.Struct, frozen=True, array_like=True):
    """The description of a hosted trigger.

    Attributes:
        shared_with: Number of other triggers in its watch.
        next_check_at: When it checks next, if known.
        last_check_at: When it checked last, if reported.
        text: What it waits for, according to its class; empty if the class does not tell.
        note: The result of its last check; empty if not reported.
        public: The fields that its class declares public.
    """

    shared_with: int
    next_check_at: Timestamp | None
    last_check_at: Timestamp | None = None
    text: str = ""
    note: str = ""
    public: tuple[str, ...] = ()


Describe: TypeAlias = Callable[[Sequence[TriggerNo]], Awaitable[Mapping[TriggerNo, Watched]]]
"""Returns the descriptions of triggers from their hosts, as far as available."""

DescribeSensors: TypeAlias = Callable[
    [RunNo, Sequence[TaskNo]], Awaitable[Mapping[TaskNo, Watched]]
]
"""Returns the descriptions of those tasks of a run that are sensors in an async host."""


async def nothing_known(_: Sequence[TriggerNo]) -> Mapping[TriggerNo, Watched]:
    """Return no description of any trigger, because there are no hosts."""
    return {}


async def nothing_of_sensors(_: RunNo, __: Sequence[TaskNo]) -> Mapping[TaskNo, Watched]:
    """Return no description of any sensor, because there are no hosts."""
    return {}
