"""A map from row numbers that lies flat in memory.

Row numbers are leased in blocks, so those of one run are neighbours. A page is a list of the
values of 128 of them, in order, behind a bit for each that is there: about ten bytes an entry
where a ``dict`` takes eighty.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ("Pages", "packed")

_BITS = 7
_LAST = (1 << _BITS) - 1

Value = TypeVar("Value")

_encode_into = msgspec.msgpack.Encoder().encode_into
_buffer = bytearray()


def packed(value: object) -> bytes:
    """Return a value as msgpack, in memory of just its size.

    What ``encode`` returns was cut off a larger piece, and the rest of that lies idle.
    """
    _encode_into(value, _buffer)
    return bytes(_buffer)


class Pages(Generic[Value]):
    """Values by number; numbers come in order when it is iterated over."""

    __slots__ = ("_count", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, list[Any]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        page = self._pages.get(number >> _BITS)
        return page is not None and bool(page[0] >> (number & _LAST) & 1)

    def __iter__(self) -> Iterator[int]:
        return self.numbers()

    def numbers(self, after: int = -1) -> Iterator[int]:
        """Yield the numbers above ``after``, in order. Nothing may be changed meanwhile."""
        for key in sorted(key for key in self._pages if key >= after + 1 >> _BITS):
            bits, number = self._pages[key][0], key << _BITS
            while bits:
                skip = (bits & -bits).bit_length()
                number += skip
                bits >>= skip
                if number - 1 > after:
                    yield number - 1

    def get(self, number: int) -> Value | None:
        """Return its value, if there is one."""
        page = self._pages.get(number >> _BITS)
        if page is None:
            return None
        bit = 1 << (number & _LAST)
        if not page[0] & bit:
            return None
        value: Value = page[(page[0] & bit - 1).bit_count() + 1]
        return value

    def put(self, number: int, value: Value) -> None:
        """Have a number stand for this value."""
        page = self._pages.setdefault(number >> _BITS, [0])
        bit = 1 << (number & _LAST)
        at = (page[0] & bit - 1).bit_count() + 1
        if page[0] & bit:
            page[at] = value
        else:
            page.insert(at, value)
            page[0] |= bit
            self._count += 1

    def take(self, number: int) -> Value | None:
        """Return its value, if there is one, and forget it."""
        page = self._pages.get(number >> _BITS)
        bit = 1 << (number & _LAST)
        if page is None or not page[0] & bit:
            return None
        value: Value = page.pop((page[0] & bit - 1).bit_count() + 1)
        page[0] ^= bit
        self._count -= 1
        if not page[0]:
            del self._pages[number >> _BITS]
        return value
