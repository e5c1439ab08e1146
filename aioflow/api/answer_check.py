"""The check of an answer against the JSON Schema of a form, field by field.

The module is imported by the process that checks, so it imports little.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

__all__ = ("answer_problems",)

_FORMATS: Mapping[str, type] = {
    "date": date,
    "date-time": datetime,
    "decimal": Decimal,
    "duration": timedelta,
    "time": time,
    "uuid": UUID,
}
"""The types that the task restores from text, by the format of the schema."""

_MESSAGE_LENGTH = 200


def answer_problems(schema: str, answer: dict[str, Any]) -> dict[str, str]:
    """Return what is wrong with an answer, by field; empty if it fits.

    The name ``""`` stands for the answer as a whole, or for a field that the form does not have.
    """
    from jsonschema import Draft202012Validator, FormatChecker
    from jsonschema.exceptions import SchemaError
    from referencing import Registry

    formats = FormatChecker(())
    for name, kind in _FORMATS.items():
        formats.checks(name)(_checker(kind))
    # The registry is empty, so that nothing is fetched, whatever a $ref says.
    validator = Draft202012Validator(
        json.loads(schema), registry=Registry(), format_checker=formats
    )
    problems: dict[str, str] = {}
    try:
        for error in validator.iter_errors(answer):
            names = [str(error.absolute_path[0])] if error.absolute_path else _missing(error)
            for name in names or [""]:
                problems.setdefault(name, _message(error, is_missing=not error.absolute_path))
    except (SchemaError, LookupError, RecursionError) as exc:
        problems[""] = f"the form itself is invalid: {exc}"[:_MESSAGE_LENGTH]
    return problems


def _checker(kind: type) -> Any:
    def fits(value: object) -> bool:
        if not isinstance(value, str):
            return True  # the type is checked apart
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
