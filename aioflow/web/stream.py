"""Routes for the stream of commits, and for logs: as text, as matching lines, and as a stream."""

from __future__ import annotations

import codecs
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Literal, TypeAlias

import anyio
from fastapi import Header, Query, Response
from starlette.types import Receive, Scope, Send

from aioflow.api import Api
from aioflow.api.live_stream import PER_CALLER, Commits, Topic, frame
from aioflow.api.page_schemas import LogLinesView
from aioflow.api.queries import PAGE, Log
from aioflow.api.task_instances import LOG_LINE_BYTES, find_log_lines
from aioflow.web.limits import BudgetedResponse
from aioflow.web.permissions import By, viewer
from aioflow.web.problems import problem
from aioflow.web.routing import (
    MAX_ROW_NO,
    Budget,
    Json,
    MapIndex,
    NodeApi,
    Offset,
    RoundNumber,
    TryNumber,
    api_router,
)

__all__ = (
    "log_router",
    "router",
)

_HEARTBEAT_SECONDS = 15.0
_POLL_SECONDS = 1.0
_LOG_PIECE = 256 * 1024
_PACE_SECONDS = 0.04
_BUSY_SECONDS = 5

_TOO_MANY = "web.too_many_streams"

_HEARTBEAT = b": still here\n\n"

router = api_router()

_Put: TypeAlias = Callable[[bytes], Awaitable[None]]
_Since = Annotated[int | None, Query(ge=0, le=MAX_ROW_NO)]
_LastId = Annotated[str | None, Header(alias="last-event-id")]


class _EventStream(Response):
    """Sends events until the client disconnects or the scope is cancelled.

    Args:
        who: The caller.
        tell: Sends the events. It is called with a function that sends one message.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        commits: Commits,
        who: str,
        scope: anyio.CancelScope,
        tell: Callable[[_Put], Awaitable[None]],
    ) -> None:
        super().__init__()
        self._commits = commits
        self._who = who
        self._scope = scope
        self._tell = tell
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the framework."""
        refusal = self._refusal()  # not in the route: other clients may have connected since
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        with self._commits.watching(self._who):
            await self._send_all(receive, send)

    def _refusal(self) -> Response | None:
        if self._commits.is_full:
            detail = "too many live streams; retry later, or poll"
            return problem(503, _TOO_MANY, detail, {"retry-after": str(_BUSY_SECONDS)})
        if self._commits.has_enough(self._who):
            detail = f"you have {PER_CALLER} open streams, which is the limit; close one"
            return problem(429, _TOO_MANY, detail, {"retry-after": str(_BUSY_SECONDS)})
        return None

    async def _send_all(self, receive: Receive, send: Send) -> None:
        async def put(message: bytes) -> None:
            await send({"type": "http.response.body", "body": message, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with self._scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive)
                await self._tell(put)
                group.cancel_scope.cancel()
        with anyio.move_on_after(_POLL_SECONDS):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._scope.cancel()


@router.get("/stream", response_class=Response, dependencies=[viewer("query")])
async def stream(
    api: NodeApi,
    since: _Since = None,
    dag: str | None = None,
    run: str | None = None,
    last_event_id: _LastId = None,
    *,
    by: By,
) -> Response:
    """Stream commits as server-sent events whose id is the number of the commit.

    The first event is ``ready``, or ``reset`` if ``since`` or the last event id is not the number
    of the last commit. After ``reset`` the client must reload everything: it has missed commits.
    """
    after = since
    if last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) < 19:
        after = int(last_event_id)
    return _stream(api, by.name, Topic(dag, run), after)


@router.get(
    "/runs/{run_id}/tasks/{task_id}/logs/stream",
    response_class=Response,
    dependencies=[viewer("run")],
)
async def follow_log(
    api: NodeApi,
    run_id: str,
    task_id: str,
    map_index: MapIndex = -1,
    round_number: RoundNumber = -1,
    try_number: TryNumber = None,
    offset: Offset = 0,
    last_event_id: _LastId = None,
    *,
    by: By,
) -> Response:
    """Stream the output of a task as server-sent events whose id is the next byte offset.

    An event ``end`` follows when the task has ended and all output has been sent.
    """
    index = max(map_index, round_number)
    is_live = await api.reads.prints_on(run_id, task_id, map_index=index)
    if last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) < 16:
        offset = int(last_event_id)
    read = await api.log(run_id, task_id, map_index=index, try_number=try_number)

    async def prints_on() -> bool:
        return await api.reads.prints_on(run_id, task_id, map_index=index)

    scope = anyio.CancelScope()
    log = _Log(api, read, prints_on, is_live=is_live)

    async def tell(put: _Put) -> None:
        with api.reads.commits.reading(scope):
            await log.tell(put, offset)

    return _EventStream(api.reads.commits, by.name, scope, tell)


