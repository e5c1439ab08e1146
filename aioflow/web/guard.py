"""The guard of all routes: authenticates requests and denies those without access.

Access is denied by default: a request over TCP needs a token or a session cookie, whatever its
route. The only exemptions are a few exact paths, and the built files of the page, which contain no
data. Routes declare the role that they require; see ``permissions``. Denied changes are audited,
and so are reads that were denied for lack of access.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from urllib.parse import parse_qs

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aioflow.api.access.accounts import Access
from aioflow.api.access.authentication import Caller
from aioflow.api.node_queries import HttpQuery
from aioflow.clock import Clock
from aioflow.errors import AioflowError, DaemonStopping
from aioflow.model.access import HOME, AuditEntry, Role, told
from aioflow.telemetry.log import Logger
from aioflow.web.auth_context import RequestContext, forwarded_query, set_request_context
from aioflow.web.csrf import (
    LOOPBACK_NAMES,
    SAFE_METHODS,
    cookies,
    forged,
    is_known_host,
    set_cookie,
)
from aioflow.web.limits import (
    ANONYMOUS_BODY_LIMIT,
    BODY_LIMIT,
    HEAD_BYTES,
    read_body,
    refused_content_type,
)
from aioflow.web.problems import problem, problem_of
from aioflow.web.static import is_page, missing_page
from aioflow.web.tokens import Token
from aioflow.web.trusted_proxies import Proxies

__all__ = ("BODY_LIMIT", "EXEMPT", "OPEN", "Guard", "Trusted", "set_cookie")

EXEMPT = frozenset({"/health/live", "/health/ready"})
"""Exact paths that do not require a token."""

LOGIN = "/api/v1/sessions"
PASSWORD = "/api/v1/me/password"  # noqa: S105 - a path
DECISION_LINK = "/api/v1/decisions/link"
OPEN = frozenset(
    {
        ("POST", LOGIN),
        ("PUT", PASSWORD),
        ("POST", DECISION_LINK),
        ("POST", f"{DECISION_LINK}/answer"),
    }
)
"""Requests that need no prior authentication, because they carry a password or a signed link."""

_SHUT_OUT = frozenset({401, 403, 421, 429})
"""Statuses of reads denied for lack of access. Other 4xx statuses mean invalid requests."""

_TRUSTED = "aioflow.trusted"
_HOME = Caller(name=HOME, role=Role.ADMIN, kind="home")
_TARGET_BYTES = 8 * 1024
_LAST_SECONDS = 1.0

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

_log = Logger(__name__)


class Trusted:
    """Marks every request as sent by the home's owner. Used only for the Unix socket's server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Mark a request and pass it to the application."""
        await self._app({**scope, _TRUSTED: True}, receive, send)


class _Revoked(Exception):
    """Raised if the caller's access has been revoked. The response is cut off."""


