"""Shared values by small reference-counted numbers."""

from __future__ import annotations

from collections.abc import Hashable, ItemsView, Iterator
from typing import Generic, TypeVar

__all__ = ("Interner",)

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

    def enter(self, thing: Thing) -> int:
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

    def leave(self, number: int) -> None:
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
