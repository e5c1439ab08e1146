"""Emitting and listing of named events."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from aioflow.api.schemas import EmittedView, EventView, iso, plain_bytes
from aioflow.api.task_instances import RESULT_BYTES
from aioflow.author.durable_calls import checked_event
from aioflow.errors import AioflowError, BadEvent
from aioflow.model.ids import RunNo
from aioflow.model.rows import NamedEventRow
from aioflow.protocol.requests import EmitEvent, Request
from aioflow.store import Store

__all__ = ("NamedEvents", "body_of")

_ROWS_AT_ONCE = 16
"""Small, because each event may take 1 MiB of memory even if its data is not returned."""


class NamedEvents:
    """Stores events through the engine, and lists them.

    Args:
        send: Sends a request to the engine.
    """

    def __init__(self, store: Store, send: Callable[[Request], Awaitable[object]]) -> None:
        self._store = store
        self._send = send

    async def emit(
        self, name: str, *, key: str | None, data: Any, request: str | None
    ) -> EmittedView:
        """Store an event. If ``request`` was used before, return the earlier event, as not created.

        Raises:
            BadEvent: If the name, the key or the size is invalid.
        """
        packed = checked_event(name, key, data)
        same = await self._same(name, request)
        if same is not None:
            return _emitted(same, created=False)
        try:
            answer = await self._send(EmitEvent(name=name, key=key, data=packed, request=request))
        except AioflowError:
            # A concurrent request with the same key may have been committed in the meantime.
            same = await self._same(name, request)
            if same is None:
                raise
            return _emitted(same, created=False)
        number, created = cast("tuple[int, bool]", answer)
        (row,) = await self._store.list_named_events(name, after=number - 1, limit=1)
        return _emitted(row, created=created)

    async def list(self, *, name: str | None, limit: int, before: int | None) -> list[EventView]:
        """Return events, the newest first; ``before`` is the last id of the previous page."""
        found: list[EventView] = []
        while len(found) < limit:
            wanted = min(limit - len(found), _ROWS_AT_ONCE)
            rows = await self._store.latest_named_events(name=name, before=before, limit=wanted)
            found += await self._views(rows)
            if len(rows) < wanted:
                break
            before = rows[-1].event_no
        return found

    async def _views(self, rows: Sequence[NamedEventRow]) -> Sequence[EventView]:
        run_ids = await self._run_ids(rows)
        return [_event(row, None if row.run_no is None else run_ids[row.run_no]) for row in rows]

    async def _same(self, name: str, request: str | None) -> NamedEventRow | None:
        return None if request is None else await self._store.find_named_event(name, request)

    async def _run_ids(self, rows: Sequence[NamedEventRow]) -> dict[RunNo, str | None]:
        found: dict[RunNo, str | None] = {}
        for run_no in {row.run_no for row in rows if row.run_no is not None}:
            runs = await self._store.list_runs(limit=1, before=run_no + 1)
            is_there = bool(runs) and runs[0].run_no == run_no
            found[run_no] = runs[0].run_id if is_there else None
        return found


def body_of(body: bytes) -> Any:
    """Decode the body of a webhook: any JSON, or ``None`` if it is empty.

    Raises:
        BadEvent: If it is not JSON.
    """
    if not body:
        return None
    try:
        # Not parsed with msgspec, which would convert a long integer to a float and thus change it.
        return json.loads(body.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        raise BadEvent(f"the body of an event is JSON, or empty: {exc}") from exc


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not valid JSON")


def _emitted(row: NamedEventRow, *, created: bool) -> EmittedView:
    return EmittedView(
        event_id=row.event_no, name=row.name, key=row.key, at=iso(row.at) or "", created=created
    )


def _event(row: NamedEventRow, run_id: str | None) -> EventView:
    size = len(row.data)
    return EventView(
        event_id=row.event_no,
        name=row.name,
        key=row.key,
        at=iso(row.at) or "",
        run_id=run_id,
        data=plain_bytes(row.data) if size <= RESULT_BYTES else {"size_bytes": size},
    )
