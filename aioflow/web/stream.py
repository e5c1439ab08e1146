"""Routes for the stream of commits, and for the output of a task as it is printed."""

from __future__ import annotations

import codecs
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Literal, TypeAlias

import anyio
import msgspec
from fastapi import Header, Query, Response
from starlette.types import Receive, Scope, Send

from aioflow.api import Api
from aioflow.api.live_stream import (
    PER_CALLER,
    Commits,
    Topic,
    frame,
    position_of,
    stream_id,
)
from aioflow.api.logs.lines import LineRange, TriedLog
from aioflow.api.page.schemas import LogLineView
from aioflow.web.permissions import By, viewer
from aioflow.web.problems import problem
from aioflow.web.routing import (
    MapIndex,
    NodeApi,
    Offset,
    RoundNumber,
    TryNumber,
    api_router,
)

__all__ = ("router",)

_HEARTBEAT_SECONDS = 15.0
_POLL_SECONDS = 1.0
_LOG_PIECE = 256 * 1024
_LINES = 1_000
_PACE_SECONDS = 0.04
_BUSY_SECONDS = 5

_TOO_MANY = "web.too_many_streams"

_HEARTBEAT = b": still here\n\n"

router = api_router()

_Put: TypeAlias = Callable[[bytes], Awaitable[None]]
_Since = Annotated[str | None, Query(max_length=2_000, pattern=r"^[0-9:,]+$")]
_LastId = Annotated[str | None, Header(alias="last-event-id")]


class _EventStream(Response):
    """Sends events until the client disconnects or the scope is cancelled.

    Args:
        who: The caller.
        tell: Sends the events. Called with a function that sends one message.
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
        """Send the events."""
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
    """Stream commits as server-sent events. The id of an event lists the last commit of each node.

    The first event is ``ready``, or ``reset`` if ``since`` or the last event id is not the id of
    the last commit. After ``reset`` the client must reload everything, because it has missed
    commits. A standby also sends ``active_node`` at the start, and whenever the state of the active
    node has changed.
    """
    given = last_event_id if last_event_id and position_of(last_event_id) else since
    return _stream(api, by.name, Topic(dag, run), given)


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
    form: Annotated[Literal["text", "lines"], Query(alias="format")] = "text",
    last_event_id: _LastId = None,
    *,
    by: By,
) -> Response:
    """Stream the output of a task as server-sent events. The id of an event is the next offset.

    The events are named ``log`` and contain text, or ``lines`` if that is the format. A line whose
    end is missing is sent again when there is more of it. An event ``end`` follows when the task
    has ended and all output has been sent.
    """
    index = max(map_index, round_number)
    is_live = await api.reads.prints_on(run_id, task_id, map_index=index)
    if last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) < 16:
        offset = int(last_event_id)
    found = await api.log(run_id, task_id, map_index=index, try_number=try_number)

    async def prints_on() -> bool:
        return await api.reads.prints_on(run_id, task_id, map_index=index)

    scope = anyio.CancelScope()
    log = _Log(api, found, prints_on, is_live=is_live)

    async def tell(put: _Put) -> None:
        with api.reads.commits.reading(scope):
            await log.tell(put, offset, in_lines=form == "lines")

    return _EventStream(api.reads.commits, by.name, scope, tell)


def _stream(api: Api, who: str, wanted: Topic, given: str | None) -> Response:
    scope = anyio.CancelScope()

    async def tell(put: _Put) -> None:
        upto, position = api.reads.commit_no, api.reads.position
        with api.reads.commits.follow(wanted, api.reads.stream_order, scope) as follower:
            is_missed = given is not None and not _is_reached(given, position)
            first = "reset" if is_missed else "ready"
            await put(frame(first, {"commit": upto}, stream_id(position)))
            if api.follower is not None:
                await put(api.follower.active_node.message())
            while True:
                await put(await follower.next_message(_HEARTBEAT_SECONDS) or _HEARTBEAT)

    return _EventStream(api.reads.commits, who, scope, tell)


def _is_reached(given: str, position: Mapping[int, int]) -> bool:
    """Return whether a client that has seen ``given`` has missed no commits."""
    seen = position_of(given)
    return seen is not None and {n: no for n, no in seen.items() if no} == {
        n: no for n, no in position.items() if no
    }


class _Log:
    """Streams the output of a task.

    Args:
        log: The log of the task; ``None`` if there is no such try.
        prints_on: Returns whether the task may print more.
    """

    def __init__(
        self,
        api: Api,
        log: TriedLog | None,
        prints_on: Callable[[], Awaitable[bool]],
        *,
        is_live: bool,
    ) -> None:
        self._api = api
        self._log = log
        self._prints_on = prints_on
        self._is_live = is_live
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._open: LogLineView | None = None

    async def tell(self, put: _Put, offset: int, *, in_lines: bool) -> None:
        """Send output from an offset on, until the task has ended and everything has been sent."""
        await put(b": here\n\n")
        silent, send = 0.0, self._send_lines if in_lines else self._send_text
        while True:
            upto, is_more = await send(put, offset)
            if upto != offset or is_more:
                silent, offset = 0.0, upto
                if is_more:  # let other tasks use the event loop
                    await self._api.clock.sleep(_PACE_SECONDS)
            elif not self._is_live:
                await put(frame("end", {"offset": offset}, offset))
                return
            else:
                self._is_live = await self._prints_on()  # if the task has ended, read once more
                silent = await self._rest(put, silent)

    async def _send_text(self, put: _Put, offset: int) -> tuple[int, bool]:
        """Send a piece of output. Return the next offset, and whether more output is available."""
        data = b"" if self._log is None else await self._log.read(offset, _LOG_PIECE)
        if data:
            text = self._decoder.decode(data)
            await put(frame("log", {"offset": offset, "text": text}, offset + len(data)))
        return offset + len(data), len(data) == _LOG_PIECE

    async def _send_lines(self, put: _Put, offset: int) -> tuple[int, bool]:
        if self._log is None:
            return offset, False
        wanted = LineRange(offset=offset, limit=_LINES)
        found = await self._api.lines.read(self._log, wanted)
        if found.lines and found.lines != [self._open]:
            self._open = last = found.lines[-1]
            after = last.offset if last.is_open else found.end_offset
            lines = msgspec.to_builtins(found.lines)
            await put(frame("lines", {"lines": lines, "next_offset": after}, after))
            offset = after
        return offset, found.next_offset is not None

    async def _rest(self, put: _Put, silent: float) -> float:
        if self._is_live:
            await self._api.clock.sleep(_POLL_SECONDS)
        if silent + _POLL_SECONDS < _HEARTBEAT_SECONDS:
            return silent + _POLL_SECONDS
        await put(_HEARTBEAT)
        return 0.0
