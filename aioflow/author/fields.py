"""Whether what a trigger is made with fits the annotations of its fields."""

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
"""Of the look at fields as they are written: some milliseconds."""


@dataclass(frozen=True)
class _Shape:
    """How a class is called.

    Attributes:
        names: What positional arguments are called.
        annotations: What its arguments are to be, as far as that is said; ``Any`` is not kept.
        optional: Those that are ``None`` by default, whatever their annotation says.
    """

    names: tuple[str, ...]
    annotations: Mapping[str, Any]
    optional: frozenset[str]


_shapes: WeakKeyDictionary[type, _Shape] = WeakKeyDictionary()


def check_fields(cls: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Refuse arguments that cannot be stored, or not as what they are annotated with.

    Whatever a stored value would be restored from is accepted: text for a date, a number for a
    ``timedelta``. An ``__init__`` written by hand may take anything that can travel. What takes
    long to look through, on a loop that others share, is checked when the trigger is stored.

    Raises:
        Unserializable: If one cannot travel; it is named.
        WrongField: If one is of another type.
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
    """Whether all can be stored, as far as a short look tells."""
    steps = codec.fields_in_steps(given, owner, codec.VALUE_LIMIT)
    return sum(1 for _ in islice(steps, _STEPS)) < _STEPS


def _check(value: object, annotation: Any, where: str, *, is_public: bool) -> None:
    if getattr(annotation, "_is_protocol", False):
        return
    if isinstance(annotation, type) and isinstance(value, annotation):
        return  # also a bool as an int, or a class of one's own as a str
    try:
        plain = codec.decode(codec.encode(value, where, codec.VALUE_LIMIT), where=where)
        restore(plain, annotation, where, strict=True)
    except Unserializable:
        # Others read the error, and what is not public may be a password.
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
