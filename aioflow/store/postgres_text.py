"""Reads of PostgreSQL that return the bytes of a text that is not UTF-8, to report the damage.

The server checks a text only when it is written, and returns any content of a damaged page. The
driver raises for the whole result if one text is not UTF-8. Such a statement is repeated with a
decoder that costs a call for each text. The connection keeps this decoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from aioflow.store.rows import Values

__all__ = ("PagedResult", "fetch_rows")

_Question = tuple[str, tuple[Any, ...]]


async def fetch_rows(
    connection: Any, question: _Question, seconds: float | None
) -> Sequence[Values]:
    """Return all rows of a result.

    Raises:
        TimeoutError: If a statement takes longer than ``seconds``.
    """
    sql, values = question
    try:
        found: Sequence[Values] = await connection.fetch(sql, *values, timeout=seconds)
    except UnicodeDecodeError:
        await _keep_bytes(connection)
        found = await connection.fetch(sql, *values, timeout=seconds)
    return found


class PagedResult:
    """A result that is fetched a page at a time.

    Args:
        connection: In a transaction in which a repeated statement has the same result.
        cursor: Before the first row.
    """

    def __init__(self, connection: Any, question: _Question, cursor: Any) -> None:
        self._connection = connection
        self._question = question
        self._cursor = cursor
        self._fetched = 0

    @classmethod
    async def of(cls, connection: Any, question: _Question) -> Self:
        """Return the result of a statement."""
        return cls(connection, question, await _cursor(connection, question))

    async def fetch(self, count: int) -> Sequence[Values]:
        """Return up to that many of the next rows, fewer at the end of the result."""
        page: Sequence[Values]
        try:
            page = await self._cursor.fetch(count)
        except UnicodeDecodeError:
            await _keep_bytes(self._connection)
            self._cursor = await _cursor(self._connection, self._question)
            if self._fetched:
                await self._cursor.forward(self._fetched)
            page = await self._cursor.fetch(count)
        self._fetched += len(page)
        return page


async def _cursor(connection: Any, question: _Question) -> Any:
    sql, values = question
    return await connection.cursor(sql, *values)


async def _keep_bytes(connection: Any) -> None:
    await connection.set_type_codec(
        "text", schema="pg_catalog", encoder=str.encode, decoder=_text, format="binary"
    )


def _text(raw: bytes) -> str | tuple[bytes]:
    """Return the text, or its bytes in a tuple if it is not UTF-8.

    The tuple differs from the value of a bytes column, which would accept plain bytes.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return (raw,)
