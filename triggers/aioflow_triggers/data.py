"""Paths into JSON documents, and conditions on the values at these paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ("JsonIs", "Nothing", "at_path")


class Nothing:
    """A marker for a path at which there is no value. A JSON ``null`` is a value."""


def at_path(value: Any, path: str) -> Any:
    """Return the value at a path of field names and list indexes, separated by dots.

    Returns:
        ``Nothing`` if there is no such value; ``value`` itself for the empty path.
    """
    for part in path.split(".") if path else ():
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and _is_index(part) and -len(value) <= int(part) < len(value):
            value = value[int(part)]
        else:
            return Nothing
    return value


def _is_index(part: str) -> bool:
    return part.removeprefix("-").isdecimal() and len(part) < 10


@dataclass(frozen=True)
class JsonIs:
    """A condition on a JSON document.

    Attributes:
        path: Names and indexes separated by dots, such as ``jobs.0.state``; ``""`` is the whole
            document.
        equals: The expected value.
        one_of: Alternatively, several accepted values.
        exists: Whether there must be a value, whatever it is, or none. Only used without ``equals``
            and ``one_of``.

    Raises:
        ValueError: If ``equals`` and ``one_of`` are both given.
    """

    path: str
    equals: str | float | int | bool | None = None
    one_of: Sequence[str | float | int | bool | None] = ()
    exists: bool = True

    def __post_init__(self) -> None:
        if self.equals is not None and self.one_of:
            raise ValueError("give equals or one_of, not both")
        # Decoding may change the type of the sequence, but the conditions must still compare equal.
        object.__setattr__(self, "one_of", tuple(self.one_of))

    def holds(self, document: Any) -> bool:
        """Return whether the document meets the condition."""
        found = at_path(document, self.path)
        wanted = list(self.one_of) if self.equals is None else [self.equals]
        if not wanted:
            return (found is not Nothing) == self.exists
        # 1 equals True in Python, but not in JSON.
        return any(
            found == value and isinstance(found, bool) == isinstance(value, bool)
            for value in wanted
        )
