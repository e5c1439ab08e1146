"""Pages of lists: ``{"items": [...], "next": cursor | null}``, for every list of the API.

A cursor encodes the sort key of the last item of a page, so that the next page begins after that
item even if items were added or deleted meanwhile. Clients treat a cursor as opaque and pass it
back unchanged.
"""

from __future__ import annotations

import binascii
import operator
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec

from aioflow.errors import RequestError

__all__ = (
    "CURSOR_LENGTH",
    "Key",
    "Page",
    "decode_cursor",
    "encode_cursor",
    "number_after",
    "page_of",
    "page_of_all",
)

Item = TypeVar("Item")
Key: TypeAlias = tuple[int | str, ...]
"""The sort key of an item; unique within its list."""

CURSOR_LENGTH = 4_096
"""Maximum length of a cursor. It is sufficient, because a key contains at most a few names."""

_MAX_NUMBER = 1 << 62
_MAX_NAME = 1_000


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """A page of a list.

    Attributes:
        items: The items, in the order of the list.
        next: The cursor of the next page; ``None`` at the end of the list.
    """

    items: Sequence[Item]
    next: str | None


def encode_cursor(name: str, key: Key) -> str:
    """Return the cursor for the page that begins after a key.

    Args:
        name: The list that the cursor belongs to.
    """
    return urlsafe_b64encode(msgspec.json.encode([name, *key])).rstrip(b"=").decode()


def decode_cursor(name: str, cursor: str, kinds: Sequence[type]) -> Key:
    """Return the key that a cursor encodes.

    Args:
        name: The list to be continued.
        kinds: The type of each part of the key: ``int`` or ``str``.

    Raises:
        RequestError: If it is not a cursor of this list.
    """
    key = _key(name, cursor)
    if len(key) != len(kinds) or not all(map(_is_part, key, kinds)):
        raise _not_of_this_list()
    return key


def _key(name: str, cursor: str) -> Key:
    """Return the key that a cursor of this list encodes. The types of its parts are not checked."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        found = msgspec.json.decode(urlsafe_b64decode(padded), type=list[int | str])
    except (ValueError, binascii.Error):
        found = []
    if not found or found[0] != name:
        raise _not_of_this_list()
    return tuple(found[1:])


def _not_of_this_list() -> RequestError:
    return RequestError(
        "the cursor is not one of this list; pass `next` of the previous page unchanged"
    )


def _is_part(part: int | str, kind: type) -> bool:
    if not isinstance(part, kind):
        return False
    if isinstance(part, int):
        return abs(part) <= _MAX_NUMBER
    return len(part) <= _MAX_NAME


def number_after(name: str, cursor: str | None) -> int | None:
    """Return the row number that a cursor encodes; ``None`` for the first page."""
    if cursor is None:
        return None
    (number,) = decode_cursor(name, cursor, (int,))
    assert isinstance(number, int)  # noqa: S101 - decode_cursor has checked it
    return number


def page_of(name: str, found: Sequence[Item], limit: int, key: Callable[[Item], Key]) -> Page[Item]:
    """Return a page of items that were read from the start of the page on.

    Args:
        found: At most ``limit + 1`` items. The additional item shows that there is a next page.
    """
    if len(found) <= limit:
        return Page(found, None)
    return Page(found[:limit], encode_cursor(name, key(found[limit - 1])))


def page_of_all(
    name: str,
    found: Sequence[Item],
    limit: int,
    cursor: str | None,
    key: Callable[[Item], Key],
    *,
    is_descending: bool = False,
) -> Page[Item]:
    """Return a page of a complete list. Sorts the list by its keys."""
    ordered = sorted(found, key=key, reverse=is_descending)
    if cursor is not None:
        last = _key(name, cursor)
        if ordered:
            last = decode_cursor(name, cursor, [type(part) for part in key(ordered[0])])
        is_next = operator.lt if is_descending else operator.gt
        ordered = [one for one in ordered if is_next(key(one), last)]
    return page_of(name, ordered[: limit + 1], limit, key)
