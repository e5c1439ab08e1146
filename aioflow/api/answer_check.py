"""Validation of an answer against the JSON Schema of its form, field by field.

A validation can take minutes, because ``pattern`` is a regular expression, and ``uniqueItems``
compares each item with every other item. So only a short answer to a plain schema is validated in
the process of the daemon. All others are validated in a process with limits.

That process imports this module, so the module imports little.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec

__all__ = ("answer_problems", "is_quick", "limited_problems")

_FORMATS: Mapping[str, type] = {
    "date": date,
    "date-time": datetime,
    "decimal": Decimal,
    "duration": timedelta,
    "time": time,
    "uuid": UUID,
}
"""The types that the task restores from text, by the ``format`` in the schema."""

_MESSAGE_LENGTH = 200
_MOST_ERRORS = 100
"""The number of errors after which a check stops."""

_QUICK_ANSWER = 1024
_QUICK_SCHEMA = 16 * 1024
_PLAIN = frozenset(
    {
        "const",
        "default",
        "description",
        "enum",
        "examples",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "format",
        "maxItems",
        "maxLength",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "multipleOf",
        "required",
        "title",
        "type",
    }
)
"""Keywords whose check takes time proportional to the size of the answer."""

_MEMORY_BYTES = 1024 * 1024 * 1024


def is_quick(schema: str, size: int) -> bool:
    """Return whether a check may run on the event loop.

    Args:
        schema: The JSON Schema of the form.
        size: The size of the encoded answer.
    """
    if size > _QUICK_ANSWER or len(schema) > _QUICK_SCHEMA:
        return False
    try:
        return _is_plain(json.loads(schema))
    except (ValueError, RecursionError):
        return False


def _is_plain(schema: object) -> bool:
    """Return whether a schema, including the schemas of its fields, has only plain keywords."""
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict):
        return False
    for keyword, value in schema.items():
        match keyword, value:
            case "properties", dict():
                good = all(map(_is_plain, value.values()))
            case "anyOf", list():
                good = all(map(_is_plain, value))
            case (("items" | "additionalProperties"), _):
                good = _is_plain(value)
            case "$defs", _:
                good = True  # without a $ref, nothing uses them
            case _:
                good = keyword in _PLAIN
        if not good:
            return False
    return True


def limited_problems(schema: str, answer: dict[str, Any], seconds: int) -> dict[str, str]:
    """Check like ``answer_problems``, within limits of memory and CPU time.

    When the CPU time is used up, the kernel kills the process, even within a regular expression.
    """
    cpu, memory = (resource.getrlimit(kind) for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS))
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (_lower(limit, cpu[1]), cpu[1]))
    resource.setrlimit(resource.RLIMIT_AS, (_lower(_MEMORY_BYTES, memory[1]), memory[1]))
    try:
        return answer_problems(schema, answer)
    finally:  # the process serves other checks, too
        resource.setrlimit(resource.RLIMIT_CPU, cpu)
        resource.setrlimit(resource.RLIMIT_AS, memory)


def _lower(limit: int, hard: int) -> int:
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)


def answer_problems(schema: str, answer: dict[str, Any]) -> dict[str, str]:
    """Return an error message for each invalid field of an answer; empty if the answer is valid.

    The key ``""`` stands for the answer as a whole, or for a field that the form does not have.
    """
    from jsonschema import Draft202012Validator, FormatChecker
    from referencing import Registry

    formats = FormatChecker(())
    for name, kind in _FORMATS.items():
        formats.checks(name)(_checker(kind))
    # The registry is empty, so that no $ref can make the validator fetch anything.
    validator = Draft202012Validator(
        json.loads(schema), registry=Registry(), format_checker=formats
    )
    problems: dict[str, str] = {}
    try:
        for error in islice(validator.iter_errors(answer), _MOST_ERRORS):
            names = [str(error.absolute_path[0])] if error.absolute_path else _missing(error)
            for name in names or [""]:
                problems.setdefault(name, _message(error, is_missing=not error.absolute_path))
    except Exception as exc:  # noqa: BLE001 - an invalid schema lets the validator raise anything
        problems[""] = f"the form itself is invalid: {exc}"[:_MESSAGE_LENGTH]
    return problems


def _checker(kind: type) -> Any:
    def fits(value: object) -> bool:
        if not isinstance(value, str):
            return True  # the type is checked separately
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            return False
        return True

    return fits


def _missing(error: Any) -> list[str]:
    if error.validator != "required":
        return []
    return [name for name in error.validator_value if name not in error.instance]


def _message(error: Any, *, is_missing: bool) -> str:
    if is_missing and error.validator == "required":
        return "is required"
    if error.validator == "format":
        return f"must be a {error.validator_value}"
    return str(error.message)[:_MESSAGE_LENGTH]
