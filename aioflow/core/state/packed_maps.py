"""Compact maps by row number or digest for hundreds of thousands of entries, and shared values.

Row numbers are leased in blocks, so the numbers of one run are adjacent. A page contains the values
of 128 numbers in order, with a bitmap of the numbers that have a value. ``Rows`` and ``Numbers``
store the values contiguously, without an object for each value. A byte string then takes about five
bytes more than its length, and a number takes eight bytes. An entry of a ``dict`` takes eighty
bytes in addition to its value.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Collection, Hashable, ItemsView, Iterator
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

__all__ = (
    "Column",
    "Digests",
    "Interner",
    "Numbers",
    "PackedMap",
    "Pages",
    "Rows",
    "packed",
    "text_digest",
)

Value = TypeVar("Value")


class PackedMap(ABC, Generic[Value]):
    """Values by number, as objects or packed.

    Iterating over the values unpacks all of them, so do this only with small maps. Code that never
    needs packed values iterates over ``objects``.

    Attributes:
        objects: Values that are not packed.
    """

    __slots__ = ("objects",)

    def __init__(self) -> None:
        self.objects: dict[int, Value] = {}

    @abstractmethod
    def unpack(self, number: int) -> Value | None:
        """Unpack and return the value of a number; ``None`` if the number has no packed value."""

    @abstractmethod
    def packed_numbers(self) -> Collection[int]:
        """Return the numbers of the packed values."""

    @abstractmethod
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]:
        return iter([*self.objects, *self.packed_numbers()])

    def __contains__(self, number: object) -> bool:
        return number in self.objects or number in self.packed_numbers()

    def get(self, number: int) -> Value | None:
        """Return the value of a number, unpacked; ``None`` if the number is not in the map."""
        found = self.objects.get(number)
        return self.unpack(number) if found is None else found

    def __getitem__(self, number: int) -> Value:
        found = self.get(number)
        if found is None:
            raise KeyError(number)
        return found

    def __setitem__(self, number: int, value: Value) -> None:
        self.objects[number] = value  # a number is never both in ``objects`` and packed

    def __delitem__(self, number: int) -> None:
        if self.pop(number) is None:
            raise KeyError(number)

    def pop(self, number: int, default: None = None) -> Value | None:
        """Remove the value and return it, or ``default`` if there is none."""
        found = self.objects.pop(number, None)
        if found is None and self.unpack(number) is not None:
            found = self.objects.pop(number)
        return default if found is None else found

    def keys(self) -> set[int]:
        """Return all numbers."""
        return set(self)

    def values(self) -> Iterator[Value]:
        """Yield all values, unpacked. Values may be removed during the iteration."""
        for number in self:
            found = self.get(number)
            if found is not None:
                yield found

    def items(self) -> Iterator[tuple[int, Value]]:
        """Yield all numbers with their unpacked values."""
        for number in self:
            found = self.get(number)
            if found is not None:
                yield number, found


_BITS = 7
_LAST = (1 << _BITS) - 1


packed: Final = msgspec.msgpack.Encoder().encode
"""Function that encodes a value to msgpack, for ``Rows``."""


class Column(Protocol[Value]):
    """The values of a page, in order."""

    def __getitem__(self, at: int, /) -> Value: ...

    def __setitem__(self, at: int, value: Value, /) -> None: ...

    def __iter__(self) -> Iterator[Value]: ...

    def insert(self, at: int, value: Value, /) -> None:
        """Insert a value at this index. The values at and after this index move up."""

    def pop(self, at: int, /) -> Value:
        """Remove and return the value at this index. The values after it move down."""


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
        is_last = at == len(self._sizes)  # most values arrive in order
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
        """Yield the map's numbers above ``after``, ascending.

        The map must not change while iterating.
        """
        for key in sorted(key for key in self._pages if key >= after + 1 >> _BITS):
            bits, number = self._pages[key].bits, key << _BITS
            while bits:
                skip = (bits & -bits).bit_length()
                number += skip
                bits >>= skip
                if number - 1 > after:
                    yield number - 1

    def between(self, first: int, end: int) -> Iterator[int]:
        """Yield the map's numbers from ``first`` on and below ``end``, ascending.

        The map must not change while iterating.
        """
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
        """Yield the map's numbers above ``after`` with their values, ascending.

        This is faster than ``get`` for each number. The map must not change while iterating.
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
        """Return the value of a number; ``None`` if the number is not in the map."""
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
        """Remove a number and return its value; ``None`` if the number was not in the map."""
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


_FULL = 24
"""Average number of keys per bucket above which a bucket is added."""


