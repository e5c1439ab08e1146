"""Waits for conditions that a turn of the engine makes true."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aioflow.engine.loop import Engine


async def until(engine: Engine, seen: Callable[[], Awaitable[object]]) -> None:
    """Return once ``seen`` is true, called after each turn.

    A turn may end during a query to the database; then the condition is checked again at once,
    since the next turn might never come.
    """
    turns = engine.turns
    while not await seen():
        if engine.turns == turns:
            await engine.next_turn()
        turns = engine.turns
