"""The routes of logs: as text, from a byte on, and as lines that contain something."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from aioflow.api import Api
from aioflow.api.reader import PAGE
from aioflow.web.answers import Json, MapIndex, Offset, TryNumber

__all__ = ("add_logs",)

_LOG_BYTES = 4 * 1024 * 1024


def add_logs(router: APIRouter, api: Api) -> None:
    """Add them."""

    @router.get("/runs/{run_id}/tasks/{task_id}/logs", response_class=Response)
    async def logs(
        run_id: str,
        task_id: str,
        map_index: Annotated[MapIndex, Query(alias="map")] = -1,
        round_number: Annotated[MapIndex, Query(alias="round")] = -1,
        try_number: Annotated[TryNumber, Query(alias="try")] = None,
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=1, le=_LOG_BYTES)] = _LOG_BYTES,
        search: Annotated[str, Query(max_length=500)] = "",
        form: Annotated[Literal["text", "lines"], Query(alias="format")] = "text",
        download: bool = False,
    ) -> Response:
        """Return what it printed, from a byte on, a piece at a time; or lines with a text, as JSON.

        ``x-log-end`` is where to ask on, and ``x-log-live`` says whether more may come.
        """
        index = max(map_index, round_number)
        if form == "lines":
            lines = min(limit, PAGE)
            return Json(
                await api.reads.find_lines(
                    run_id,
                    task_id,
                    search,
                    map_index=index,
                    try_number=try_number,
                    offset=offset,
                    limit=lines,
                )
            )
        is_live = await api.reads.prints_on(run_id, task_id, map_index=index)
        data = await api.logs(
            run_id,
            task_id,
            map_index=index,
            try_number=try_number,
            offset=offset,
            limit=limit,
        )
        headers = {"x-log-end": str(offset + len(data)), "x-log-live": str(int(is_live))}
        if download:
            headers["content-disposition"] = 'attachment; filename="task.log"'
        # Tasks print what they like: never a type that a browser would run.
        return Response(data, media_type="text/plain; charset=utf-8", headers=headers)