class Guard:
    """The outermost application: rejects requests without access, and has them audited.

    Args:
        app: The protected application.
        token: The home's own token, which grants full access.
        access: Authenticates all other callers.
        hosts: Names and addresses of this server, in addition to the loopback ones. A request with
            any other name may come from a foreign page whose DNS name resolves to this server.
        any_address: Whether any bare IP address is accepted, for a server that listens on all
            addresses.
        proxies: The trusted proxies; ``None`` if there are none.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: Token,
        access: Access,
        clock: Clock,
        *,
        hosts: Sequence[str] = (),
        any_address: bool = False,
        proxies: Proxies | None = None,
    ) -> None:
        self._app = app
        self._proxies = proxies or Proxies()
        self._token = token
        self._access = access
        self._clock = clock
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in hosts}
        self._any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request from the server."""
        if scope["type"] != "http":
            return
        headers, peer = Headers(scope=scope), _address(scope)
        scope["scheme"] = self._proxies.scheme(headers, peer, scope["scheme"])
        forwarded = forwarded_query(scope)
        if forwarded is None:
            context = RequestContext(secrets.token_hex(8), self._proxies.address(headers, peer))
        else:
            context = RequestContext(forwarded.request_id, forwarded.address)
        set_request_context(scope, context)
        answer = _GuardedResponse(self, scope, context, send)
        try:
            refusal = await self._refusal(scope, headers, context)
            if refusal is None and scope["method"] not in SAFE_METHODS:
                body = await self._body(scope, headers, receive, context)
                refusal, receive = (body, receive) if isinstance(body, Response) else (None, body)
            if refusal is not None:
                await refusal(scope, receive, answer.send)
            else:
                await self._app(scope, receive, answer.send)
        except anyio.get_cancelled_exc_class():
            if not answer.has_begun:  # the server stops, and its grace period is over
                with anyio.move_on_after(_LAST_SECONDS, shield=True):
                    await problem_of(DaemonStopping())(scope, receive, answer.send)
            raise
        except Exception as exc:  # noqa: BLE001 - logged; one request must not end the server
            if answer.is_cut:
                return  # the framework may have wrapped `_Revoked`
            _log.exception(
                "request failed",
                path=scope["path"],
                request=context.request_id,
                error=type(exc).__name__,
            )
            if not answer.has_begun:
                failed = problem(500, "defect.web", "this is a defect; the daemon's log says more")
                await failed(scope, receive, answer.send)

    async def _body(
        self, scope: Scope, headers: Headers, receive: Receive, context: RequestContext
    ) -> Response | Receive:
        """Read the request body. Return a replacement ``receive``, or an error response."""
        refusal = refused_content_type(headers, must=context.cookie is not None)
        if refusal is not None:
            return refusal
        is_open = (scope["method"], scope["path"]) in OPEN
        body = await read_body(headers, receive, ANONYMOUS_BODY_LIMIT if is_open else BODY_LIMIT)
        if not isinstance(body, Response) and not self.is_good(context):  # reading may take long
            return problem(401, "web.unauthorized", "the session or token has been revoked")
        return body

    def is_good(self, context: RequestContext) -> bool:
        """Return whether the caller still has access. A response may be streamed for days."""
        caller = context.caller
        return caller is None or self._access.auth_cache.is_good(caller, self._clock.now())

    def refused(self, scope: Scope, context: RequestContext, status: int) -> None:
        """Audit a denied change, or a read that was denied for lack of access."""
        if context.is_forwarded or (scope["method"] in SAFE_METHODS and status not in _SHUT_OUT):
            return
        actor = context.actor
        line = AuditEntry(
            actor="" if actor is None else actor.name,
            role="" if actor is None else actor.role.label,
            action=told(scope["method"][:20]),
            target=told(context.target or scope["path"]),
            address=context.address,
            is_refused=True,
            code=context.code,
        )
        self._access.refused(line)

    async def _refusal(
        self, scope: Scope, headers: Headers, context: RequestContext
    ) -> Response | None:
        """Authenticate the request. Return an error response if it is denied."""
        forwarded = forwarded_query(scope)
        if forwarded is not None:
            return self._refusal_again(scope, forwarded, context)
        if scope.get(_TRUSTED):
            context.address, context.caller = "", _HOME
            return None
        if not is_known_host(headers, self._hosts, any_address=self._any_address):
            return problem(421, "web.host", "this server has another host name; use its address")
        if "transfer-encoding" in headers and "content-length" in headers:
            # Otherwise a proxy might disagree with this server on where the request ends (request
            # smuggling).
            detail = "a request body has a length or is chunked, not both"
            return problem(400, "request.invalid", detail, {"connection": "close"})
        if not scope["path"].startswith("/"):  # an absolute URL: this is not a proxy
            return problem(400, "web.no_such_path", "the path of a request must begin with /")
        if len(scope["raw_path"]) + len(scope["query_string"]) > _TARGET_BYTES:
            return problem(414, "web.too_large", f"a URL has at most {_TARGET_BYTES} bytes")
        if _head_bytes(scope) > HEAD_BYTES:  # the server limits only a head that is incomplete
            return problem(431, "web.too_large", f"a request's head has at most {HEAD_BYTES} bytes")
        if scope["path"] in EXEMPT:
            self._authenticate(headers, context)  # optional: authenticated callers get more details
            return None
        return await self._not_authorized(scope, headers, context)

    def _refusal_again(
        self, scope: Scope, forwarded: HttpQuery, context: RequestContext
    ) -> Response | None:
        """Check the caller of a request again whom another node has authenticated."""
        context.cookie = forwarded.cookie
        if forwarded.caller is None:
            is_open = (scope["method"], scope["path"]) in OPEN
        else:
            now, cache = self._clock.now(), self._access.auth_cache
            context.caller = cache.known_again(forwarded.caller, now)
            is_open = context.caller is not None
        if is_open:
            return None
        return problem(401, "web.unauthorized", "the session or token has been revoked")

    def _authenticate(self, headers: Headers, context: RequestContext) -> bool:
        """Authenticate the request. Return whether it carried a bearer token, valid or not."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            context.caller = self._bearer(given.strip())
            return True
        self._authenticate_session(headers, context)
        return False

    async def _not_authorized(
        self, scope: Scope, headers: Headers, context: RequestContext
    ) -> Response | None:
        if not self._authenticate(headers, context):
            is_login = (scope["method"], scope["path"]) in OPEN
            if context.caller is not None and _is_home_link(scope, context.caller):
                return RedirectResponse("/", status_code=303)  # the browser has a session already
            if context.caller is not None or is_login:
                return forged(scope, headers, is_login=is_login)
            if scope["method"] in SAFE_METHODS:
                if is_page(scope["path"]):
                    return await self._first_visit(scope, headers, context)
                missing = missing_page(scope["path"], headers.get("accept", ""))
                if missing is not None:
                    return missing
        if context.caller is not None:
            return None
        return problem(
            401,
            "web.unauthorized",
            "a token is needed; the home's is in its file `token`",
            {"www-authenticate": "Bearer"},
        )

    def _bearer(self, given: str) -> Caller | None:
        if self._token.is_token(given):
            return _HOME
        caller = self._access.auth_cache.of_token(given, self._clock.now())
        self._access.used()
        return caller

    def _authenticate_session(self, headers: Headers, context: RequestContext) -> None:
        now = self._clock.now()
        for value in cookies(headers, self._token.cookie_name):
            caller = self._access.auth_cache.of_cookie(self._token.cookie_name, value, now)
            if caller is not None:
                context.caller, context.cookie = caller, value
                self._access.used()
                return

    async def _first_visit(
        self, scope: Scope, headers: Headers, context: RequestContext
    ) -> Response | None:
        """Exempt the page from authentication. If its URL has the home's token, start a session."""
        given = _query(scope).get("token", [""])[0]
        if scope["path"] != "/" or not given:
            return None
        if not self._token.is_token(given):
            context.code = "web.unauthorized"
            text = "Open the link the daemon printed when it started: it has a token in it.\n"
            return PlainTextResponse(text, status_code=401)
        try:
            cookie = self._token.cookie_name
            secret, _ = await self._access.open_home(
                address=context.address,
                cookie=cookie,
                replaces=next(cookies(headers, cookie), None),
                agent=headers.get("user-agent", ""),
            )
        except AioflowError as exc:
            return problem_of(exc)
        answer = RedirectResponse("/", status_code=303)
        set_cookie(answer, scope, cookie, secret)
        return answer


