"""What many triggers look at together, so that each of them costs no more than its data.

A trigger whose ``share()`` names a watch is hosted without a coroutine and without an instance:
its host keeps what it wants of that watch, and one watch serves all who name the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Hashable
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from aioflow.author.event import TriggerEvent

__all__ = ("Share", "Watch", "alone", "show_wanted")

Wanted = TypeVar("Wanted", bound=Hashable)
T = TypeVar("T")


class Watch(Generic[Wanted, T]):
    """Looks at one thing for all triggers that wait for something in it.

    A host makes one for all triggers whose ``share()`` names the same class and the same
    ``of``, which its ``__init__`` is given, and lets go of it with the last of them. ``Wanted``
    is what one trigger waits for in it, ``T`` the type of the payloads. Everything is called on
    the event loop.
    """

    _wanted: Collection[Wanted] = ()

    @property
    def wanted(self) -> Collection[Wanted]:
        """What is waited for at this moment, each once however many triggers want it.

        A view that the host keeps: asking whether something is in it costs nothing.
        """
        return self._wanted

    def joined(self, wanted: Wanted) -> None:
        """Learn that this is wanted now. Before ``run`` has begun too; must not wait.

        What it raises fails the triggers that want this.
        """

    def left(self, wanted: Wanted) -> None:
        """Learn that nobody wants this any more: it was found, or given up. Must not wait."""

    def next_check(self) -> datetime | None:
        """Return when it looks next, with a time zone; ``None`` where it is told instead.

        Shown to people, who ask from time to time. It may look sooner. Must not wait.
        """
        return None

    def last_check(self) -> datetime | None:
        """Return when it looked last, with a time zone; ``None`` where it is told instead.

        Shown to people, as ``next_check``. Must not wait.
        """
        return None

    def run(self) -> AsyncIterator[tuple[Wanted, TriggerEvent[T] | Exception]]:
        """Yield what has come, with its event, or with what its triggers fail with.

        Written ``async def`` with ``yield``, and cancelled when nobody wants anything any more.
        What is yielded is not wanted after that; to yield what nobody wants does no harm.

        Where it raises, or ends, another watch is made after a short delay. Where that fails
        soon, too, the triggers are divided among several, until the ones that want the thing no
        watch survives are alone: only these fail. Yield the error of one instead: it is cheaper.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method run()")


class Share(NamedTuple):
    """A trigger's share of a watch.

    Attributes:
        watch: The class that looks.
        wanted: What this one waits for in it. Kept for each trigger: text, a number, something
            small that can be a key.
        of: What to look at, the arguments of ``watch``. Triggers that say the same have one
            watch together.
    """

    watch: type[Watch[Any, Any]]
    wanted: Hashable
    of: tuple[Hashable, ...] = ()


def show_wanted(watch: Watch[Wanted, T], wanted: Collection[Wanted]) -> None:
    """Let a watch see what is wanted of it, now and from now on."""
    watch._wanted = wanted  # noqa: SLF001 - hosts tell it, nobody else


async def alone(share: Share) -> AsyncGenerator[TriggerEvent[Any], None]:
    """Yield the event of one share whose watch serves nobody else."""
    watch = share.watch(*share.of)
    show_wanted(watch, {share.wanted})
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
