"""Bodies of requests: read whole before anybody else sees them, so large, so deep, so soon."""

from __future__ import annotations

import re

import anyio
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive

from aioflow.web.problems import problem

__all__ = ("BODY_LIMIT", "JSON_DEPTH", "STRANGER_LIMIT", "is_too_deep", "read_body", "refused_type")

BODY_LIMIT = 1024 * 1024
"""Bytes of a request's body."""

STRANGER_LIMIT = 16 * 1024
"""The same of one that anybody may send: a thousand connections take no memory to speak of."""

JSON_DEPTH = 64
"""Lists and objects within each other."""

_SECONDS = 30.0

# Ends at the end where no quote does: a pattern that could fail would begin anew at each quote.
_TEXT = re.compile(rb'(?s)"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z)')
_SQUARE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))

_JSON_TYPES = frozenset({"application/json", "application/json;charset=utf-8"})


def refused_type(headers: Headers, *, must: bool) -> Response | None:
    """Return the answer to a body that does not say it is JSON.

    Args:
        must: Whether one that says nothing is refused, too; what a browser's form sends never
            says that it is JSON.
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
    """Return what gives the whole body to others; or the answer to one that cannot be taken."""
    length = headers.get("content-length", "0")
    # `isdigit` is true of digits that int() does not take.
    if not (length.isascii() and length.isdigit()) or int(length[:20]) > limit:
        return _too_large(limit)
    pieces: list[bytes] = []
    with anyio.move_on_after(_SECONDS) as patience:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return _given(message, receive)
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
    return _given({"type": "http.request", "body": body, "more_body": False}, receive)


def is_too_deep(body: bytes) -> bool:
    """Whether lists and objects stand too deep within each other. In time linear to the body."""
    if body.count(b"[") + body.count(b"{") <= JSON_DEPTH:
        return False
    left = _TEXT.sub(b"", body).translate(_SQUARE, _OTHERS)
    for _ in range(JSON_DEPTH):
        shorter = left.replace(b"[]", b"")
        if len(shorter) == len(left):
            break
        left = shorter
    # What closes itself is gone by now, unless it was too deep; what never closes is left.
    return b"[]" in left or left.count(b"[") > JSON_DEPTH


def _too_large(limit: int) -> Response:
    return problem(413, "web.too_large", f"a request takes at most {limit} bytes")


def _given(message: Message, receive: Receive) -> Receive:
    """Give one message, then what else comes."""
    first: list[Message] = [message]

    async def give() -> Message:
        return first.pop() if first else await receive()

    return give
