"""The use of a pool over time."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from aioflow.api.schemas import iso
from aioflow.clock import Clock
from aioflow.model.history import HOUR_US
from aioflow.model.pool_usage import MINUTE_US, PoolUsageRow
from aioflow.model.timestamps import Timestamp
from aioflow.store import Store

__all__ = ("MOST_HOURS", "STEP_US", "PoolUsageStepView", "PoolUsageView", "pool_usage", "steps_of")

MOST_HOURS = 24
"""How long samples are stored, in hours."""

STEP_US = 5 * MINUTE_US


class PoolUsageStepView(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum of each value in the minutes of one step.

    Attributes:
        used: Slots in use.
        queued: Tasks that waited for slots.
    """

    start: str
    slots: int
    used: int
    queued: int


class PoolUsageView(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a pool over time. In steps that are not listed, the pool was not used.

    Attributes:
        since: Start of the first step.
        until: The current time. The last step has not ended.
        full_seconds: The time for which no slot was free.
    """

    name: str
    since: str
    until: str
    step_seconds: int
    full_seconds: int
    items: list[PoolUsageStepView]


async def pool_usage(store: Store, clock: Clock, name: str, *, hours: int) -> PoolUsageView:
    """Return the use of a pool in the last ``hours`` hours, at most ``MOST_HOURS``."""
    until = clock.now()
    since = until - hours * HOUR_US
    since -= since % STEP_US
    found = await store.list_pool_usage(name, since=since, until=until)
    return PoolUsageView(
        name=name,
        since=iso(since) or "",
        until=iso(until) or "",
        step_seconds=STEP_US // 1_000_000,
        full_seconds=sum(row.used >= row.slots for row in found) * (MINUTE_US // 1_000_000),
        items=steps_of(found),
    )


def steps_of(found: Iterable[PoolUsageRow]) -> list[PoolUsageStepView]:
    """Return the steps of samples that are sorted by time."""
    steps: dict[Timestamp, tuple[int, int, int]] = {}
    for row in found:
        start = row.start - row.start % STEP_US
        _, used, queued = steps.get(start, (0, 0, 0))
        steps[start] = (row.slots, max(used, row.used), max(queued, row.queued))
    return [
        PoolUsageStepView(start=iso(start) or "", slots=slots, used=used, queued=queued)
        for start, (slots, used, queued) in steps.items()
    ]
