"""Parameters with a JSON schema, and the types of parameters as text, to check the conf of runs.

A conf is checked without the code of its DAG, from a schema or from a type as text. The schema
itself is checked when the file is parsed. The JSON Schema library is loaded only if there is a
schema. Plain types, lists, mappings, unions and literals have a text. A user-defined type has none,
except for an enum, whose text is the literal of its values.
"""

from __future__ import annotations

import ast
import json
import types
from collections import abc
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Self, Union, get_args, get_origin
from uuid import UUID

from aioflow.author.decode import restore
from aioflow.author.msgpack_forms import codec_for
from aioflow.author.source_location import dag_error
from aioflow.errors import Unserializable

__all__ = (
    "ANY_TYPE",
    "JSON_LIMIT",
    "Param",
    "json_text",
    "schema_misfit",
    "type_misfit",
    "type_name",
)

JSON_LIMIT = 1024 * 1024
"""Maximum characters of a schema, and of a default."""

_MISSING: Any = object()
_json_encoder = json.JSONEncoder(allow_nan=False)


class Param(Any):  # type: ignore[misc]  # usable wherever its value is
    """The default of a parameter together with its JSON schema.

    Use it in the options of a DAG, as in Airflow: ``params={"n": Param(3, type="integer",
    minimum=1)}``; or as the default of a parameter of a ``@dag`` function. Inside the DAG it is
    used like any other parameter.

    Args:
        default: A JSON value that matches the schema. Without a default, each run must supply a
            value.
        description: A description for users.
        schema: Keywords of JSON Schema (draft 2020-12): ``type``, ``minimum``, ``enum`` ...; a
            ``$ref`` must stay within the schema.

    Raises:
        DagError: If the schema is invalid, or the default does not match it.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return object.__new__(cls)  # Any.__new__ takes no arguments

    def __init__(
        self, default: Any = _MISSING, *, description: str | None = None, **schema: Any
    ) -> None:
        self.required = default is _MISSING
        self.default = None if self.required else default
        if description is not None:
            schema["description"] = description
        self.schema = _checked_schema(schema)
        if not self.required:
            _check_default(default, self.schema)

    def __repr__(self) -> str:
        return f"Param({'' if self.required else repr(self.default)})"


def json_text(value: object) -> str:
    """Return a value as JSON.

    Raises:
        ValueError: If it takes more than ``JSON_LIMIT`` characters, or contains itself or a NaN.
        TypeError: If it is not JSON-serializable.
    """
    parts: list[str] = []
    size = 0
    for part in _json_encoder.iterencode(value):
        size += len(part)
        if size > JSON_LIMIT:
            raise ValueError(f"it takes more than {JSON_LIMIT >> 10} KiB")
        parts.append(part)
    return "".join(parts)


def schema_misfit(schemas: Mapping[str, str], values: Mapping[str, Any]) -> str | None:
    """Return an error message for the first value that violates its schema; ``None`` if none does.

    May take a long time, because matching a ``pattern`` can be slow. Ignores values without a
    schema, and schemas without a value.
    """
    for name, schema in schemas.items():
        if name in values and (why := _schema_violation(json.loads(schema), values[name])):
            return f"the parameter {name!r} does not fit: {why}"
    return None


def _schema_violation(schema: Mapping[str, Any], value: Any) -> str | None:
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.exceptions import best_match
    from referencing import Registry

    # The registry is empty, so that no $ref can make the validator fetch anything.
    validator = Draft202012Validator(schema, registry=Registry(), format_checker=FormatChecker())
    problem = best_match(validator.iter_errors(value))
    if problem is None:
        return None
    where = "".join(f"[{part!r}]" for part in problem.absolute_path)
    return f"{where} {problem.message}".strip()


def _checked_schema(schema: Mapping[str, Any]) -> str:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        text = json_text(schema)
        Draft202012Validator.check_schema(json.loads(text))
    except (TypeError, ValueError, RecursionError) as exc:
        raise dag_error(f"the schema of a Param is not valid JSON: {exc}") from None
    except SchemaError as exc:
        raise dag_error(f"the schema of a Param is none: {exc.message}") from None
    for target in _schema_references(schema):
        if not (isinstance(target, str) and target.startswith("#")):
            raise dag_error(f"$ref={target!r} leads out of the schema of its Param")
    return text


def _schema_references(schema: object) -> Iterator[object]:
    if isinstance(schema, dict):
        for word, value in schema.items():
            if word in {"$ref", "$dynamicRef"}:
                yield value
            yield from _schema_references(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _schema_references(value)


def _check_default(default: Any, schema: str) -> None:
    try:
        plain = json.loads(json_text(default))
    except (TypeError, ValueError, RecursionError) as exc:
        raise dag_error(f"the default of a Param must be JSON: {exc}") from None
    try:
        why = _schema_violation(json.loads(schema), plain)
    except Exception as exc:  # noqa: BLE001 - such as a $ref to nowhere
        raise dag_error(f"the schema of a Param cannot be used: {exc}") from None
    if why is not None:
        raise dag_error(f"the default of a Param does not fit its schema: {why}")


_TYPES_BY_NAME: Mapping[str, Any] = {
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
_TYPE_NAMES = {cls: name for name, cls in _TYPES_BY_NAME.items()} | {type(None): "None"}
_LISTS = (list, abc.Sequence, abc.Iterable, abc.Collection, abc.MutableSequence)
_MAPS = (dict, abc.Mapping, abc.MutableMapping)
ANY_TYPE = "Any"
"""The text for types that have no text."""
_CONSTANTS = (str, int, bool, type(None))
_TEXT_LIMIT = 4_000


def type_name(annotation: Any) -> str:
    """Return the text of a type. A type, or a part of a type, that has no text becomes ``Any``."""
    text = _type_text(annotation)
    return text if len(text) <= _TEXT_LIMIT else ANY_TYPE


def _type_text(annotation: Any) -> str:
    while isinstance(annotation, NewType) or get_origin(annotation) is Annotated:
        is_new = isinstance(annotation, NewType)
        annotation = annotation.__supertype__ if is_new else get_args(annotation)[0]
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in {Union, types.UnionType}:
        named = [_type_text(part) for part in parts]
        return ANY_TYPE if ANY_TYPE in named else " | ".join(named)
    if origin is Literal:
        return _literal_text(parts)
    if isinstance(annotation, type) and codec_for(annotation) is not None:
        return ANY_TYPE
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _literal_text(tuple(member.value for member in annotation))
    if origin in _LISTS or annotation in _LISTS:
        return f"list[{_type_text(parts[0])}]" if len(parts) == 1 else "list"
    if origin in _MAPS or annotation in _MAPS:
        return (
            f"dict[{_type_text(parts[0])}, {_type_text(parts[1])}]" if len(parts) == 2 else "dict"
        )
    return (
        _TYPE_NAMES.get(annotation, ANY_TYPE) if isinstance(annotation, type | None) else ANY_TYPE
    )


def _literal_text(values: tuple[Any, ...]) -> str:
    if not values or not all(type(value) in _CONSTANTS for value in values):
        return ANY_TYPE
    return f"Literal[{', '.join(map(repr, values))}]"


def type_misfit(named: Mapping[str, str], values: Mapping[str, Any]) -> str | None:
    """Return an error message for the first value that has the wrong type; ``None`` if none has.

    Args:
        named: The types as text, by parameter; see ``type_name``.
    """
    for name, text in named.items():
        if name in values:
            try:
                restore(values[name], _type_of_text(text), f"conf[{name!r}]", strict=True)
            except Unserializable as exc:
                shown = repr(values[name])
                shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
                return f"the parameter {name!r} must be {text}, got {shown} ({exc.where})"
    return None


@lru_cache(maxsize=1024)
def _type_of_text(text: str) -> Any:
    return _type_of_expression(ast.parse(text, mode="eval").body)


def _type_of_expression(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=None):
            return None
        case ast.Name(id=name):
            return _TYPES_BY_NAME.get(name, Any)
        case ast.BinOp(left=left, right=right):
            return Union[_type_of_expression(left), _type_of_expression(right)]  # noqa: UP007 - None | None is a TypeError
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            values = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return Literal[tuple(map(ast.literal_eval, values))]
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, item])):
            return dict[_type_of_expression(key), _type_of_expression(item)]  # type: ignore[misc]  # of a text
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return list[_type_of_expression(inner)]  # type: ignore[misc]  # of a text
        case _:
            return Any
