"""Limits of the web server: connections, request heads and bodies, and memory of responses.

The number of connections is limited, in total and per address. The time until the head of a request
is complete is limited. Bodies are read completely before routing, with limits on size, nesting
depth and time.

The memory of responses is bounded in total and per caller. A large response waits for a share of
the memory budget before any of its data is read. It is rejected if it does not get the share in
time. The data is sent in pieces, so that the connection holds no second copy.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeAlias, cast

import anyio
import h11
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aioflow.web.problems import problem

__all__ = (
    "ANONYMOUS_BODY_LIMIT",
    "BODY_LIMIT",
    "HEAD_BYTES",
    "HEAD_SECONDS",
    "JSON_DEPTH",
    "MAX_CONNECTIONS",
    "MAX_CONNECTIONS_PER_ADDRESS",
    "MAX_RESPONSE_BYTES",
    "MAX_RESPONSE_BYTES_PER_CALLER",
    "PIECE_BYTES",
    "BudgetShare",
    "BudgetedResponse",
    "Connections",
    "ResponseBudget",
    "is_json_too_deep",
    "read_body",
    "refused_content_type",
)

HEAD_BYTES = 16 * 1024
"""Maximum size of a request's first line and headers."""

HEAD_SECONDS = 10.0
"""Maximum time from a connection's start or reuse until the head of its request is complete."""

MAX_CONNECTIONS = 1_000
MAX_CONNECTIONS_PER_ADDRESS = 200

_Client: TypeAlias = tuple[str, int] | None

_TOO_MANY_CONNECTIONS = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nretry-after: 5\r\n"
    b"connection: close\r\n\r\n"
)


def _is_logged(record: logging.LogRecord) -> bool:
    """Return whether to log a record. Skip invalid HTTP from clients, and cancelled requests."""
    kind = record.exc_info[0] if record.exc_info else None
    is_cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
    return record.levelno >= logging.ERROR and not is_cancelled


logging.getLogger("uvicorn.error").addFilter(_is_logged)


