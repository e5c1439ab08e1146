"""A map from texts to numbers that lies flat in memory, for a hundred thousand of them."""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

__all__ = ("Texts",)

_FULL = 24
"""Texts in a bucket, on average, before there is another bucket."""


class Texts:
    """A shelf of texts, see ``crowds``, which forgets them.

    A text is known by 64 bits of its digest: eight bytes, and eight for the number that it leads
    to. Two that share those would be taken for one; whoever looks here looks again elsewhere
    before anything is said, so that would cost a look and nothing else.
    """

    __slots__ = ("_buckets", "_count", "_mask", "_others")

    def __init__(self) -> None:
        self._others: dict[int, Any] = {}
        self._clear()

    def _clear(self) -> None:
        self._buckets = [_Bucket()]
        self._mask = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count + len(self._others)

    def get(self, text: str) -> Any:
        """See ``Shelf``."""
        digest = _digest(text)
        other = self._others.get(digest)
        return self._bucket(digest).get(digest) if other is None else other

    def put(self, text: str, value: Any) -> None:
        """See ``Shelf``."""
        self.take(text)
        digest = _digest(text)
        if not isinstance(value, int):
            self._others[digest] = value
            return
        self._bucket(digest).put(digest, value)
        self._count += 1
        if self._count > _FULL * len(self._buckets):
            self._grow()

    def take(self, text: str) -> Any:
        """See ``Shelf``."""
        digest = _digest(text)
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
        """Split one bucket, the next in turn: never all at once, which many would notice."""
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


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
