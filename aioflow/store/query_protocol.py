"""The query protocol between the readers of a store and its drivers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Select

from aioflow.store import rows

__all__ = ("QueryInterface", "Question", "is_storable", "pieces")

Question: TypeAlias = tuple[str, tuple[Any, ...]]
"""SQL and its parameters, in order."""

Row = TypeVar("Row")

_AT_ONCE = 500
"""Maximum number of keys in one statement."""
_WIDTHS = (1, 25, _AT_ONCE)


class QueryInterface:
    """The query interface of a store. A parameter that no column can store matches no row."""

    @abstractmethod
    def _question(self, statement: Select[Any], **values: Any) -> Question:
        """Return a statement as SQL and parameters for the driver."""

    @abstractmethod
    async def _fetch(self, questions: Sequence[Question]) -> list[Sequence[rows.Values]]:
        """Run all statements on a reading connection in one committed state.

        Return their results.
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
        """Return the rows of many keys. Statements have few widths, so each is compiled once.

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
        """Return the rows of many composite keys as ``_each`` does.

        Args:
            names: Prefixes of the parameters, one for each value of a key.
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
    """Yield the width of a statement and its parameters, until all keys are covered.

    Keys that no column can store are omitted. A piece with fewer keys than its statement has
    parameters repeats its last key.
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