class Connections:
    """The open connections of one server, their limits, and the requests in progress.

    This is the outermost application of the server, and it wraps the server's protocol. Nothing
    here parses HTTP: the head of a request is complete when the server calls the application.

    Args:
        app: The application.
        in_all: Maximum number of connections.
        from_one: Maximum number of connections per address; not applied to a Unix socket.
        head_seconds: See ``HEAD_SECONDS``.
        is_exempt: Returns whether an address is that of a proxy, to which ``from_one`` does not
            apply.

    Attributes:
        requests: The path of each request in progress, by the task that handles it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        in_all: int = MAX_CONNECTIONS,
        from_one: int = MAX_CONNECTIONS_PER_ADDRESS,
        head_seconds: float = HEAD_SECONDS,
        is_exempt: Callable[[str], bool] = lambda address: False,
    ) -> None:
        self.head_seconds = head_seconds
        self.requests: dict[asyncio.Task[Any], str] = {}
        self._app = app
        self._is_exempt = is_exempt
        self._in_all = in_all
        self._from_one = from_one
        self._open: Counter[str] = Counter()
        self._accepted: set[_Connection] = set()
        self._by_client: dict[_Client, _Connection] = {}

    def protocol(self, http: Callable[..., asyncio.Protocol]) -> type[asyncio.Protocol]:
        """Return the server's HTTP protocol, with these limits applied."""
        return type("Connection", (_Connection,), {"connections": self, "http": staticmethod(http)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. The server calls this when the head of the request is complete."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a server calls an application in a task")
        connection = self._by_client.get(scope.get("client"))
        self.requests[task] = scope["path"]
        if connection is not None:
            connection.begin_request()
        try:
            await self._app(scope, receive, send)
        finally:
            del self.requests[task]
            if connection is not None:
                connection.end_request()

    def accept(self, connection: _Connection) -> bool:
        """Count a connection. Return whether it is within the limits.

        Without an address, only the total is limited.
        """
        address = connection.address
        self._open[address] += 1
        is_many = self._open[address] > self._from_one
        if is_many and (not address or self._is_exempt(address)):
            is_many = False
        if is_many or self._open.total() > self._in_all:
            return False
        self._accepted.add(connection)
        if connection.client is not None:
            self._by_client[connection.client] = connection
        return True

    def release(self, connection: _Connection) -> None:
        """Stop counting a closed connection."""
        self._open[connection.address] -= 1
        if not self._open[connection.address]:
            del self._open[connection.address]
        if connection in self._accepted:
            self._accepted.discard(connection)
            if self._by_client.get(connection.client) is connection:  # the address may be reused
                del self._by_client[connection.client]

    def abort(self) -> None:
        """Close all connections immediately."""
        for connection in tuple(self._accepted):
            connection.abort()


class _Connection(asyncio.Protocol):
    """A connection that passes calls of the event loop to the HTTP protocol, within the limits.

    Connections without a client address have no time limit. These are connections of the home's
    Unix socket.
    """

    connections: ClassVar[Connections]
    http: ClassVar[Callable[..., asyncio.Protocol]]

    def __init__(self, *args: Any, **more: Any) -> None:
        self._http = self.http(*args, **more)
        self.client: _Client = None
        self._is_accepted = False
        self._requests = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or reject it with an error response if there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.client = str(peer[0]), int(peer[1])
        self._is_accepted = self.connections.accept(self)
        if not self._is_accepted:
            self._transport.write(_TOO_MANY_CONNECTIONS)
            self._transport.close()
            return
        self._wait_for_head()
        self._http.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        self.connections.release(self)
        self._stop_waiting()
        if self._is_accepted:
            self._http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass data to the HTTP protocol. If no request is in progress, start the time limit."""
        if self._transport.is_closing():
            return
        if not self._requests:
            self._wait_for_head()
        try:
            self._http.data_received(data)
        except h11.LocalProtocolError:  # an invalid body of a request already answered
            self._transport.abort()

    def eof_received(self) -> bool | None:
        """Pass the call to the HTTP protocol."""
        return self._http.eof_received()

    def pause_writing(self) -> None:
        """Pass the call to the HTTP protocol."""
        self._http.pause_writing()

    def resume_writing(self) -> None:
        """Pass the call to the HTTP protocol."""
        self._http.resume_writing()

    def begin_request(self) -> None:
        """Stop the time limit, because the head of a request is complete."""
        self._requests += 1
        self._stop_waiting()

    def end_request(self) -> None:
        """Allow the time limit to start again when the next data arrives."""
        self._requests -= 1

    def abort(self) -> None:
        """Close the connection immediately."""
        self._transport.abort()

    @property
    def address(self) -> str:
        """The client's address; empty over a Unix socket."""
        return "" if self.client is None else self.client[0]

    def _wait_for_head(self) -> None:
        if self._timer is None and self.client is not None:
            seconds = self.connections.head_seconds
            self._timer = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


BODY_LIMIT = 1024 * 1024
"""Maximum size of a request's body in bytes."""

ANONYMOUS_BODY_LIMIT = 16 * 1024
"""Maximum size of a body before authentication. It is small because of a thousand connections."""

JSON_DEPTH = 64
"""Maximum nesting depth of lists and objects."""

_BODY_SECONDS = 30.0

# An unclosed string matches up to the end of the body. If the pattern could fail, it would be tried
# again from each quote, which takes quadratic time.
_JSON_STRING = re.compile(rb'(?s)"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z)')
_TO_SQUARE_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_JSON_TYPES = frozenset({"application/json", "application/json;charset=utf-8"})


def refused_content_type(headers: Headers, *, must: bool) -> Response | None:
    """Return an error response if the body is not declared as JSON.

    Args:
        must: Whether a body without a content type is rejected, too. The form of a web page never
            sends a body that is declared as JSON.
    """
    given = headers.get("content-type")
    has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    if given is None and not (must and has_body):
        return None
    plain = "" if given is None else given.lower().replace(" ", "").replace('"', "")
    if plain in _JSON_TYPES and len(headers.getlist("content-type")) == 1:
        return None
    return problem(415, "web.content_type", "a body is application/json here")


async def read_body(
    headers: Headers, receive: Receive, limit: int = BODY_LIMIT
) -> Response | Receive:
    """Read the body. Return a ``receive`` that replays it, or an error response."""
    length = headers.get("content-length", "0")
    # `isdigit` also accepts digits that int() rejects, so the text must be ASCII as well.
    if not (length.isascii() and length.isdigit()) or int(length[:20]) > limit:
        return _body_too_large(limit)
    pieces: list[bytes] = []
    with anyio.move_on_after(_BODY_SECONDS) as patience:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return _replayed_body(message, receive)
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                return _body_too_large(limit)
            pieces.append(piece)
            more = message.get("more_body", False)
    if patience.cancelled_caught:
        return problem(408, "web.slow", f"the body did not come within {_BODY_SECONDS:g} s")
    body = b"".join(pieces)
    if is_json_too_deep(body):
        return problem(400, "web.too_deep", f"JSON is at most {JSON_DEPTH} deep here")
    return _replayed_body({"type": "http.request", "body": body, "more_body": False}, receive)


def is_json_too_deep(body: bytes) -> bool:
    """Return whether lists and objects are nested too deeply, in linear time."""
    if body.count(b"[") + body.count(b"{") <= JSON_DEPTH:
        return False
    left = _JSON_STRING.sub(b"", body).translate(_TO_SQUARE_BRACKETS, _NO_BRACKETS)
    for _ in range(JSON_DEPTH):
        shorter = left.replace(b"[]", b"")
        if len(shorter) == len(left):
            break
        left = shorter
    # All balanced brackets have been removed, unless they are nested too deeply. Unclosed ones
    # remain.
    return b"[]" in left or left.count(b"[") > JSON_DEPTH


def _body_too_large(limit: int) -> Response:
    return problem(413, "web.too_large", f"a request takes at most {limit} bytes")


def _replayed_body(message: Message, receive: Receive) -> Receive:
    """Return a ``receive`` that returns this message first."""
    first: list[Message] = [message]

    async def give() -> Message:
        return first.pop() if first else await receive()

    return give


MAX_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_RESPONSE_BYTES_PER_CALLER = 16 * 1024 * 1024
"""Maximum size of all responses together, and of the responses for one user or token, in bytes."""

PIECE_BYTES = 64 * 1024

_BUDGET_WAIT_SECONDS = 5.0
_RETRY_SECONDS = 5
_TOO_MUCH = "web.too_much_held"


class BudgetShare:
    """The share of the memory budget that one response uses.

    Attributes:
        size: Size of the share in bytes.
    """

    def __init__(self, budget: ResponseBudget, who: str, size: int) -> None:
        self.size = 0
        self._budget = budget
        self._who = who
        self.resize(size)

    def resize(self, size: int) -> None:
        """Change the share; 0 releases it."""
        self._budget.add(self._who, size - self.size)
        self.size = size


class ResponseBudget:
    """The memory budget of all responses, with a limit per caller."""

    def __init__(
        self, *, in_all: int = MAX_RESPONSE_BYTES, of_one: int = MAX_RESPONSE_BYTES_PER_CALLER
    ) -> None:
        self._in_all = in_all
        self._of_one = of_one
        self._of: Counter[str] = Counter()
        self._stirred = anyio.Event()

    @property
    def total(self) -> int:
        """Number of bytes in use."""
        return self._of.total()

    def is_full_for(self, who: str, size: int) -> bool:
        """Return whether this many more bytes would exceed a caller's limit."""
        return self._of[who] + size > self._of_one

    def add(self, who: str, size: int) -> None:
        """Add bytes, or subtract them if negative. Called by ``BudgetShare``."""
        self._of[who] += size
        if not self._of[who]:
            del self._of[who]
        if size < 0:
            self._stirred.set()

    async def take(self, who: str, size: int, *, patience_seconds: float) -> BudgetShare | None:
        """Acquire a share, which must be released; ``None`` after the timeout."""
        with anyio.move_on_after(patience_seconds):
            while self.is_full_for(who, size) or self.total + size > self._in_all:
                self._stirred = anyio.Event() if self._stirred.is_set() else self._stirred
                await self._stirred.wait()
            return BudgetShare(self, who, size)
        return None


class BudgetedResponse(Response):
    """A response that is created when the budget allows, and sent in pieces.

    Args:
        who: The caller.
        size: Number of bytes to reserve while the response is created.
        make: Creates the response. Its errors are handled like those of any route.
    """

    def __init__(
        self, budget: ResponseBudget, who: str, size: int, make: Callable[[], Awaitable[Response]]
    ) -> None:
        super().__init__()
        self._budget = budget
        self._who = who
        self._size = min(size, MAX_RESPONSE_BYTES_PER_CALLER)
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for a share of the budget, then create and send the response."""
        share = await self._budget.take(
            self._who, self._size, patience_seconds=_BUDGET_WAIT_SECONDS
        )
        if share is None:
            await self._refusal()(scope, receive, send)
            return
        try:
            answer = await self._make()
            share.resize(len(answer.body))
            await _send_in_pieces(answer, send)
        finally:
            share.resize(0)

    def _refusal(self) -> Response:
        again = {"retry-after": str(_RETRY_SECONDS)}
        if self._budget.is_full_for(self._who, self._size):
            detail = "you have asked for more than you take; take what has come, or ask for less"
            return problem(429, _TOO_MUCH, detail, again)
        return problem(503, _TOO_MUCH, "others ask for as much as there is room for", again)


async def _send_in_pieces(answer: Response, send: Send) -> None:
    head = {"status": answer.status_code, "headers": answer.raw_headers}
    await send({"type": "http.response.start", **head})
    body = memoryview(answer.body)
    for at in range(0, max(len(body), 1), PIECE_BYTES):
        piece = bytes(body[at : at + PIECE_BYTES])
        more = at + PIECE_BYTES < len(body)
        await send({"type": "http.response.body", "body": piece, "more_body": more})
