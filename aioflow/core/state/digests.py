"""A compact map from digests to numbers, for hundreds of thousands of keys."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ("Digests", "of_text")

_FULL = 24
"""Average number of keys per bucket above which a bucket is added."""


Key = TypeVar("Key")


class Digests(Generic[Key]):
    """Numbers by key. The keys themselves are not stored.

    A key is represented by a 64-bit digest, so an entry takes 16 bytes. Keys with equal digests
    collide, so the caller must verify every hit against the stored key.

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
        """Return the value of a key, or ``None``."""
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
        """Remove a key and return its value, or ``None``."""
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
        """Split the next bucket. Splitting all at once would cause a noticeable pause."""
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


def of_text(text: str) -> int:
    """Return a 64-bit BLAKE2b digest, so that users who choose texts cannot produce collisions."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
