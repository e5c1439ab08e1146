"""Secrets, connections and variables in a child process, which masks them in error reports."""

from __future__ import annotations

from copy import copy
from typing import Any

import msgspec

from aioflow.author import codec
from aioflow.author.client import Connection, NamedValues
from aioflow.author.trigger import Trigger, class_path
from aioflow.model.dag import ValueKind
from aioflow.model.decisions import PERSON
from aioflow.redaction import Masks, secret_texts
from aioflow.worker.query.messages import ValuesFound, ValuesWanted

__all__ = (
    "decoded",
    "encoded_query",
    "hidden",
    "masks",
    "values_by_name",
    "without_secrets",
)

masks = Masks()
"""Masks of this process. Each value is masked in all failures reported after it was received."""


def encoded_query(task_index: int, names: tuple[tuple[ValueKind, str], ...]) -> bytes:
    """Encode the query for the named values; see ``ValuesWanted``."""
    return msgspec.msgpack.encode(ValuesWanted(task_index, names))


def decoded(names: tuple[tuple[ValueKind, str], ...], answer: bytes) -> NamedValues:
    """Decode the daemon's reply into values by kind and name, and mask them from now on."""
    return values_by_name(names, msgspec.msgpack.decode(answer, type=ValuesFound).values)


def values_by_name(
    names: tuple[tuple[ValueKind, str], ...], found: tuple[bytes, ...]
) -> NamedValues:
    """Return the received values by kind and name, and mask them from now on."""
    held = {of: _restored(of[0], body) for of, body in zip(names, found, strict=True)}
    for (kind, name), body in zip(names, found, strict=True):
        masks.hide(secret_texts(kind, name, msgspec.msgpack.decode(body)))
    return held


def hidden(value: Any) -> Any:
    """Return a value. If it is a string, mask the secrets in it."""
    return masks.masked_text(value) if isinstance(value, str) else value


def without_secrets(trigger: Trigger[Any]) -> Trigger[Any]:
    """Return a trigger.

    If it asks for a human decision, mask the secrets in the texts to be shown.
    """
    if class_path(type(trigger)) != PERSON:
        return trigger
    shown: Any = copy(trigger)
    shown.question, shown.details = hidden(shown.question), hidden(shown.details)
    asked: Trigger[Any] = shown
    return asked


def _restored(kind: ValueKind, body: bytes) -> Any:
    if kind is ValueKind.CONNECTION:
        return msgspec.convert(codec.decode(body), Connection)
    return codec.decode(body)