def _stream(api: Api, who: str, wanted: Topic, after: int | None) -> Response:
    scope = anyio.CancelScope()

    async def tell(put: _Put) -> None:
        upto = api.reads.commit_no
        with api.reads.commits.follow(wanted, upto, scope) as follower:
            first = "ready" if after in {None, upto} else "reset"
            await put(frame(first, {"commit": upto}, upto))
            while True:
                await put(await follower.next_message(_HEARTBEAT_SECONDS) or _HEARTBEAT)

    return _EventStream(api.reads.commits, who, scope, tell)


class _Log:
    """Streams the output of a task.

    Args:
        read: Reads its log from an offset.
        prints_on: Returns whether it may print more.
    """

    def __init__(
        self,
        api: Api,
        read: Log,
        prints_on: Callable[[], Awaitable[bool]],
        *,
        is_live: bool,
    ) -> None:
        self._api = api
        self._read = read
        self._prints_on = prints_on
        self._is_live = is_live
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    async def tell(self, put: _Put, offset: int) -> None:
        """Send output from an offset on, until the task has ended and all output has been sent."""
        await put(b": here\n\n")
        silent = 0.0
        while True:
            data = await self._read(offset, _LOG_PIECE)
            if data:
                silent = 0.0
                text = self._decoder.decode(data)
                told = {"offset": offset, "text": text}
                offset += len(data)
                await put(frame("log", told, offset))
                if len(data) == _LOG_PIECE:  # more follows: let other tasks use the event loop
                    await self._api.clock.sleep(_PACE_SECONDS)
            elif not self._is_live:
                await put(frame("end", {"offset": offset}, offset))
                return
            else:
                self._is_live = await self._prints_on()  # if the task has ended, read once more
                silent = await self._rest(put, silent)

    async def _rest(self, put: _Put, silent: float) -> float:
        if self._is_live:
            await self._api.clock.sleep(_POLL_SECONDS)
        if silent + _POLL_SECONDS < _HEARTBEAT_SECONDS:
            return silent + _POLL_SECONDS
        await put(_HEARTBEAT)
        return 0.0


_LOG_BYTES = 4 * 1024 * 1024
_SHOWN_LINE_BYTES = 6 * LOG_LINE_BYTES
"""Maximum JSON size of a line, if it consists of control characters."""


log_router = api_router()


@log_router.get(
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
    """Return a part of a task's log from a byte offset, or its lines that match a text, as JSON.

    The header ``x-log-end`` is the next offset; ``x-log-live`` is 1 if more output may follow.
    """
    index = max(map_index, round_number)
    is_live = await api.reads.prints_on(run_id, task_id, map_index=index)  # before reading
    read = await api.log(run_id, task_id, map_index=index, try_number=try_number)
    if form == "lines":
        count = min(limit, PAGE)
        lines = partial(find_log_lines, read, search, offset=offset, limit=count)
        return BudgetedResponse(
            budget, by.name, count * _SHOWN_LINE_BYTES, partial(_lines_as_json, lines)
        )
    make = partial(_log_as_text, read, offset, limit, is_live=is_live, is_file=download)
    return BudgetedResponse(budget, by.name, limit, make)


async def _lines_as_json(lines: Callable[[], Awaitable[LogLinesView]]) -> Response:
    return Json(await lines())


async def _log_as_text(
    read: Log, offset: int, limit: int, *, is_live: bool, is_file: bool
) -> Response:
    data = await read(offset, limit)
    headers = {"x-log-end": str(offset + len(data)), "x-log-live": str(int(is_live))}
    if is_file:
        headers["content-disposition"] = 'attachment; filename="task.log"'
    # Tasks may print anything: never use a type that a browser would execute.
    return Response(data, media_type="text/plain; charset=utf-8", headers=headers)
