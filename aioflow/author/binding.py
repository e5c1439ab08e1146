"""Where the arguments of a task come from: what the author's objects say and the host resolves.

A binding is data. Whoever runs a task looks at each of its arguments and fetches the value
from where the binding points to.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = (
    "Binding",
    "FromContext",
    "FromParameter",
    "FromSource",
    "FromTask",
    "Literal",
    "Nested",
)


class Literal(msgspec.Struct, frozen=True):
    """A value that stands in the DAG file."""

    value: object


class FromTask(msgspec.Struct, frozen=True):
    """The result of a parent, or what ``keys`` lead to inside it.

    A parent that gave nothing, or a key its result does not have, is the host's affair.
    """

    position: int
    keys: tuple[str | int, ...] = ()


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
    """The item of a mapped child out of the n-th source of its expansion."""

    source: int


class Nested(msgspec.Struct, frozen=True):
    """A list, tuple or dict of a DAG file with bindings somewhere inside.

    Everything in ``value`` that is a binding is resolved, at any depth of lists, tuples and
    dict values; the rest is taken as it is.
    """

    value: object


Binding: TypeAlias = Literal | FromTask | FromParameter | FromContext | FromSource | Nested
