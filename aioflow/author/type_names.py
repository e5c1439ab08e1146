"""The types of a DAG's parameters as text, so that a run's conf can be checked without its code.

Plain types, lists, mappings, unions and literals have a text. A user-defined type has none,
except for an enum, which becomes the literal of its values.
"""

from __future__ import annotations

import ast
import types
from collections import abc
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin
from uuid import UUID

from aioflow.author.custom_codecs import codec_for
from aioflow.author.decode import restore
from aioflow.errors import Unserializable

__all__ = ("ANY", "conf_misfit", "type_name")

_NAMED: Mapping[str, Any] = {
    "bool": bool,
    "bytes": bytes,
    "date": date,
    "datetime": datetime,
    "Decimal": Decimal,
    "dict": dict,
    "float": float,
    "int": int,
    "list": list,
    "None": None,
    "Path": Path,
    "str": str,
    "time": time,
    "timedelta": timedelta,
    "UUID": UUID,
}
_NAMES = {cls: name for name, cls in _NAMED.items()} | {type(None): "None"}
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection, abc.MutableSequence)
_MAPS = (dict, abc.Mapping, abc.MutableMapping)
ANY = "Any"
"""The text of all other types."""
_CONSTANTS = (str, int, bool, type(None))
_TEXT_LIMIT = 4_000


def type_name(annotation: Any) -> str:
    """Return the text of a type, with ``Any`` for a type, or a part of one, that has none."""
    text = _text(annotation)
    return text if len(text) <= _TEXT_LIMIT else ANY


def _text(annotation: Any) -> str:
    while isinstance(annotation, NewType) or get_origin(annotation) is Annotated:
        is_new = isinstance(annotation, NewType)
        annotation = annotation.__supertype__ if is_new else get_args(annotation)[0]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in {Union, types.UnionType}:
        named = [_text(part) for part in parts]
        return ANY if ANY in named else " | ".join(named)
    if origin is Literal:
        return _literal(parts)
    if isinstance(annotation, type) and codec_for(annotation) is not None:
        return ANY
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _literal(tuple(member.value for member in annotation))
    if origin in _LISTS or annotation in _LISTS:
        return f"list[{_text(parts[0])}]" if len(parts) == 1 else "list"
    if origin in _MAPS or annotation in _MAPS:
        return f"dict[{_text(parts[0])}, {_text(parts[1])}]" if len(parts) == 2 else "dict"
    return _NAMES.get(annotation, ANY) if isinstance(annotation, type | None) else ANY


def _literal(values: tuple[Any, ...]) -> str:
    if not values or not all(type(value) in _CONSTANTS for value in values):
        return ANY
    return f"Literal[{', '.join(map(repr, values))}]"


def conf_misfit(named: Mapping[str, str], values: Mapping[str, Any]) -> str | None:
    """Return an error message for the first value that has the wrong type; ``None`` if none has.

    Args:
        named: The texts of ``type_name``, by parameter.
    """
    for name, text in named.items():
        if name in values:
            try:
                restore(values[name], _type(text), f"conf[{name!r}]", strict=True)
            except Unserializable as exc:
                shown = repr(values[name])
                shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
                return f"the parameter {name!r} must be {text}, got {shown} ({exc.where})"
    return None


@lru_cache(maxsize=1024)
def _type(text: str) -> Any:
    return _made(ast.parse(text, mode="eval").body)


def _made(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Name(id=name):
            return _NAMED.get(name, Any)
        case ast.BinOp(left=left, right=right):
            return Union[_made(left), _made(right)]  # noqa: UP007 - None | None is none
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            values = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return Literal[tuple(map(ast.literal_eval, values))]
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, item])):
            return dict[_made(key), _made(item)]  # type: ignore[misc]  # of a text
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return list[_made(inner)]  # type: ignore[misc]  # of a text
        case _:
            return Any
