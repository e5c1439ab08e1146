"""Looks into JSON, and says as data what one hopes to find there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ("JsonIs", "Nothing", "at_path")


class Nothing:
    """There is nothing at a path; a ``null`` there is something."""


def at_path(value: Any, path: str) -> Any:
    """Return what stands at a path: names of fields and numbers of items, dots between.

    Returns:
        ``Nothing`` if there is nothing; ``value`` itself for the empty path.
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
    """Something to find in a JSON document.

    Attributes:
        path: Where: names and numbers with dots between, such as ``jobs.0.state``; ``""`` is
            the whole.
        equals: What stands there.
        one_of: Or one of these.
        exists: Or, with neither: whether there is anything at all.

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
        # A list that was written comes back as another kind of sequence: be equal all the same.
        object.__setattr__(self, "one_of", tuple(self.one_of))

    def holds(self, document: Any) -> bool:
        """Return whether it is so."""
        found = at_path(document, self.path)
        wanted = list(self.one_of) if self.equals is None else [self.equals]
        if not wanted:
            return (found is not Nothing) == self.exists
        # In Python 1 equals True, in JSON it does not.
        return any(
            found == value and isinstance(found, bool) == isinstance(value, bool)
            for value in wanted
        )
