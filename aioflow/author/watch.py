"""Watches: one poller for many triggers, so that each of them costs only its data.

A trigger whose ``share()`` names a watch has neither a coroutine nor an instance of its own: the
triggerer stores its key in that watch, and one watch serves all triggers that name the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Hashable
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from aioflow.author.event import TriggerEvent

__all__ = ("Share", "Watch", "alone", "set_wanted")

Wanted = TypeVar("Wanted", bound=Hashable)
T = TypeVar("T")


class Watch(Generic[Wanted, T]):
    """Polls one thing on behalf of all triggers that wait for something in it.

    The triggerer creates one watch for all triggers whose ``share()`` names the same class and the
    same ``of``, which is passed to ``__init__``, and drops it with the last of them. ``Wanted`` is
    the type of the keys that triggers wait for, ``T`` the type of the payloads. All methods are
    called on the event loop.
    """

    _wanted: Collection[Wanted] = ()

    @property
    def wanted(self) -> Collection[Wanted]:
        """The keys that triggers currently wait for, each once.

        A live view maintained by the triggerer; membership tests are cheap.
        """
        return self._wanted

    def joined(self, wanted: Wanted) -> None:
        """Handle a new key. Called before ``run`` starts, too. Must not block.

        An exception fails the triggers that wait for this key.
        """

    def left(self, wanted: Wanted) -> None:
        """Handle the end of a key: it was found, or no trigger waits for it. Must not block."""

    def next_check(self) -> datetime | None:
        """Return the time of the next check, with a time zone; ``None`` if it does not poll.

        Shown to users from time to time. The check may happen earlier. Must not block.
        """
        return None

    def last_check(self) -> datetime | None:
        """Return the time of the last check, with a time zone; ``None`` if it does not poll.

        Shown to users, like ``next_check``. Must not block.
        """
        return None

    def run(self) -> AsyncIterator[tuple[Wanted, TriggerEvent[T] | Exception]]:
        """Yield keys that were found, each with its event or with the error its triggers fail with.

        Written ``async def`` with ``yield``. Cancelled when no key is left. A yielded key is
        removed from ``wanted``; yielding a key that is not wanted is harmless.

        If it raises or ends, a new watch is started after a short delay. If that one fails soon as
        well, the triggers are divided among several watches, repeatedly, until the triggers of
        a key that makes every watch fail are alone: only these fail. To fail single triggers,
        yield the error instead: it is cheaper.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method run()")


class Share(NamedTuple):
    """A trigger's part in a watch.

    Attributes:
        watch: The class of the watch.
        wanted: The key this trigger waits for. Stored per trigger, so use text, a number or
            another small hashable value.
        of: Arguments of ``watch``: the thing to poll. Triggers with equal values share a watch.
    """

    watch: type[Watch[Any, Any]]
    wanted: Hashable
    of: tuple[Hashable, ...] = ()


def set_wanted(watch: Watch[Wanted, T], wanted: Collection[Wanted]) -> None:
    """Set the live view of the keys that a watch serves."""
    watch._wanted = wanted  # noqa: SLF001 - set by the triggerer only


async def alone(share: Share) -> AsyncGenerator[TriggerEvent[Any], None]:
    """Yield the event of one share, from a watch of its own."""
    watch = share.watch(*share.of)
    set_wanted(watch, {share.wanted})
    watch.joined(share.wanted)
    found = watch.run()
    try:
        async for wanted, event in found:
            if wanted != share.wanted:
                continue
            if isinstance(event, Exception):
                raise event
            yield event
            return
    finally:
        try:
            watch.left(share.wanted)
        finally:
            if isinstance(found, AsyncGenerator):
                await found.aclose()
