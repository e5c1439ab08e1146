"""How readers ask a store for rows, whatever they know of its tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Select

from aioflow.store import rows

__all__ = ("Asking", "Question", "is_storable", "pieces")

Question: TypeAlias = tuple[str, tuple[Any, ...]]
"""SQL and its parameters, in order."""

Row = TypeVar("Row")

_AT_ONCE = 500
"""How many keys one statement takes."""
_WIDTHS = (1, 25, _AT_ONCE)


class Asking:
    """What a store can be asked; parameters that no row can hold match none."""

    @abstractmethod
    def _question(self, statement: Select[Any], **values: Any) -> Question:
        """Return a statement as the driver takes it."""

    @abstractmethod
    async def _fetch(self, questions: Sequence[Question]) -> list[Sequence[rows.Values]]:
        """Return the answers of all questions as of one moment, on a connection for reading."""

    @abstractmethod
    def _read(
        self, statement: Select[Any], made: Callable[[rows.Values], Row], found: Sequence[Any]
    ) -> list[Row]:
        """Make rows of what a statement has found; damaged ones are noted, and marked as such."""

    @abstractmethod
    async def _all(
        self, made: Callable[[rows.Values], Row], statement: Select[Any], **values: Any
    ) -> list[Row]:
        """Return the rows of an answer."""

    @abstractmethod
    async def _each(
        self,
        made: Callable[[rows.Values], Row],
        statement: Callable[[int], Select[Any]],
        name: str,
        wanted: Collection[object],
        **values: Any,
    ) -> list[Row]:
        """Return the rows of many keys, in statements of few widths: each is compiled once.

        Args:
            statement: Returns one for as many keys.
            name: Of the keys in there, with ``_0`` and so on behind it.
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
        """As ``_each``, of keys that are several values: the names are theirs."""

    async def _one(
        self, made: Callable[[rows.Values], Row], statement: Select[Any], **values: Any
    ) -> Row | None:
        """Return the first row of an answer, if there is one."""
        found = await self._all(made, statement, **values)
        return found[0] if found else None


def pieces(
    names: Sequence[str], wanted: Iterable[tuple[object, ...]]
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the width of a statement and its parameters, until all keys are asked for.

    Those that no row can hold are not. A piece that is narrower than its statement asks for its
    last key several times.
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
    """Return whether a column of a database takes this."""
    match value:
        case str():
            return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
        case int():
            return -(2**63) <= value < 2**63
        case _:
            return True
