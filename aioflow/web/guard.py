"""Stands before everything: who may ask, from where, and how much.

Default-deny: whatever route there is or will be, a request over TCP needs the token, or the
cookie that opening the banner's link once has set. Exempt are exact paths only, and the built
files of the page, which know nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from urllib.parse import parse_qs

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aioflow.web.problems import problem
from aioflow.web.static import is_page
from aioflow.web.tokens import Token

__all__ = ("BODY_LIMIT", "EXEMPT", "Guard", "Trusted")

BODY_LIMIT = 1024 * 1024
"""Bytes of a request's body."""

EXEMPT = frozenset({"/health/live", "/health/ready"})
"""Exact paths that need no token."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_TRUSTED = "aioflow.trusted"
_SESSION_SECONDS = 30 * 24 * 3600

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

_log = structlog.get_logger(__name__)


class Trusted:
    """Marks every request as made by the home's owner. For the Unix socket's server alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server."""
        await self._app({**scope, _TRUSTED: True}, receive, send)


def _too_large_error() -> HTTPException:
    """Return what reading on raises; frameworks let this kind pass, and only this."""
    return HTTPException(413, f"a request takes at most {BODY_LIMIT} bytes")


class Guard:
    """The outermost application.

    Args:
        app: What is guarded.
        token: What requests must know.
        hosts: Names and addresses this server may be called by, besides those of loopback.
            Another name is how a foreign page would reach us through its own DNS.
        any_address: Whether any bare IP address will do, for a server that listens on all.
    """

    def __init__(
        self, app: ASGIApp, token: Token, *, hosts: Sequence[str] = (), any_address: bool = False
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = _LOOPBACK_NAMES | {host.lower() for host in hosts}
        self._any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Called by the server."""
        if scope["type"] != "http":
            return
        began = False

        async def send_safely(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            asked = Headers(scope=scope)
            refusal = self._refusal(scope, asked) or _too_large(asked)
            if refusal is not None:
                await refusal(scope, receive, send_safely)
            else:
                await self._app(scope, _limited(receive), send_safely)
        except Exception as exc:  # noqa: BLE001 - logged; one request must not end the server
            _log.exception("request failed", path=scope["path"], error=type(exc).__name__)
            if not began:
                answer = problem(500, "defect.web", "this is a defect; the daemon's log says more")
                await answer(scope, receive, send_safely)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that may not pass."""
        if scope.get(_TRUSTED):
            return None
        if not self._is_known_host(headers.get("host", "")):
            return problem(421, "web.host", "this server does not go by that name; use its address")
        if scope["path"] in EXEMPT:
            return None
        return self._not_authorized(scope, headers)

    def _not_authorized(self, scope: Scope, headers: Headers) -> Response | None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._token.is_token(given.strip()):
            return None
        if self._has_session(headers):
            return self._forged(scope, headers)
        if scope["method"] in _SAFE and is_page(scope["path"]):
            return self._first_visit(scope)
        return problem(
            401,
            "web.unauthorized",
            "a token is needed; it is in the file `token` of the daemon's home",
            {"www-authenticate": "Bearer"},
        )

    def _has_session(self, headers: Headers) -> bool:
        return any(map(self._token.is_session, _cookies(headers, self._token.cookie_name)))

    def _forged(self, scope: Scope, headers: Headers) -> Response | None:
        """A cookie comes along by itself, so a change needs to come from our own page."""
        if scope["method"] in _SAFE:
            return None
        if headers.get("origin", "") == f"{scope['scheme']}://{headers.get('host', '')}":
            return None
        return problem(403, "web.origin", "changes by a session must come from the page itself")

    def _first_visit(self, scope: Scope) -> Response | None:
        """The page itself may come to anyone; with the banner's link comes a session."""
        given = _query(scope).get("token", [""])[0]
        if scope["path"] != "/" or not given:
            return None
        if not self._token.is_token(given):
            text = "Open the link the daemon printed when it started: it has a token in it.\n"
            return PlainTextResponse(text, status_code=401)
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(
            self._token.cookie_name,
            self._token.session,
            max_age=_SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=scope["scheme"] == "https",
        )
        return answer

    def _is_known_host(self, given: str) -> bool:
        name = _host_name(given)
        return name in self._hosts or (self._any_address and _is_address(name))


def _cookies(headers: Headers, name: str) -> Iterator[str]:
    """Give the values of one cookie. Other applications' come along, and follow no grammar."""
    for pair in ";".join(headers.getlist("cookie")).split(";"):
        given, _, value = pair.partition("=")
        if given.strip() == name:
            yield value.strip()


def _query(scope: Scope) -> dict[str, list[str]]:
    try:
        return parse_qs(scope["query_string"].decode("ascii", "replace"), max_num_fields=20)
    except ValueError:
        return {}  # more fields than any address of ours


def _host_name(given: str) -> str:
    """Return a Host header without its port; "" for what is no host."""
    if given.startswith("["):
        return given[1:].partition("]")[0].lower()
    return given.partition(":")[0].rstrip(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _too_large(headers: Headers) -> Response | None:
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:20]) <= BODY_LIMIT:
        return None
    return _too_large_answer()


def _too_large_answer() -> Response:
    return problem(413, "web.too_large", f"a request takes at most {BODY_LIMIT} bytes")


def _limited(receive: Receive) -> Receive:
    """Count what comes: a body sent in chunks does not say how long it is."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        if message["type"] == "http.request":
            size += len(message.get("body", b""))
            if size > BODY_LIMIT:
                raise _too_large_error()
        return message

    return counted
