"""Waits for conditions that some turn of the engine makes true."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aioflow.engine.loop import Engine


async def until(engine: Engine, seen: Callable[[], Awaitable[object]]) -> None:
    """Call ``seen`` after each turn until it returns a true value.

    A turn may end during a query to the database. In that case the condition is checked again at
    once, since there might be no further turn.
    """
    turns = engine.turns
    while not await seen():
        if engine.turns == turns:
            await engine.next_turn()
        turns = engine.turns
