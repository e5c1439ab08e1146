"""Paged reading of long results in the order of the runs their rows belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from aioflow.model.ids import RunNo
from aioflow.store import rows

__all__ = ("PAGE_ROWS", "Fetch", "OfRuns", "everything")

Fetch: TypeAlias = Callable[[int], Awaitable[Sequence[rows.Values]]]
"""Returns up to that many of the next rows, fewer at the end of the result."""

PAGE_ROWS = 2_000
"""Rows that are converted before the event loop gets control: about 20 ms."""


class OfRuns:
    """A result in the order of its runs, fetched a page at a time.

    Args:
        column: Index of the column with the number of the run.
    """

    def __init__(self, fetch: Fetch, column: int) -> None:
        self._fetch = fetch
        self._column = column
        self._page: Sequence[rows.Values] = ()
        self._at = 0
        self._is_over = False

    async def of(self, run_no: RunNo) -> Sequence[rows.Values]:
        """Return the next rows of this run; none if there are no more."""
        if not await self._has_more():
            return ()
        page, column, first = self._page, self._column, self._at
        while self._at < len(page) and page[self._at][column] == run_no:
            self._at += 1
        return page[first : self._at]

    async def all_of(self, run_no: RunNo) -> Sequence[rows.Values]:
        """Return all remaining rows of this run."""
        found = await self.of(run_no)
        while self._at == len(self._page) and (more := await self.of(run_no)):
            found = [*found, *more]
        return found

    async def before(self, run_no: RunNo | None) -> Sequence[rows.Values]:
        """Return the next rows of runs before this one, or of any run if it is ``None``.

        Returns no rows if there are no more.
        """
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
    """Return whether a row with this value as run number precedes the rows of a run.

    A damaged row may hold a value that is no number. SQLite sorts it before all numbers or after.
    """
    if run_no is None or value is None:
        return True
    return isinstance(value, int | float) and value < run_no


async def everything(fetch: Fetch) -> list[rows.Values]:
    """Return all rows of a result."""
    found: list[rows.Values] = []
    while page := await fetch(PAGE_ROWS):
        found += page
    return found
