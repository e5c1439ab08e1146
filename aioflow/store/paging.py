"""Long answers, fetched a page at a time, in the order of the runs their rows belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from aioflow.model.ids import RunNo
from aioflow.store import rows

__all__ = ("PAGE_ROWS", "Fetch", "OfRuns", "everything")

Fetch: TypeAlias = Callable[[int], Awaitable[Sequence[rows.Values]]]
"""Returns the next rows of an answer, that many; fewer if there are no more."""

PAGE_ROWS = 2_000
"""Rows made into Structs before the loop comes round: some 20 ms."""


class OfRuns:
    """An answer in the order of its runs, fetched a page at a time.

    Args:
        column: Where the number of the run stands.
    """

    def __init__(self, fetch: Fetch, column: int) -> None:
        self._fetch = fetch
        self._column = column
        self._page: Sequence[rows.Values] = ()
        self._at = 0
        self._is_over = False

    async def of(self, run_no: RunNo) -> Sequence[rows.Values]:
        """Return the next rows of this run; none if those were all."""
        if not await self._has_more():
            return ()
        page, column, first = self._page, self._column, self._at
        while self._at < len(page) and page[self._at][column] == run_no:
            self._at += 1
        return page[first : self._at]

    async def all_of(self, run_no: RunNo) -> Sequence[rows.Values]:
        """Return all rows of this run."""
        found = await self.of(run_no)
        while self._at == len(self._page) and (more := await self.of(run_no)):
            found = [*found, *more]
        return found

    async def before(self, run_no: RunNo | None) -> Sequence[rows.Values]:
        """Return the next rows of runs before this one, or of any; none if those were all."""
        if not await self._has_more():
            return ()
        page, column, first = self._page, self._column, self._at
        while self._at < len(page) and _is_before(page[self._at][column], run_no):
            self._at += 1
        return page[first : self._at]

    async def _has_more(self) -> bool:
        if self._at == len(self._page) and not self._is_over:
            self._page, self._at = await self._fetch(PAGE_ROWS), 0
            self._is_over = not self._page
        return not self._is_over


def _is_before(value: object, run_no: RunNo | None) -> bool:
    """Whether rows with this in place of the number of their run come before those of a run.

    SQLite puts what is no number before all of them, or behind; a damaged row may hold that.
    """
    if run_no is None or value is None:
        return True
    return isinstance(value, int | float) and value < run_no


async def everything(fetch: Fetch) -> list[rows.Values]:
    """Return all rows of an answer."""
    found: list[rows.Values] = []
    while page := await fetch(PAGE_ROWS):
        found += page
    return found
