"""How readers ask a store for rows, whatever they know of its tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from sqlalchemy import Select

from aioflow.store import rows

__all__ = ("Asking",)

Row = TypeVar("Row")


class Asking:
    """What a store can be asked; parameters that no row can hold match none."""

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

    async def _one(
        self, made: Callable[[rows.Values], Row], statement: Select[Any], **values: Any
    ) -> Row | None:
        """Return the first row of an answer, if there is one."""
        found = await self._all(made, statement, **values)
        return found[0] if found else None
