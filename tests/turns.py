"""Waits for what a turn of the circle makes true."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aioflow.engine.loop import Engine


async def until(engine: Engine, seen: Callable[[], Awaitable[object]]) -> None:
    """Return once ``seen`` is true, asked after each turn.

    A turn may end while the database is being asked: the next one would be waited for in vain.
    """
    turns = engine.turns
    while not await seen():
        if engine.turns == turns:
            await engine.next_turn()
        turns = engine.turns