class _GuardedResponse:
    """A response with common headers. It is cut off when the caller's access ends.

    Attributes:
        has_begun: Whether the headers have been sent.
        is_cut: Whether it was cut off because access was revoked.
    """

    def __init__(self, guard: Guard, scope: Scope, context: RequestContext, send: Send) -> None:
        self._guard = guard
        self._scope = scope
        self._context = context
        self._send = send
        self.has_begun = False
        self.is_cut = False

    async def send(self, message: Message) -> None:
        """Send a message from the application."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            headers.setdefault("cache-control", "no-store")
            headers["x-request-id"] = self._context.request_id
            if 400 <= message["status"] < 500:
                self._guard.refused(self._scope, self._context, message["status"])
        elif message.get("more_body") and not self._guard.is_good(self._context):
            self.is_cut = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            raise _Revoked
        await self._send(message)


def _head_bytes(scope: Scope) -> int:
    """Return the size of the head of a request, including the empty line."""
    first = len(f"{scope['method']}  HTTP/1.1\r\n") + len(scope["raw_path"])
    query = len(scope["query_string"]) + 1 if scope["query_string"] else 0
    return first + query + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) + 2


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _is_home_link(scope: Scope, caller: Caller) -> bool:
    """Return whether a browser that already has a session opens the home's link again."""
    is_link = scope["method"] == "GET" and scope["path"] == "/" and "token" in _query(scope)
    return is_link and caller.name == HOME and caller.kind == "session"


def _query(scope: Scope) -> dict[str, list[str]]:
    try:
        return parse_qs(scope["query_string"].decode("ascii", "replace"), max_num_fields=20)
    except ValueError:
        return {}  # more fields than any valid request has
