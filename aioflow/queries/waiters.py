"""Waiters by key: compact for a single waiter, and fast for a hundred thousand."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from aioflow.core.state.pages import Pages

__all__ = ("Crowds", "Shelf")

FEW = 8
"""Up to this many are stored as a tuple, more of them in pages."""

Key = TypeVar("Key")
Looked_contra = TypeVar("Looked_contra", contravariant=True)

_Crowd: TypeAlias = int | tuple[int, ...] | Pages[None]


class Shelf(Protocol[Looked_contra]):
    """A map of waiters by key: ``Pages`` for keys that are close together, or ``Digests``."""

    def __len__(self) -> int: ...

    def get(self, key: Looked_contra, /) -> Any:
        """Return the value of a key; ``None`` if there is none."""

    def put(self, key: Looked_contra, value: Any, /) -> None:
        """Set the value of a key."""

    def take(self, key: Looked_contra, /) -> Any:
        """Remove a key and return its value."""


class Crowds(Generic[Key]):
    """Sets of numbers by key."""

    __slots__ = ("_shelf",)

    def __init__(self, shelf: Shelf[Key]) -> None:
        self._shelf = shelf

    def __len__(self) -> int:
        return len(self._shelf)

    def __contains__(self, key: Key) -> bool:
        return self._shelf.get(key) is not None

    def at(self, key: Key) -> list[int]:
        """Return the numbers at a key. Their order has no meaning, but is deterministic."""
        crowd: _Crowd | None = self._shelf.get(key)
        if crowd is None:
            return []
        return [crowd] if isinstance(crowd, int) else list(crowd)

    def add(self, key: Key, number: int) -> None:
        """Add a number. Does nothing if it is there already."""
        crowd: _Crowd | None = self._shelf.get(key)
        if crowd is None:
            self._shelf.put(key, number)
        elif isinstance(crowd, Pages):
            crowd.put(number, None)
        else:
            few = (crowd,) if isinstance(crowd, int) else crowd
            if number not in few:
                self._shelf.put(key, _of((*few, number)))

    def discard(self, key: Key, number: int) -> None:
        """Remove a number, if it is there."""
        crowd: _Crowd | None = self._shelf.get(key)
        if isinstance(crowd, Pages):
            crowd.take(number)
            if not crowd:
                self._shelf.take(key)
        elif crowd == number:
            self._shelf.take(key)
        elif isinstance(crowd, tuple) and number in crowd:
            left = tuple(one for one in crowd if one != number)
            self._shelf.put(key, left if len(left) > 1 else left[0])


def _of(numbers: tuple[int, ...]) -> _Crowd:
    if len(numbers) <= FEW:
        return numbers
    pages: Pages[None] = Pages()
    for number in numbers:
        pages.put(number, None)
    return pages
