"""Gives on what a generator yields, item by item, while it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from aioflow.host.items import encoded
from aioflow.messages import Item, Report
from aioflow.orders import Start

__all__ = ("Giver",)


class Talk(Protocol):
    """What a giver knows of its try."""

    start: Start

    def report(self, report: Report) -> None:
        """Tell the engine."""


class Giver:
    """Gives on what a generator yields: each is stored before the generator goes on."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._made = 0
        self._taken = talk.start.stored
        self._room: asyncio.Future[None] | None = None

    async def give_all(self, items: AsyncGenerator[Any, None], name: str) -> None:
        """Give on everything; what an earlier try had given on stays as it was."""
        known = self._taken
        async with aclosing(items):
            async for value in items:
                if self._made >= known:
                    await self._give(encoded(value, f"item {self._made} of {name}"))
                self._made += 1
        if self._made < known:
            print(  # noqa: T201 - into the log of the task
                f"aioflow: it yielded {self._made} items, and {known} in an earlier try; "
                "those stay as they are"
            )

    async def _give(self, payload: bytes) -> None:
        start = self._talk.start
        self._talk.report(Item(start.task_no, start.start_no, self._made, payload))
        while self._taken <= self._made:
            self._room = asyncio.get_running_loop().create_future()
            try:
                await self._room
            finally:
                self._room = None

    def take(self, upto: int) -> None:
        """Items are stored, and there is room for more."""
        self._taken = max(self._taken, upto)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
