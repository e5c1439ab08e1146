"""Routes for the logs of tasks and runs, as text or as lines that can be searched."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from fastapi import Query, Response
from starlette.types import Receive, Scope, Send

from aioflow.api import Api
from aioflow.api.logs.lines import LineRange, TriedLog
from aioflow.api.logs.run_log import RunLogRange
from aioflow.api.page.schemas import RunLogLineView
from aioflow.api.queries import PAGE
from aioflow.api.waits.sentences import task_name
from aioflow.web.limits import BudgetedResponse, ResponseBudget
from aioflow.web.permissions import By, viewer
from aioflow.web.problems import problem
from aioflow.web.routing import (
    Budget,
    Count,
    Json,
    MapIndex,
    NodeApi,
    Offset,
    RoundNumber,
    TryNumber,
    api_router,
)
from aioflow.worker.log_text import LINE_BYTES, LineFilter, plain_text

__all__ = ("router",)

_LOG_BYTES = 4 * 1024 * 1024
_SHOWN_LINE_BYTES = 6 * LINE_BYTES
"""Maximum size of a line in JSON, reached if it consists of control characters."""

_TEXT = "text/plain; charset=utf-8"
_TOO_MANY = "web.too_much_held"
_PIECE_BYTES = 256 * 1024
_WAIT_SECONDS = 5.0
_MAX_LINE = 1 << 53
_TASKS = 50

router = api_router()

_Search: TypeAlias = Annotated[str, Query(max_length=500)]
_Level: TypeAlias = Literal["debug", "info", "warning", "error", "critical"] | None
_OptionalOffset: TypeAlias = Annotated[int | None, Query(ge=0, le=1 << 53)]


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
    limit: Annotated[int | None, Query(ge=1, le=_LOG_BYTES)] = None,
    search: _Search = "",
    form: Annotated[Literal["text", "lines"], Query(alias="format")] = "text",
    *,
    download: bool = False,
    before: _OptionalOffset = None,
    line: Annotated[int | None, Query(ge=1, le=_MAX_LINE)] = None,
    tail: bool = False,
    regex: bool = False,
    case: bool = False,
    level: _Level = None,
    by: By,
    budget: Budget,
) -> Response:
    """Return a part of a task's log from a byte offset, or its lines, as JSON.

    For text, the header ``x-log-end`` is the next offset, and ``x-log-live`` is 1 if more output
    may follow. Lines start at an offset or a line number, or are the last ones before an offset or
    of the log. They can be filtered by a text, a regular expression, and a minimum level.
    ``download`` without ``limit`` returns the whole text, in pieces.
    """
    index = max(map_index, round_number)
    is_live = await api.reads.prints_on(run_id, task_id, map_index=index)  # before reading
    log = await api.log(run_id, task_id, map_index=index, try_number=try_number)
    if form == "lines":
        wanted = LineRange(
            limit=min(limit or PAGE, PAGE),
            offset=offset,
            before=before,
            line=line,
            is_tail=tail,
            wanted=LineFilter(search, regex, case, level),
        )
        size = wanted.limit * _SHOWN_LINE_BYTES
        make = partial(_as_json, partial(api.read_lines, log, wanted, is_live=is_live))
        return BudgetedResponse(budget, by.name, size, make)
    if download and limit is None:
        return _Download(budget, by.name, _pieces_of(log, offset), "task.log")
    size = limit or _LOG_BYTES
    text = partial(_log_as_text, log, offset, size, is_live=is_live, is_file=download)
    return BudgetedResponse(budget, by.name, size, text)


@router.get("/runs/{run_id}/logs", response_class=Response, dependencies=[viewer("run")])
async def run_logs(
    api: NodeApi,
    run_id: str,
    cursor: Annotated[str, Query(max_length=200)] = "",
    limit: Count = PAGE,
    task: Annotated[list[str], Query(max_length=_TASKS)] = [],  # noqa: B006 - never changed
    search: _Search = "",
    *,
    tail: bool = False,
    regex: bool = False,
    case: bool = False,
    level: _Level = None,
    download: bool = False,
    by: By,
    budget: Budget,
) -> Response:
    """Return lines of all tasks of a run in chronological order, or the last ones with ``tail``.

    Continue with ``next`` as the cursor or, later when there is more output, with ``resume``.
    ``download`` returns all lines as text, each with the time and the task.
    """
    wanted = RunLogRange(
        cursor=cursor,
        is_tail=tail,
        limit=limit,
        tasks=task,
        wanted=LineFilter(search, regex, case, level),
    )
    await api.run(run_id)  # an unknown run is refused before the response waits for memory
    if download:
        return _Download(budget, by.name, _run_pieces(api, run_id, wanted), "run.log")
    make = partial(_as_json, partial(api.run_log, run_id, wanted))
    return BudgetedResponse(budget, by.name, limit * _SHOWN_LINE_BYTES, make)


class _Download(Response):
    """Sends a text of any length in pieces, as fast as the client reads them."""

    def __init__(
        self, budget: ResponseBudget, who: str, pieces: AsyncGenerator[bytes, None], name: str
    ) -> None:
        super().__init__(media_type=_TEXT)
        del self.headers["content-length"]
        self.headers["content-disposition"] = f'attachment; filename="{name}"'
        self._budget = budget
        self._who = who
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the text."""
        share = await self._budget.take(self._who, _PIECE_BYTES, patience_seconds=_WAIT_SECONDS)
        if share is None:
            detail = "too many downloads; retry later"
            await problem(503, _TOO_MANY, detail, {"retry-after": "5"})(scope, receive, send)
            return
        try:
            async with aclosing(self._pieces) as pieces:
                start = {"status": 200, "headers": self.raw_headers}
                await send({"type": "http.response.start", **start})
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            share.resize(0)


async def _pieces_of(log: TriedLog | None, offset: int) -> AsyncGenerator[bytes, None]:
    end = 0 if log is None else await log.read.size()
    while log is not None and offset < end:
        piece = await log.read(offset, min(_PIECE_BYTES, end - offset))
        if not piece:
            return
        offset += len(piece)
        yield piece


async def _run_pieces(api: Api, run_id: str, wanted: RunLogRange) -> AsyncGenerator[bytes, None]:
    cursor: str | None = wanted.cursor
    while cursor is not None:
        page = await api.run_log(run_id, msgspec.structs.replace(wanted, cursor=cursor))
        lines = [f"{line.at} {_name_of(line)} {plain_text(line.text)}\n" for line in page.items]
        yield "".join(lines).encode()
        cursor = page.next


def _name_of(line: RunLogLineView) -> str:
    name = task_name(line.task_id, line.map_index, line.round, line.map_label)
    return f"{name} try {line.try_number}" if line.try_number > 1 else name


async def _as_json(read: Callable[[], Awaitable[Any]]) -> Response:
    return Json(await read())


async def _log_as_text(
    log: TriedLog | None, offset: int, limit: int, *, is_live: bool, is_file: bool
) -> Response:
    data = b"" if log is None else await log.read(offset, limit)
    headers = {"x-log-end": str(offset + len(data)), "x-log-live": str(int(is_live))}
    if is_file:
        headers["content-disposition"] = 'attachment; filename="task.log"'
    # Tasks may print anything, so never use a type that a browser would execute.
    return Response(data, media_type=_TEXT, headers=headers)
