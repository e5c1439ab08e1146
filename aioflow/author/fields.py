"""Checks the arguments of a trigger against the annotations of its fields."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

from aioflow.author import codec
from aioflow.author.annotations import hints
from aioflow.author.decode import restore
from aioflow.errors import Unserializable, WrongField

__all__ = ("check_fields",)

_STEPS = 100
"""Maximum steps of the check when a trigger is created: a few milliseconds."""


@dataclass(frozen=True)
class _Shape:
    """The signature of a trigger class.

    Attributes:
        names: Names of the positional arguments.
        annotations: Types of the arguments, without those that are missing or ``Any``.
        optional: Arguments whose default is ``None``, whatever their annotation says.
    """

    names: tuple[str, ...]
    annotations: Mapping[str, Any]
    optional: frozenset[str]


_shapes: WeakKeyDictionary[type, _Shape] = WeakKeyDictionary()


def check_fields(cls: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise if an argument cannot be serialized, or does not match its annotation.

    Every value from which the annotated type can be restored is accepted: text for a date, a
    number for a ``timedelta``. A hand-written ``__init__`` may take any serializable value.
    Arguments that take long to check would block the event loop; they are checked when the
    trigger is stored.

    Raises:
        Unserializable: If an argument cannot be serialized; the error names it.
        WrongField: If an argument has another type.
    """
    shape = _shapes.get(cls)
    if shape is None:
        shape = _shapes[cls] = _shape(cls)
    given = dict(zip(shape.names, args, strict=False)) | dict(kwargs)
    if not _is_packed(given, cls.__name__):
        return
    for name, annotation in shape.annotations.items():
        if name in given and not (given[name] is None and name in shape.optional):
            where = f"{cls.__name__}.{name}"
            _check(given[name], annotation, where, is_public=name in cls.public_fields)


def _is_packed(given: Mapping[str, object], owner: str) -> bool:
    """Return whether everything could be serialized within the step limit."""
    steps = codec.fields_in_steps(given, owner, codec.VALUE_LIMIT)
    return sum(1 for _ in islice(steps, _STEPS)) < _STEPS


def _check(value: object, annotation: Any, where: str, *, is_public: bool) -> None:
    if getattr(annotation, "_is_protocol", False):
        return
    if isinstance(annotation, type) and isinstance(value, annotation):
        return  # also a bool as an int, or a subclass of str
    try:
        plain = codec.decode(codec.encode(value, where, codec.VALUE_LIMIT), where=where)
        restore(plain, annotation, where, strict=True)
    except Unserializable:
        # The error is public, and a field that is not may hold a password.
        is_shown = is_public or value is None or isinstance(value, int | float)
        raise WrongField(where, value, _name(annotation), is_shown=is_shown) from None


def _shape(cls: type) -> _Shape:
    init: Any = cls.__init__  # type: ignore[misc]
    parameters = tuple(inspect.signature(init).parameters.values())[1:]
    names = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    said, types = getattr(init, "__annotations__", {}), hints(cls)
    fields = [
        field
        for field in dataclasses.fields(cls)
        if field.init and said.get(field.name) == field.type
    ]
    return _Shape(
        names,
        {f.name: types[f.name] for f in fields if types.get(f.name, Any) is not Any},
        frozenset(field.name for field in fields if field.default is None),
    )


def _name(annotation: Any) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "")
