"""Where the arguments of a task come from: what the author's objects say and the host resolves.

A binding is data. Whoever runs a task looks at each of its arguments and fetches the value
from where the binding points to.
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
    """A value that stands in the DAG file."""

    value: object


class FromTask(msgspec.Struct, frozen=True):
    """The result of a parent, or what ``keys`` lead to inside it.

    A parent that gave nothing, or a key its result does not have, is the host's affair.

    Attributes:
        is_last: Of a loop: what its last round gave, of those that gave anything.
    """

    position: int
    keys: tuple[str | int, ...] = ()
    is_last: bool = False


class FromParameter(msgspec.Struct, frozen=True):
    """A parameter of the DAG: from the run's conf, else its default.

    Attributes:
        keys: What to take out of it, as with ``FromTask``.
    """

    name: str
    keys: tuple[str | int, ...] = ()


class FromContext(msgspec.Struct, frozen=True):
    """What the run knows of itself: a name for ``context.resolve``."""

    name: str


class FromSource(msgspec.Struct, frozen=True):
    """The item of a mapped child out of the n-th source of its expansion, or a part of it."""

    source: int
    keys: tuple[str | int, ...] = ()


class FromRound(msgspec.Struct, frozen=True):
    """What the round before gave, or a part of it.

    Attributes:
        first: Stands in for that in the first round.
    """

    first: object
    keys: tuple[str | int, ...] = ()


class Spread(msgspec.Struct, frozen=True):
    """Parameters of a mapped child by their names, out of an item that is a mapping.

    Attributes:
        source: Of the expansion.
        names: Those it may give; ``None`` for any.
        required: Those it has to.
        given: Those that stand fast, and it may not give.
    """

    source: int
    names: tuple[str, ...] | None
    required: tuple[str, ...]
    given: tuple[str, ...]

    def refuse(self, item: object) -> str | None:
        """Return what is wrong with an item; ``None`` if it fits."""
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

    Everything in ``value`` that is a binding is resolved, at any depth of lists, tuples and
    dict values; the rest is taken as it is.
    """

    value: object


Binding: TypeAlias = (
    Literal | FromTask | FromParameter | FromContext | FromSource | FromRound | Nested | Spread
)
