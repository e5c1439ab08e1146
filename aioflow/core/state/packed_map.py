"""A map by number, some of whose values are folded: whoever asks for one gets it back whole."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

__all__ = ("PackedMap",)

Value = TypeVar("Value")


class PackedMap(ABC, Generic[Value]):
    """What is remembered by number.

    To be looked through whole only where there are few, since that unfolds all of them. What
    concerns nothing that is folded looks through ``objects``.

    Attributes:
        objects: What is not folded.
    """

    __slots__ = ("objects",)

    def __init__(self) -> None:
        self.objects: dict[int, Value] = {}

    @abstractmethod
    def unfold(self, number: int) -> Value | None:
        """Return what is folded by this number, an object from now on; ``None`` if nothing is."""

    @abstractmethod
    def folded(self) -> Collection[int]:
        """Return the numbers of what is folded."""

    @abstractmethod
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]:
        return iter([*self.objects, *self.folded()])

    def __contains__(self, number: object) -> bool:
        return number in self.objects or number in self.folded()

    def get(self, number: int) -> Value | None:
        """Return it, if it is remembered."""
        found = self.objects.get(number)
        return self.unfold(number) if found is None else found

    def __getitem__(self, number: int) -> Value:
        found = self.get(number)
        if found is None:
            raise KeyError(number)
        return found

    def __setitem__(self, number: int, value: Value) -> None:
        self.objects[number] = value  # nothing is both

    def __delitem__(self, number: int) -> None:
        if self.pop(number) is None:
            raise KeyError(number)

    def pop(self, number: int, default: None = None) -> Value | None:
        """Forget it; return it, if it was remembered."""
        found = self.objects.pop(number, None)
        if found is None and self.unfold(number) is not None:
            found = self.objects.pop(number)
        return default if found is None else found

    def keys(self) -> set[int]:
        """Return all numbers."""
        return set(self)

    def values(self) -> Iterator[Value]:
        """Yield all of them, whole; they may be forgotten meanwhile."""
        for number in self:
            found = self.get(number)
            if found is not None:
                yield found

    def items(self) -> Iterator[tuple[int, Value]]:
        """Yield all of them with their numbers."""
        for number in self:
            found = self.get(number)
            if found is not None:
                yield number, found
