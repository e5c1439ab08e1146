"""Routes for logs: as text from an offset, and as lines that contain a text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Literal

from fastapi import Query, Response

from aioflow.api.log_search import LINE_BYTES, find_lines
from aioflow.api.page_schemas import LogLinesView
from aioflow.api.queries import PAGE, Log
from aioflow.web.permissions import By, viewer
from aioflow.web.response_budget import BudgetedResponse
from aioflow.web.responses import Json, MapIndex, Offset, RoundNumber, TryNumber
from aioflow.web.routing import Budget, NodeApi, api_router

__all__ = ("router",)

_LOG_BYTES = 4 * 1024 * 1024
_SHOWN_BYTES = 6 * LINE_BYTES
"""Maximum JSON size of a line, if it consists of control characters."""


router = api_router()


@router.get(
    "/runs/{run_id}/tasks/{task_id}/logs", response_class=Response, dependencies=[viewer("run")]
)
async def logs(
    api: NodeApi,
    run_id: str,
    task_id: str,
    map_index: MapIndex = -1,
    round_number: RoundNumber = -1,
    try_number: TryNumber = None,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=_LOG_BYTES)] = _LOG_BYTES,
    search: Annotated[str, Query(max_length=500)] = "",
    form: Annotated[Literal["text", "lines"], Query(alias="format")] = "text",
    download: bool = False,
    *,
    by: By,
    budget: Budget,
) -> Response:
    """Return a piece of the log from a byte offset; or lines that contain a text, as JSON.

    ``x-log-end`` is the next offset, and ``x-log-live`` tells whether more may come.
    """
    index = max(map_index, round_number)
    is_live = await api.reads.prints_on(run_id, task_id, map_index=index)  # before reading
    read = await api.log(run_id, task_id, map_index=index, try_number=try_number)
    if form == "lines":
        count = min(limit, PAGE)
        lines = partial(find_lines, read, search, offset=offset, limit=count)
        return BudgetedResponse(budget, by.name, count * _SHOWN_BYTES, partial(_as_json, lines))
    make = partial(_as_text, read, offset, limit, is_live=is_live, is_file=download)
    return BudgetedResponse(budget, by.name, limit, make)


async def _as_json(lines: Callable[[], Awaitable[LogLinesView]]) -> Response:
    return Json(await lines())


async def _as_text(read: Log, offset: int, limit: int, *, is_live: bool, is_file: bool) -> Response:
    data = await read(offset, limit)
    headers = {"x-log-end": str(offset + len(data)), "x-log-live": str(int(is_live))}
    if is_file:
        headers["content-disposition"] = 'attachment; filename="task.log"'
    # Tasks may print anything: never use a type that a browser would execute.
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)
