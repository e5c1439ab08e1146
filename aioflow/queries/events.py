"""Pages of named events, bounded in items and bytes."""

from __future__ import annotations

from aioflow.queries.pages import Reader
from aioflow.worker.queries import PAGE_BYTES, PAGE_ITEMS, EventItem, EventsPage, EventsWanted

__all__ = ("read_events",)

FIRST_PIECE = 4
"""Events in the first read of a page. One may have 1 MiB; later reads grow if these are small."""


async def read_events(store: Reader, wanted: EventsWanted) -> EventsPage | None:
    """Return the page after ``wanted.after``; ``None`` if there is nothing yet."""
    items: list[EventItem] = []
    last, size, piece = wanted.after, 0, FIRST_PIECE
    while len(items) < PAGE_ITEMS and size < PAGE_BYTES:
        rows = await store.list_named_events(wanted.name, after=last, limit=piece)
        wished = [row for row in rows if wanted.until is None or row.event_no <= wanted.until]
        items += [EventItem(row.event_no, row.key, row.data) for row in wished]
        size += sum(len(row.data) for row in wished)
        last = wished[-1].event_no if wished else last
        if len(wished) < piece:
            if wanted.until is not None:
                last = max(last, wanted.until)
            break
        piece = min(4 * piece, PAGE_ITEMS - len(items)) if size < PAGE_BYTES // 16 else FIRST_PIECE
    return EventsPage(items, last) if items or wanted.until is not None else None
