"""Unit tests of triggers: run a single trigger on virtual time."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import anyio

from aioflow.author import codec
from aioflow.author.codec import run_steps
from aioflow.author.duration import Duration, microseconds
from aioflow.author.trigger import Trigger, TriggerEvent, prepare, serialize, set_last_event
from aioflow.model.timestamps import to_datetime, to_timestamp
from aioflow.testing.fake_time import (
    Standstill,
    VirtualClock,
    VirtualLoop,
    threads_are_counted,
    virtual_time_in,
    wall_clock,
)
from aioflow.worker.trigger.instance import checked_event, events_of, payload_of
from aioflow.worker.triggerer import call_cleanup

__all__ = ("BEGINS_AT", "aware", "collect")

BEGINS_AT = datetime(2026, 1, 1, tzinfo=UTC)
"""Start of a test's virtual clock, unless the test sets another."""

T = TypeVar("T")
R = TypeVar("R")

_logger = logging.getLogger("aioflow.testing")


async def collect(
    trigger: Trigger[T],
    *,
    since: datetime | None = None,
    last: TriggerEvent[T] | None = None,
    timeout: Duration = "1d",
    count: int | None = None,
    at: datetime | None = None,
) -> list[TriggerEvent[T]]:
    """Run a single trigger on virtual time, as the triggerer does, and return its events.

    The trigger runs until its ``run`` ends, ``timeout`` has passed, or it has yielded ``count``
    events. Then its ``cleanup`` is called. Each event counts as stored once it is yielded, so the
    trigger's ``last`` is the previous event. Triggers that query the daemon, such as
    ``RunTrigger``, ``EventTrigger`` or those that read a secret, need a ``Sim``.

    Args:
        since: When the trigger's task was deferred; ``at`` by default. A naive datetime counts as
            UTC.
        last: The last event stored by an earlier execution of the trigger.
        timeout: Maximum virtual time.
        count: Maximum number of events; unlimited by default.
        at: Start of the virtual clock; ``since`` by default, else ``BEGINS_AT``.

    Raises:
        Unserializable: If the trigger or an event cannot be stored.
        Exception: Any exception of the trigger's ``run``.
    """
    serialize(trigger)  # raises for a trigger that no host could recreate
    begins = aware(at or since or BEGINS_AT)
    waits_since = aware(since or begins)
    seconds = microseconds(timeout, "timeout") / 1e6
    loop = VirtualLoop()
    clock = VirtualClock(loop, to_timestamp(begins))
    since_us = (waits_since - begins) // timedelta(microseconds=1)
    prepare(trigger, since=waits_since, since_us=since_us)
    object.__setattr__(trigger, "_hosted_last", None if last is None else _stored(last, trigger))
    standstill = Standstill(loop, lambda: to_datetime(clock.now()), _logger.warning)
    module = sys.modules.get(type(trigger).__module__)
    with (
        ThreadPoolExecutor(1, thread_name_prefix="aioflow-collect") as thread,
        threads_are_counted(),
        wall_clock(clock),
        virtual_time_in([] if module is None else [module]),
    ):
        return await standstill.awaited(
            thread.submit(_turn, loop, lambda: _events(trigger, seconds, count))
        )


def aware(moment: datetime) -> datetime:
    """Return the datetime with a time zone; a naive one counts as UTC."""
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _stored(event: TriggerEvent[T], trigger: Trigger[T]) -> TriggerEvent[T]:
    """Return an event as the trigger's next execution sees it: serialized and deserialized."""
    name = type(trigger).__name__
    payload: Any = codec.decode(run_steps(payload_of(checked_event(event, name), name)))
    return TriggerEvent(payload, event.key)


async def _events(trigger: Trigger[T], seconds: float, count: int | None) -> list[TriggerEvent[T]]:
    found: list[TriggerEvent[T]] = []
    name = type(trigger).__name__
    reason = "finished"
    try:
        with anyio.move_on_after(seconds) as limit:
            async with AsyncExitStack() as stack:
                events = await events_of(trigger.run(), name)
                if isinstance(events, AsyncGenerator):
                    await stack.enter_async_context(aclosing(events))
                async for event in events:
                    checked: Any = checked_event(event, name)
                    set_last_event(trigger, _stored(checked, trigger))
                    found.append(checked)
                    if len(found) == count:
                        break
        if limit.cancelled_caught:
            reason = "timeout"
    finally:
        pending = call_cleanup(trigger, reason)
        if inspect.isawaitable(pending):
            await pending
    return found


def _turn(loop: VirtualLoop, make: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run a loop until the coroutine has ended, then cancel all other tasks of the loop."""
    try:
        return loop.run_until_complete(make())
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
