"""Requests that a standby forwards to the active node, and their execution there.

A standby authenticates the caller. It forwards every change, and the reads that need the memory of
the active node. All other reads it answers from rows. If no node is active, it answers the reads
that need memory from rows, too, with less detail. The active node checks the caller again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aioflow.api import Api
from aioflow.api.node_queries import (
    READ_SECONDS,
    Answer,
    HttpAnswer,
    HttpQuery,
    NodeQueries,
    OwnQuery,
    Query,
)
from aioflow.errors import AioflowError, NoActiveNode, StoreError
from aioflow.web.auth_context import request_context, set_forwarded_query
from aioflow.web.csrf import SAFE_METHODS
from aioflow.web.permissions import each_route
from aioflow.web.problems import problem, problem_of

__all__ = ("ANSWERED_FROM_ROWS", "Forwarder", "respond")

ANSWERED_FROM_ROWS = frozenset(
    {
        "/api/v1/audit",
        "/api/v1/backfills",
        "/api/v1/backfills/{backfill_id}",
        "/api/v1/connections",
        "/api/v1/dag-tags",
        "/api/v1/dags",
        "/api/v1/dags/recent",
        "/api/v1/dags/{dag_id}/code",
        "/api/v1/dags/{dag_id}/graph",
        "/api/v1/dags/{dag_id}/versions",
        "/api/v1/events",
        "/api/v1/history/dags",
        "/api/v1/history/dags/{dag_id}",
        "/api/v1/history/dags/{dag_id}/failures",
        "/api/v1/history/dags/{dag_id}/tasks",
        "/api/v1/history/runs",
        "/api/v1/history/timeline",
        "/api/v1/import-errors",
        "/api/v1/me",
        "/api/v1/openapi.json",
        "/api/v1/run-facets",
        "/api/v1/runs",
        "/api/v1/runs/{run_id}/logs",
        "/api/v1/runs/{run_id}/tasks/{task_id}/logs",
        "/api/v1/runs/{run_id}/tasks/{task_id}/logs/stream",
        "/api/v1/secrets",
        "/api/v1/sessions",
        "/api/v1/stream",
        "/api/v1/tokens",
        "/api/v1/users",
        "/api/v1/variables",
    }
)
"""Reads that a standby answers just as the active node would, because they need only rows."""

_PREFIX = "/api/v1/"
_MOST_BYTES = 16 * 1024 * 1024
_HEADERS = frozenset({b"accept", b"content-type", b"idempotency-key", b"user-agent"})
_NOT_RETURNED = frozenset({b"connection", b"content-length", b"date", b"transfer-encoding"})


class Forwarder:
    """Forwards requests to the active node, or passes them to the application of this node.

    Args:
        app: The application of this node, which answers from rows.
        routes: The routes of the application.
        cookie_name: The name of this node's session cookie.
    """

    def __init__(
        self,
        app: ASGIApp,
        api: Api,
        queries: NodeQueries,
        routes: Sequence[BaseRoute],
        cookie_name: str,
    ) -> None:
        self._app = app
        self._api = api
        self._queries = queries
        self._routes = list(each_route(routes))
        self._cookie_name = cookie_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request that has passed the guard."""
        is_read = scope["method"] in SAFE_METHODS
        if not scope["path"].startswith(_PREFIX) or (is_read and self._is_answered_here(scope)):
            await self._app(scope, receive, send)
            return
        try:
            if not is_read and self._api.follower is not None:
                self._api.follower.check_current()
            answer = await self._answer(scope, receive, is_read=is_read)
        except (NoActiveNode, StoreError) as exc:
            if is_read:
                await self._app(scope, receive, send)
                return
            await problem_of(exc)(scope, receive, send)
            return
        except AioflowError as exc:
            await problem_of(exc)(scope, receive, send)
            return
        except ClientDisconnect:
            gone = problem(400, "request.invalid", "the client went away within the body")
            await gone(scope, receive, send)
            return
        await _response(answer)(scope, receive, send)

    def _is_answered_here(self, scope: Scope) -> bool:
        for route in self._routes:
            if route.matches(scope)[0] is Match.FULL:
                return getattr(route, "path", "") in ANSWERED_FROM_ROWS
        return True  # there is no such path

    async def _answer(self, scope: Scope, receive: Receive, *, is_read: bool) -> HttpAnswer:
        follower = self._api.follower
        if is_read and follower is not None and not follower.active_node.is_alive:
            raise NoActiveNode(is_sent=False)  # the client can read the rows here instead
        context = request_context(scope)
        if context is None:
            raise RuntimeError("the guard let a request without context through")
        headers = tuple((name, value) for name, value in scope["headers"] if name in _HEADERS)
        query = HttpQuery(
            method=scope["method"],
            scheme=scope["scheme"],
            path=scope["path"],
            raw_path=scope["raw_path"],
            query_string=scope["query_string"],
            headers=headers,
            body=b"" if is_read else await Request(scope, receive).body(),
            request_id=context.request_id,
            address=context.address,
            caller=context.caller,
            cookie=context.cookie,
            cookie_name=self._cookie_name,
        )
        if is_read:
            answer = await self._queries.ask(query, is_repeatable=False, seconds=READ_SECONDS)
        else:
            has_key = any(name == b"idempotency-key" for name, _ in headers)
            answer = await self._queries.ask(query, is_repeatable=has_key)
        if not isinstance(answer, HttpAnswer):
            raise NoActiveNode(is_sent=True)
        context.is_forwarded = True
        if not is_read and self._api.follower is not None:
            await self._api.follower.catch_up()  # a new session or token is valid here at once
        return answer


def respond(app: ASGIApp, api: Api) -> Callable[[Query], Awaitable[Answer]]:
    """Return the function that answers the queries of standbys.

    Args:
        app: The guarded application.
    """

    async def answer(query: Query) -> Answer:
        if isinstance(query, OwnQuery):
            return await api.answer_standby(query)
        return await _executed(app, query)

    return answer


async def _executed(app: ASGIApp, query: HttpQuery) -> HttpAnswer:
    """Execute a request that a standby has forwarded."""
    parts: list[bytes] = []
    head: dict[str, Message] = {}

    async def receive() -> Message:
        return {"type": "http.request", "body": query.body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            head["start"] = message
        else:
            parts.append(message.get("body", b""))

    await app(_scope_of(query), receive, send)
    body, start = b"".join(parts), head.get("start")
    if start is None or len(body) > _MOST_BYTES:
        refusal = problem(503, "node.answer_too_large", "the answer is too large; ask for less")
        body = bytes(refusal.body)
        start = {"status": refusal.status_code, "headers": refusal.raw_headers}
    headers = tuple((bytes(n), bytes(v)) for n, v in start["headers"] if n not in _NOT_RETURNED)
    return HttpAnswer(status=start["status"], headers=headers, body=body)


def _scope_of(query: HttpQuery) -> Scope:
    length = (b"content-length", str(len(query.body)).encode())
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": query.method,
        "scheme": query.scheme,
        "path": query.path,
        "raw_path": query.raw_path,
        "query_string": query.query_string,
        "root_path": "",
        "headers": [*query.headers, length] if query.body else [*query.headers],
        "client": None,
        "server": None,
        "state": {},
    }
    set_forwarded_query(scope, query)
    return scope


def _response(answer: HttpAnswer) -> Response:
    response = Response(answer.body, answer.status)
    length = (b"content-length", str(len(answer.body)).encode())
    response.raw_headers = [*answer.headers, length]
    return response
