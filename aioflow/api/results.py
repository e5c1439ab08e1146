"""Results of tasks as responses show them: small values, or their size; damaged ones as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aioflow._threads import in_thread
from aioflow.api.schemas import plain_bytes, unreadable
from aioflow.model.rows import ResultRow
from aioflow.results import read_items, read_one_item, result_path
from aioflow.store import Store

__all__ = ("RESULT_BYTES", "ShownResults")

RESULT_BYTES = 4 * 1024
"""Largest result that a response contains."""

_ITEMS = 100
"""Stored items read for display; of more only the number is shown."""


class ShownResults:
    """Reads results from the store and from the folder of large results."""

    def __init__(self, store: Store, folder: Path | None) -> None:
        self._store = store
        self._folder = folder

    async def shown(self, row: ResultRow) -> Any:
        """Return a result if it is small. A list that others expand over is in a file of items."""
        if row.size > RESULT_BYTES:
            return {"size_bytes": row.size}
        if row.body is not None:
            return plain_bytes(row.body)
        if row.width == 0:
            return []
        if row.width is not None and row.size == 0:
            return await self._items(row)
        if row.width is None or self._folder is None:
            return {"size_bytes": row.size}
        path = result_path(self._folder, row.task_no, row.start_no)
        try:
            items = await in_thread(read_items, path)
        except OSError:
            return {"size_bytes": row.size}  # deleted, or on another machine
        except ValueError as exc:
            return unreadable(exc)
        return [plain_bytes(item) for item in items]

    async def item(self, row: ResultRow, index: int) -> Any:
        """Return one item of a list that others expand over, if it is small."""
        if row.body is not None or self._folder is None:
            return {"index": index}
        path = result_path(self._folder, row.task_no, row.start_no)
        try:
            body = await in_thread(read_one_item, path, index)
        except (OSError, IndexError):
            return {"index": index}  # deleted, or on another machine
        except ValueError as exc:
            return unreadable(exc)
        return {"size_bytes": len(body)} if len(body) > RESULT_BYTES else plain_bytes(body)

    async def _items(self, row: ResultRow) -> Any:
        """Return the items a task has stored, if they are small."""
        items = await self._store.list_items(row.task_no, limit=_ITEMS)
        size = sum(len(item.payload) for item in items)
        if size > RESULT_BYTES or len(items) == _ITEMS:
            return {"items": row.width}
        return [plain_bytes(item.payload) for item in items]
