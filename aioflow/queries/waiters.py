"""Waiters by key: compact for a single waiter, and fast for a hundred thousand."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from aioflow.core.state.pages import Pages

__all__ = ("WaiterMap", "Waiters")

FEW = 8
"""Up to this many are stored as a tuple, more of them in pages."""

Key = TypeVar("Key")
Key_contra = TypeVar("Key_contra", contravariant=True)

_Numbers: TypeAlias = int | tuple[int, ...] | Pages[None]


class WaiterMap(Protocol[Key_contra]):
    """A map of waiters by key: ``Pages`` for keys that are close together, or ``Digests``."""

    def __len__(self) -> int: ...

    def get(self, key: Key_contra, /) -> Any:
        """Return the value of a key; ``None`` if there is none."""

    def put(self, key: Key_contra, value: Any, /) -> None:
        """Set the value of a key."""

    def take(self, key: Key_contra, /) -> Any:
        """Remove a key and return its value."""


class Waiters(Generic[Key]):
    """Sets of numbers by key."""

    __slots__ = ("_map",)

    def __init__(self, waiter_map: WaiterMap[Key]) -> None:
        self._map = waiter_map

    def __len__(self) -> int:
        return len(self._map)

    def __contains__(self, key: Key) -> bool:
        return self._map.get(key) is not None

    def at(self, key: Key) -> list[int]:
        """Return the numbers at a key. Their order has no meaning, but is deterministic."""
        numbers: _Numbers | None = self._map.get(key)
        if numbers is None:
            return []
        return [numbers] if isinstance(numbers, int) else list(numbers)

    def add(self, key: Key, number: int) -> None:
        """Add a number. Does nothing if it is there already."""
        numbers: _Numbers | None = self._map.get(key)
        if numbers is None:
            self._map.put(key, number)
        elif isinstance(numbers, Pages):
            numbers.put(number, None)
        else:
            few = (numbers,) if isinstance(numbers, int) else numbers
            if number not in few:
                self._map.put(key, _of((*few, number)))

    def discard(self, key: Key, number: int) -> None:
        """Remove a number, if it is there."""
        numbers: _Numbers | None = self._map.get(key)
        if isinstance(numbers, Pages):
            numbers.take(number)
            if not numbers:
                self._map.take(key)
        elif numbers == number:
            self._map.take(key)
        elif isinstance(numbers, tuple) and number in numbers:
            left = tuple(one for one in numbers if one != number)
            self._map.put(key, left if len(left) > 1 else left[0])


def _of(numbers: tuple[int, ...]) -> _Numbers:
    if len(numbers) <= FEW:
        return numbers
    pages: Pages[None] = Pages()
    for number in numbers:
        pages.put(number, None)
    return pages
