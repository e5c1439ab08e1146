"""Removes credentials from URLs before they are stored, and restores them."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

__all__ = ("bare", "whole")

_HIDDEN = "***"


def bare(url: str, own: str) -> str:
    """Return a URL with the user information and query values of ``own`` masked."""
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
    """Return the URL that was passed to ``bare``."""
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
