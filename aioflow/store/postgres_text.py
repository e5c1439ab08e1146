"""Answers of PostgreSQL in which a text may be no text: its bytes are returned, to be named.

The server checks a text when it is written, and hands out whatever a damaged page holds. The driver
raises for a whole answer where one of its texts is not UTF-8. Such an answer is asked for once
more, with a decoder that costs a call for each text; the connection keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from aioflow.store.rows import Values

__all__ = ("LongAnswer", "answered")

_Question = tuple[str, tuple[Any, ...]]


async def answered(connection: Any, question: _Question, seconds: float | None) -> Sequence[Values]:
    """Return all rows of an answer.

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


class LongAnswer:
    """An answer that is fetched a page at a time.

    Args:
        connection: In a transaction in which a question has the same answer again.
        cursor: Stands before the first row.
    """

    def __init__(self, connection: Any, question: _Question, cursor: Any) -> None:
        self._connection = connection
        self._question = question
        self._cursor = cursor
        self._fetched = 0

    @classmethod
    async def of(cls, connection: Any, question: _Question) -> Self:
        """Return the answer to a question."""
        return cls(connection, question, await _cursor(connection, question))

    async def fetch(self, count: int) -> Sequence[Values]:
        """Return the next rows, that many; fewer if there are no more."""
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
    """Return the text; what is none is told from a column of bytes, which it may stand in."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return (raw,)
