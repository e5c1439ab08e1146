"""A map by number, some of whose values are packed. A lookup unpacks the value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

__all__ = ("PackedMap",)

Value = TypeVar("Value")


class PackedMap(ABC, Generic[Value]):
    """Values by number, as objects or packed.

    Iterate over the values only where they are few, since that unpacks all of them. Code that
    cannot concern packed values iterates over ``objects``.

    Attributes:
        objects: Values that are not packed.
    """

    __slots__ = ("objects",)

    def __init__(self) -> None:
        self.objects: dict[int, Value] = {}

    @abstractmethod
    def unfold(self, number: int) -> Value | None:
        """Unpack the value of this number and return it; ``None`` if none is packed."""

    @abstractmethod
    def folded(self) -> Collection[int]:
        """Return the numbers of the packed values."""

    @abstractmethod
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]:
        return iter([*self.objects, *self.folded()])

    def __contains__(self, number: object) -> bool:
        return number in self.objects or number in self.folded()

    def get(self, number: int) -> Value | None:
        """Return the value, or ``None``."""
        found = self.objects.get(number)
        return self.unfold(number) if found is None else found

    def __getitem__(self, number: int) -> Value:
        found = self.get(number)
        if found is None:
            raise KeyError(number)
        return found

    def __setitem__(self, number: int, value: Value) -> None:
        self.objects[number] = value  # a number is never in both

    def __delitem__(self, number: int) -> None:
        if self.pop(number) is None:
            raise KeyError(number)

    def pop(self, number: int, default: None = None) -> Value | None:
        """Remove the value and return it, or ``default`` if there is none."""
        found = self.objects.pop(number, None)
        if found is None and self.unfold(number) is not None:
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
