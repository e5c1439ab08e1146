"""Masks URLs for display: no passwords, no values of their queries."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

__all__ = ("bare", "shown", "shown_in", "whole")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^\s\"'<>]*")
_HIDDEN = "***"
_CONTAINER_SCHEMES = ("abfs", "abfss")
"""What stands before the ``@`` of their URLs is a container, unless a password follows."""


def shown_in(text: str) -> str:
    """Return a text with URLs in it as it may stand in a log or an error."""
    return _URL.sub(lambda found: shown(found[0]), text)


def shown(url: str) -> str:
    """Return a URL without its user information, fragment and the values of its query."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    path, asked, query = rest.partition("#")[0].partition("?")
    host, slash, behind = path.partition("/")
    user, at, host = host.rpartition("@")
    is_container = scheme.lower() in _CONTAINER_SCHEMES and ":" not in user
    pairs = (pair.partition("=") for pair in re.split("[&;]", query) if pair)
    masked = "&".join(f"{name}={_HIDDEN}" if sign else _HIDDEN for name, sign, _ in pairs)
    return f"{scheme}://{user + at if is_container else ''}{host}{slash}{behind}{asked}{masked}"


def bare(url: str, own: str) -> str:
    """Return a URL without what of it stands in ``own``, which may hold credentials."""
    parts, ours = urlsplit(url), urlsplit(own)
    secret = set(parse_qsl(ours.query))
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    netloc = parts.netloc
    if "@" in netloc:
        netloc = f"{_HIDDEN}@{netloc.rpartition('@')[2]}"
    query = parts.query
    if secret.intersection(pairs):
        hidden = [(name, _HIDDEN if (name, value) in secret else value) for name, value in pairs]
        query = urlencode(hidden, safe="*")
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def whole(url: str, own: str) -> str:
    """Return the URL that ``bare`` was given."""
    parts, ours = urlsplit(url), urlsplit(own)
    known = dict(parse_qsl(ours.query))
    netloc, query = parts.netloc, parts.query
    if netloc.startswith(f"{_HIDDEN}@") and "@" in ours.netloc:
        netloc = f"{ours.netloc.rpartition('@')[0]}@{netloc.rpartition('@')[2]}"
    pairs = parse_qsl(query, keep_blank_values=True)
    if any(value == _HIDDEN for _, value in pairs):
        query = urlencode(
            [(name, known.get(name, value) if value == _HIDDEN else value) for name, value in pairs]
        )
    return urlunsplit(parts._replace(netloc=netloc, query=query))
