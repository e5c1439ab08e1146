"""The query protocol between the readers of a store and its drivers, and paging of long results.

Long results are read in the order of the runs that their rows belong to.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Select

from aioflow.model.ids import RunNo
from aioflow.store import rows

__all__ = (
    "PAGE_ROWS",
    "Fetch",
    "QueryInterface",
    "Question",
    "RowsByRun",
    "fetch_everything",
    "is_storable",
    "pieces",
)

Question: TypeAlias = tuple[str, tuple[Any, ...]]
"""SQL and its parameters, in order."""

Row = TypeVar("Row")

_AT_ONCE = 500
"""Maximum number of keys in one statement."""
_WIDTHS = (1, 25, _AT_ONCE)


class QueryInterface:
    """The query interface of a store. A parameter value that cannot be stored matches no row."""

    @abstractmethod
    def _question(self, statement: Select[Any], **values: Any) -> Question:
        """Return a statement as SQL and parameters for the driver."""

    @abstractmethod
    async def _fetch(self, questions: Sequence[Question]) -> list[Sequence[rows.Values]]:
        """Run all statements on a reading connection, and return their results.

        All statements see the same committed state.
        """

    @abstractmethod
    def _read(
        self, statement: Select[Any], made: Callable[[rows.Values], Row], found: Sequence[Any]
    ) -> list[Row]:
        """Convert the result of a statement to rows. Damaged rows are recorded and marked."""

    @abstractmethod
    async def _all(
        self, made: Callable[[rows.Values], Row], statement: Select[Any], **values: Any
    ) -> list[Row]:
        """Return all rows that a statement finds."""

    @abstractmethod
    async def _each(
        self,
        made: Callable[[rows.Values], Row],
        statement: Callable[[int], Select[Any]],
        name: str,
        wanted: Collection[object],
        **values: Any,
    ) -> list[Row]:
        """Return the rows of many keys, read in groups.

        Only a few group sizes are used, so that few statements are compiled.

        Args:
            statement: Returns the statement for a number of keys.
            name: Prefix of the key parameters, which are ``name_0``, ``name_1`` and so on.
        """

    @abstractmethod
    async def _each_of(
        self,
        made: Callable[[rows.Values], Row],
        statement: Callable[[int], Select[Any]],
        names: Sequence[str],
        wanted: Iterable[tuple[object, ...]],
        **values: Any,
    ) -> list[Row]:
        """Return the rows of many composite keys, read in groups; see ``_each``.

        Args:
            names: Prefixes of the parameters, one for each part of a key.
        """

    async def _one(
        self, made: Callable[[rows.Values], Row], statement: Select[Any], **values: Any
    ) -> Row | None:
        """Return the first row that a statement finds, if there is one."""
        found = await self._all(made, statement, **values)
        return found[0] if found else None


def pieces(
    names: Sequence[str], wanted: Iterable[tuple[object, ...]]
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield groups that cover all keys: the number of keys in the statement, and its parameters.

    Keys that no column can store are omitted. If a statement has more parameters than there are
    keys left, the last key fills the remaining parameters.
    """
    rest = [key for key in wanted if all(map(is_storable, key))]
    while rest:
        piece, rest = rest[:_AT_ONCE], rest[_AT_ONCE:]
        width = next(width for width in _WIDTHS if width >= len(piece))
        piece += piece[-1:] * (width - len(piece))
        yield (
            width,
            {
                f"{name}_{at}": value
                for at, key in enumerate(piece)
                for name, value in zip(names, key, strict=True)
            },
        )


def is_storable(value: object) -> bool:
    """Return whether a database column can store this value."""
    match value:
        case str():
            return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
        case int():
            return -(2**63) <= value < 2**63
        case _:
            return True


Fetch: TypeAlias = Callable[[int], Awaitable[Sequence[rows.Values]]]
"""Returns as many of the next rows as requested, fewer at the end of the result."""

PAGE_ROWS = 2_000
"""Number of rows to convert, in about 20 ms, before yielding to the event loop."""


class RowsByRun:
    """A result in the order of its runs, fetched page by page.

    Args:
        column: Index of the column with the run number.
    """

    def __init__(self, fetch: Fetch, column: int) -> None:
        self._fetch = fetch
        self._column = column
        self._page: Sequence[rows.Values] = ()
        self._at = 0
        self._is_over = False

    async def of(self, run_no: RunNo) -> Sequence[rows.Values]:
        """Return the next rows of a run; empty if there are no more."""
        if not await self._has_more():
            return ()
        page, column, first = self._page, self._column, self._at
        while self._at < len(page) and page[self._at][column] == run_no:
            self._at += 1
        return page[first : self._at]

    async def all_of(self, run_no: RunNo) -> Sequence[rows.Values]:
        """Return all remaining rows of a run."""
        found = await self.of(run_no)
        while self._at == len(self._page) and (more := await self.of(run_no)):
            found = [*found, *more]
        return found

    async def before(self, run_no: RunNo | None) -> Sequence[rows.Values]:
        """Return the next rows of runs before this run, or of any run if ``run_no`` is ``None``.

        Return no rows if there are no more.
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
    """Return whether a row with this run number comes before the rows of a run.

    In a damaged row, the value may not be a number. SQLite sorts it before or after all numbers.
    """
    if run_no is None or value is None:
        return True
    return isinstance(value, int | float) and value < run_no


async def fetch_everything(fetch: Fetch) -> list[rows.Values]:
    """Return all rows of a result."""
    found: list[rows.Values] = []
    while page := await fetch(PAGE_ROWS):
        found += page
    return found
