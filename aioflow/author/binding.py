"""Bindings: where the arguments of a task come from.

A binding is data. The DAG file creates it; the worker process that runs the task resolves the
binding of each argument to a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

__all__ = (
    "Binding",
    "FromContext",
    "FromParameter",
    "FromRound",
    "FromSource",
    "FromTask",
    "Literal",
    "Nested",
    "Spread",
)


class Literal(msgspec.Struct, frozen=True):
    """A value that is written in the DAG file."""

    value: object


class FromTask(msgspec.Struct, frozen=True):
    """The result of a parent, or the part of it that ``keys`` select.

    The worker process handles a parent without a result and a missing key.

    Attributes:
        is_last: The parent is in a loop: use the result of the last round that has one.
    """

    position: int
    keys: tuple[str | int, ...] = ()
    is_last: bool = False


class FromParameter(msgspec.Struct, frozen=True):
    """A parameter of the DAG: from the run's conf, else its default.

    Attributes:
        keys: Select a part of the value, as in ``FromTask``.
    """

    name: str
    keys: tuple[str | int, ...] = ()


class FromContext(msgspec.Struct, frozen=True):
    """A value of the run's context: a name for ``context.resolve``."""

    name: str


class FromSource(msgspec.Struct, frozen=True):
    """The item of a mapped child from the n-th source of its expansion, or a part of it."""

    source: int
    keys: tuple[str | int, ...] = ()


class FromRound(msgspec.Struct, frozen=True):
    """The result of the previous round of a loop, or a part of it.

    Attributes:
        first: Binding of the value that is used in the first round.
    """

    first: object
    keys: tuple[str | int, ...] = ()


class Spread(msgspec.Struct, frozen=True):
    """Parameters of a mapped child, by name, from an item that is a mapping.

    Attributes:
        source: Index of the source in the expansion.
        names: Names that the item may have; ``None`` for any.
        required: Names that the item must have.
        given: Names that are fixed already, so that the item may not have them.
    """

    source: int
    names: tuple[str, ...] | None
    required: tuple[str, ...]
    given: tuple[str, ...]

    def refuse(self, item: object) -> str | None:
        """Return the error message for an item; ``None`` if the item is valid."""
        if not isinstance(item, Mapping):
            return f"expand_kwargs() takes mappings, and this item is a {type(item).__name__}"
        for name in item:
            if name in self.given:
                return f"an item of expand_kwargs() gives {name!r}, which partial() gives, too"
            if not isinstance(name, str) or (self.names is not None and name not in self.names):
                return f"an item of expand_kwargs() gives {name!r}, which is no parameter"
        missing = [name for name in self.required if name not in item]
        if missing:
            return f"an item of expand_kwargs() does not give {missing[0]!r}"
        return None


class Nested(msgspec.Struct, frozen=True):
    """A list, tuple or dict of a DAG file with bindings somewhere inside.

    Every binding in ``value`` is resolved, at any depth of lists, tuples and dict values. All
    other values are used unchanged.
    """

    value: object


Binding: TypeAlias = (
    Literal | FromTask | FromParameter | FromContext | FromSource | FromRound | Nested | Spread
)
