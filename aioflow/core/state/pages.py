"""A compact map from row numbers.

Row numbers are leased in blocks, so those of one run are adjacent. A page holds the values of
128 numbers in order, with a bitmap of the numbers present. As ``Rows`` or ``Numbers`` the values
are stored contiguously and are not objects. A byte string then takes about five bytes more than
its length and a number eight bytes; an entry of a ``dict`` takes eighty besides its value.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

__all__ = ("Column", "Numbers", "Pages", "Rows", "packed")

_BITS = 7
_LAST = (1 << _BITS) - 1

Value = TypeVar("Value")

packed: Final = msgspec.msgpack.Encoder().encode
"""Encodes a value to msgpack, for ``Rows``."""


class Column(Protocol[Value]):
    """The values of a page, in order."""

    def __getitem__(self, at: int, /) -> Value: ...

    def __setitem__(self, at: int, value: Value, /) -> None: ...

    def __iter__(self) -> Iterator[Value]: ...

    def insert(self, at: int, value: Value, /) -> None:
        """Insert a value at this index; those from there on move up."""

    def pop(self, at: int, /) -> Value:
        """Remove and return the value at this index; those behind it move down."""


class Rows:
    """A column of byte strings, stored contiguously."""

    __slots__ = ("_data", "_sizes")

    def __init__(self) -> None:
        self._data = bytearray()
        self._sizes = array("I")

    def __getitem__(self, at: int) -> bytes:
        start = sum(self._sizes[:at])
        return bytes(self._data[start : start + self._sizes[at]])

    def __setitem__(self, at: int, value: bytes) -> None:
        start = sum(self._sizes[:at])
        self._data[start : start + self._sizes[at]] = value
        self._sizes[at] = len(value)

    def __iter__(self) -> Iterator[bytes]:
        start = 0
        for size in self._sizes:
            yield bytes(self._data[start : start + size])
            start += size

    def insert(self, at: int, value: bytes) -> None:
        """See ``Column``."""
        is_last = at == len(self._sizes)  # most come in order
        start = len(self._data) if is_last else sum(self._sizes[:at])
        self._data[start:start] = value
        self._sizes.insert(at, len(value))

    def pop(self, at: int) -> bytes:
        """See ``Column``."""
        start, size = sum(self._sizes[:at]), self._sizes[at]
        value = bytes(self._data[start : start + size])
        del self._data[start : start + size], self._sizes[at]
        return value


Numbers: Final = partial(array, "q")
"""A column of signed 64-bit integers."""


class _Page:
    __slots__ = ("bits", "column")

    def __init__(self, column: Column[Any]) -> None:
        self.bits = 0
        self.column = column


class Pages(Generic[Value]):
    """Values by number. Iteration is in ascending order.

    Args:
        column: Creates the column of a page: ``Rows``, ``Numbers``, or a list of objects.
    """

    __slots__ = ("_column", "_count", "_pages")

    def __init__(self, column: Callable[[], Column[Any]] = list) -> None:
        self._column = column
        self._pages: dict[int, _Page] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        page = self._pages.get(number >> _BITS)
        return page is not None and bool(page.bits >> (number & _LAST) & 1)

    def __iter__(self) -> Iterator[int]:
        return self.numbers()

    def numbers(self, after: int = -1) -> Iterator[int]:
        """Yield the numbers above ``after``, ascending. The map must not change meanwhile."""
        for key in sorted(key for key in self._pages if key >= after + 1 >> _BITS):
            bits, number = self._pages[key].bits, key << _BITS
            while bits:
                skip = (bits & -bits).bit_length()
                number += skip
                bits >>= skip
                if number - 1 > after:
                    yield number - 1

    def between(self, first: int, end: int) -> Iterator[int]:
        """Yield the numbers in ``[first, end)``, ascending. The map must not change meanwhile."""
        keys = range(first >> _BITS, (end - 1 >> _BITS) + 1)
        for key in keys if len(keys) < len(self._pages) else sorted(self._pages):
            if key not in keys or key not in self._pages:
                continue
            bits, number = self._pages[key].bits, key << _BITS
            while bits:
                skip = (bits & -bits).bit_length()
                number += skip
                bits >>= skip
                if first <= number - 1 < end:
                    yield number - 1

    def items(self, after: int = -1) -> Iterator[tuple[int, Value]]:
        """Yield the numbers above ``after`` with their values, ascending.

        This is faster than ``get`` for each number. The map must not change meanwhile.
        """
        for key in sorted(key for key in self._pages if key >= after + 1 >> _BITS):
            page = self._pages[key]
            bits, number = page.bits, key << _BITS
            for value in list(page.column):
                skip = (bits & -bits).bit_length()
                number += skip
                bits >>= skip
                if number - 1 > after:
                    yield number - 1, value

    def get(self, number: int) -> Value | None:
        """Return the value of a number, or ``None``."""
        page = self._pages.get(number >> _BITS)
        if page is None:
            return None
        bit = 1 << (number & _LAST)
        if not page.bits & bit:
            return None
        value: Value = page.column[(page.bits & bit - 1).bit_count()]
        return value

    def put(self, number: int, value: Value) -> None:
        """Set the value of a number."""
        page = self._pages.get(number >> _BITS)
        if page is None:
            page = self._pages[number >> _BITS] = _Page(self._column())
        bit = 1 << (number & _LAST)
        at = (page.bits & bit - 1).bit_count()
        if page.bits & bit:
            page.column[at] = value
            return
        page.column.insert(at, value)
        page.bits |= bit
        self._count += 1

    def take(self, number: int) -> Value | None:
        """Remove a number and return its value, or ``None``."""
        page = self._pages.get(number >> _BITS)
        bit = 1 << (number & _LAST)
        if page is None or not page.bits & bit:
            return None
        value: Value = page.column.pop((page.bits & bit - 1).bit_count())
        page.bits ^= bit
        self._count -= 1
        if not page.bits:
            del self._pages[number >> _BITS]
        return value
