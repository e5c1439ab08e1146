"""Protection from foreign pages in a browser: CSRF, unknown host names, and session cookies.

A foreign page can make a browser send requests to this server (cross-site request forgery). It can
also do so under its own DNS name, if that resolves to this server (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from aioflow.api.access.accounts import SESSION_SECONDS
from aioflow.web.problems import problem

__all__ = (
    "LOOPBACK_NAMES",
    "SAFE_METHODS",
    "cookies",
    "forged",
    "is_known_host",
    "set_cookie",
)

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


_HOST = re.compile(r"(?:\[(?P<address>[^\[\]]+)\]|(?P<name>[^:\[\]]+))(?::[0-9]{0,5})?", re.ASCII)


LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def set_cookie(answer: Response, scope: Scope, name: str, secret: str) -> None:
    """Set the session cookie."""
    answer.set_cookie(
        name,
        secret,
        max_age=SESSION_SECONDS,
        path="/",
        httponly=True,
        samesite="strict",
        secure=scope["scheme"] == "https",
    )


def forged(scope: Scope, headers: Headers, *, is_login: bool) -> Response | None:
    """Return an error response if the request may be a cross-site request forgery, else ``None``.

    Browsers send cookies automatically, so a change must come from our own page. If the browser
    names an origin, a login must come from our own page, too. Otherwise a foreign page could log a
    user in to another account.
    """
    if scope["method"] in SAFE_METHODS:
        return None
    origin = headers.get("origin")
    site = headers.get("sec-fetch-site")
    own = f"{scope['scheme']}://{headers.get('host', '')}"
    if site is not None:  # no page can forge this header, and it is correct behind a TLS proxy
        is_own = site == "same-origin"
    else:
        is_own = origin == own or (is_login and origin is None)
    if is_own:
        return None
    return problem(403, "web.origin", "changes by a session must come from the same origin")


def cookies(headers: Headers, name: str) -> Iterator[str]:
    """Yield the values of one cookie. Other applications' cookies may be malformed."""
    for pair in ";".join(headers.getlist("cookie")).split(";"):
        given, _, value = pair.partition("=")
        if given.strip() == name:
            yield value.strip()


def is_known_host(headers: Headers, hosts: Collection[str], *, any_address: bool) -> bool:
    """Return whether the Host header is one of these names or, if allowed, any IP address."""
    if len(headers.getlist("host")) > 1:
        return False
    name = _host_name(headers.get("host", ""))
    return name in hosts or (any_address and _is_address(name))


def _host_name(given: str) -> str:
    """Return a Host header without its port; empty if it is invalid."""
    found = _HOST.fullmatch(given)
    if found is None:
        return ""
    return (found["address"] or found["name"]).removesuffix(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
