"""Queries of named events."""

from __future__ import annotations

from aioflow.model.rows import NamedEventRow
from aioflow.store import rows, selects
from aioflow.store.query_protocol import QueryInterface

__all__ = ("EventReader",)


class EventReader(QueryInterface):
    """The part of a store that reads named events."""

    async def list_named_events(
        self, name: str, *, after: int = -1, limit: int = 1000
    ) -> list[NamedEventRow]:
        """See ``Store``."""
        return await self._all(
            rows.named_event_row, selects.NAMED_EVENTS_PAGE, name=name, after=after, limit=limit
        )

    async def latest_named_events(
        self, *, name: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[NamedEventRow]:
        """See ``Store``."""
        page = selects.latest_named_events(of_name=name is not None, before=before is not None)
        return await self._all(rows.named_event_row, page, name=name, before=before, limit=limit)

    async def find_named_event(self, name: str, request: str) -> NamedEventRow | None:
        """See ``Store``."""
        return await self._one(
            rows.named_event_row, selects.NAMED_EVENT_BY_REQUEST, name=name, request=request
        )
