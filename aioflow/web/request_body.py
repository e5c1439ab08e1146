"""Request bodies: read whole before routing, with limits of size, nesting depth and time."""

from __future__ import annotations

import re

import anyio
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive

from aioflow.web.problems import problem

__all__ = ("BODY_LIMIT", "JSON_DEPTH", "STRANGER_LIMIT", "is_too_deep", "read_body", "refused_type")

BODY_LIMIT = 1024 * 1024
"""Maximum bytes of a request's body."""

STRANGER_LIMIT = 16 * 1024
"""The same without authentication, so that a thousand connections need little memory."""

JSON_DEPTH = 64
"""Nesting depth of lists and objects."""

_SECONDS = 30.0

# An unclosed string matches up to the end of the body: if the pattern could fail, it would be
# tried again from each quote, in quadratic time.
_TEXT = re.compile(rb'(?s)"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z)')
_SQUARE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))

_JSON_TYPES = frozenset({"application/json", "application/json;charset=utf-8"})


def refused_type(headers: Headers, *, must: bool) -> Response | None:
    """Return an error response if the body is not declared as JSON.

    Args:
        must: Whether a body without a type is rejected, too. A browser's form never sends a
            body that is declared as JSON.
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
    # `isdigit` also accepts digits that int() rejects.
    if not (length.isascii() and length.isdigit()) or int(length[:20]) > limit:
        return _too_large(limit)
    pieces: list[bytes] = []
    with anyio.move_on_after(_SECONDS) as patience:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return _replayed(message, receive)
            piece = message.get("body", b"")
            size += len(piece)
            if size > limit:
                return _too_large(limit)
            pieces.append(piece)
            more = message.get("more_body", False)
    if patience.cancelled_caught:
        return problem(408, "web.slow", f"the body did not come within {_SECONDS:g} s")
    body = b"".join(pieces)
    if is_too_deep(body):
        return problem(400, "web.too_deep", f"JSON is at most {JSON_DEPTH} deep here")
    return _replayed({"type": "http.request", "body": body, "more_body": False}, receive)


def is_too_deep(body: bytes) -> bool:
    """Return whether lists and objects are nested too deeply, in time linear to the body."""
    if body.count(b"[") + body.count(b"{") <= JSON_DEPTH:
        return False
    left = _TEXT.sub(b"", body).translate(_SQUARE, _OTHERS)
    for _ in range(JSON_DEPTH):
        shorter = left.replace(b"[]", b"")
        if len(shorter) == len(left):
            break
        left = shorter
    # Balanced brackets have been removed unless they are too deep; unclosed ones remain.
    return b"[]" in left or left.count(b"[") > JSON_DEPTH


def _too_large(limit: int) -> Response:
    return problem(413, "web.too_large", f"a request takes at most {limit} bytes")


def _replayed(message: Message, receive: Receive) -> Receive:
    """Return a ``receive`` that returns this message first."""
    first: list[Message] = [message]

    async def give() -> Message:
        return first.pop() if first else await receive()

    return give