Key = TypeVar("Key")


class Digests(Generic[Key]):
    """Numbers by key. The keys themselves are not stored.

    A key is represented by a 64-bit digest, so an entry takes 16 bytes. Different keys may have
    equal digests, so the caller must verify every hit against the stored key.

    Args:
        digest: Returns the unsigned 64-bit digest of a key; equal keys have equal digests.
    """

    __slots__ = ("_buckets", "_count", "_digest", "_mask", "_others")

    def __init__(self, digest: Callable[[Key], int]) -> None:
        self._digest = digest
        self._others: dict[int, Any] = {}
        self._clear()

    def _clear(self) -> None:
        self._buckets = [_Bucket()]
        self._mask = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count + len(self._others)

    def get(self, key: Key) -> Any:
        """Return the value of a key; ``None`` if there is none."""
        digest = self._digest(key)
        other = self._others.get(digest)
        return self._bucket(digest).get(digest) if other is None else other

    def put(self, key: Key, value: Any) -> None:
        """Set the value of a key. A value that is not an ``int`` is stored separately."""
        self.take(key)
        digest = self._digest(key)
        if not isinstance(value, int):
            self._others[digest] = value
            return
        self._bucket(digest).put(digest, value)
        self._count += 1
        if self._count > _FULL * len(self._buckets):
            self._grow()

    def take(self, key: Key) -> Any:
        """Remove a key and return its value; ``None`` if there was none."""
        digest = self._digest(key)
        other = self._others.pop(digest, None)
        if other is not None:
            return other
        number = self._bucket(digest).take(digest)
        if number is not None:
            self._count -= 1
            if not self._count:
                self._clear()
        return number

    def _bucket(self, digest: int) -> _Bucket:
        at = digest & self._mask
        return self._buckets[at if at < len(self._buckets) else at & self._mask >> 1]

    def _grow(self) -> None:
        """Split the next bucket. Splitting all buckets at once would cause a noticeable pause."""
        added = len(self._buckets)
        if added > self._mask:
            self._mask = 2 * self._mask + 1
        split = self._buckets[added & self._mask >> 1]
        self._buckets[added & self._mask >> 1] = _Bucket()
        self._buckets.append(_Bucket())
        for digest, number in zip(split.digests, split.numbers, strict=True):
            self._bucket(digest).put(digest, number)


class _Bucket:
    __slots__ = ("digests", "numbers")

    def __init__(self) -> None:
        self.digests = array("Q")
        self.numbers = array("q")

    def get(self, digest: int) -> int | None:
        at = self._at(digest)
        return None if at < 0 else self.numbers[at]

    def put(self, digest: int, number: int) -> None:
        self.digests.append(digest)
        self.numbers.append(number)

    def take(self, digest: int) -> int | None:
        at = self._at(digest)
        if at < 0:
            return None
        del self.digests[at]
        return self.numbers.pop(at)

    def _at(self, digest: int) -> int:
        try:
            return self.digests.index(digest)
        except ValueError:
            return -1


def text_digest(text: str) -> int:
    """Return a 64-bit BLAKE2b digest. Users who choose the texts cannot produce collisions."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


Thing = TypeVar("Thing", bound=Hashable)


class Interner(Generic[Thing]):
    """Numbers for values, with reference counts. A number is reused when its count reaches 0."""

    __slots__ = ("_counts", "_free", "_numbers", "_things")

    def __init__(self) -> None:
        self._numbers: dict[Thing, int] = {}
        self._things: list[Thing | None] = []
        self._counts: list[int] = []
        self._free: list[int] = []

    def __getitem__(self, number: int) -> Thing:
        thing = self._things[number]
        assert thing is not None  # noqa: S101 - a number in use has a count above 0
        return thing

    def acquire(self, thing: Thing) -> int:
        """Add a reference to a value and return its number."""
        number = self._numbers.get(thing)
        if number is None:
            number = self._free.pop() if self._free else len(self._things)
            if number == len(self._things):
                self._things.append(None)
                self._counts.append(0)
            self._numbers[thing], self._things[number] = number, thing
        self._counts[number] += 1
        return number

    def release(self, number: int) -> None:
        """Remove a reference to a value."""
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._numbers[self[number]]
            self._things[number] = None
            self._free.append(number)

    def numbered(self) -> ItemsView[Thing, int]:
        """Return all values with their numbers."""
        return self._numbers.items()

    def counts(self) -> Iterator[tuple[Thing, int]]:
        """Yield all values with their reference counts."""
        for thing, number in self._numbers.items():
            yield thing, self._counts[number]
