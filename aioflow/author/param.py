"""Parameters with a JSON schema: ``Param``.

The schema is data. It is checked when the file is parsed, and the conf of each run is validated
against it. The JSON Schema library is loaded only if there is a schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

from aioflow.author.source_location import dag_error

__all__ = ("JSON_LIMIT", "Param", "json_text", "misfit")

JSON_LIMIT = 1024 * 1024
"""Maximum characters of a schema, and of a default."""

_MISSING: Any = object()
_json = json.JSONEncoder(allow_nan=False)


class Param(Any):  # type: ignore[misc]  # usable wherever its value is
    """The default of a parameter together with its JSON schema.

    As in Airflow, in the options of a DAG: ``params={"n": Param(3, type="integer", minimum=1)}``.
    Also as the default of a parameter of a ``@dag`` function. Inside the DAG it is used like any
    other parameter.

    Args:
        default: A JSON value that matches the schema. Without it each run must supply a value.
        description: A description for users.
        schema: Keywords of JSON Schema (draft 2020-12): ``type``, ``minimum``, ``enum`` ...; a
            ``$ref`` must stay within the schema.

    Raises:
        DagError: If the schema is invalid, or the default does not match it.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return object.__new__(cls)  # that of Any takes no arguments

    def __init__(
        self, default: Any = _MISSING, *, description: str | None = None, **schema: Any
    ) -> None:
        self.required = default is _MISSING
        self.default = None if self.required else default
        if description is not None:
            schema["description"] = description
        self.schema = _checked(schema)
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
    for part in _json.iterencode(value):
        size += len(part)
        if size > JSON_LIMIT:
            raise ValueError(f"it takes more than {JSON_LIMIT >> 10} KiB")
        parts.append(part)
    return "".join(parts)


def misfit(schemas: Mapping[str, str], values: Mapping[str, Any]) -> str | None:
    """Return an error message for the first value that violates its schema; ``None`` if none does.

    May take long: matching a ``pattern`` can be slow. A value without a schema, and a schema
    without a value, are ignored.
    """
    for name, schema in schemas.items():
        if name in values and (why := _why_not(json.loads(schema), values[name])):
            return f"the parameter {name!r} does not fit: {why}"
    return None


def _why_not(schema: Mapping[str, Any], value: Any) -> str | None:
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.exceptions import best_match
    from referencing import Registry

    # An empty registry: nothing is fetched, whatever a $ref says.
    validator = Draft202012Validator(schema, registry=Registry(), format_checker=FormatChecker())
    problem = best_match(validator.iter_errors(value))
    if problem is None:
        return None
    where = "".join(f"[{part!r}]" for part in problem.absolute_path)
    return f"{where} {problem.message}".strip()


def _checked(schema: Mapping[str, Any]) -> str:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        text = json_text(schema)
        Draft202012Validator.check_schema(json.loads(text))
    except (TypeError, ValueError, RecursionError) as exc:
        raise dag_error(f"the schema of a Param is no JSON: {exc}") from None
    except SchemaError as exc:
        raise dag_error(f"the schema of a Param is none: {exc.message}") from None
    for target in _references(schema):
        if not (isinstance(target, str) and target.startswith("#")):
            raise dag_error(f"$ref={target!r} leads out of the schema of its Param")
    return text


def _references(schema: object) -> Iterator[object]:
    if isinstance(schema, dict):
        for word, value in schema.items():
            if word in {"$ref", "$dynamicRef"}:
                yield value
            yield from _references(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _references(value)


def _check_default(default: Any, schema: str) -> None:
    try:
        plain = json.loads(json_text(default))
    except (TypeError, ValueError, RecursionError) as exc:
        raise dag_error(f"the default of a Param must be JSON: {exc}") from None
    try:
        why = _why_not(json.loads(schema), plain)
    except Exception as exc:  # noqa: BLE001 - such as a $ref to nowhere
        raise dag_error(f"the schema of a Param cannot be used: {exc}") from None
    if why is not None:
        raise dag_error(f"the default of a Param does not fit its schema: {why}")
