"""Serializes values as msgpack, to store them and to pass them between processes.

JSON types and bytes are plain msgpack. Other types have a msgpack extension with a tag of
aioflow's, so that they are restored even where no annotation is known. Dataclasses, structs and
enums are stored as plain maps and values: only an annotation turns them into objects again
(``restoring``). Decoding never imports anything by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from aioflow.author.decode import restore
from aioflow.author.packing import DEPTH_LIMIT, Packing
from aioflow.author.scalars import Tag
from aioflow.author.small import packed_small, packed_small_fields
from aioflow.author.steps import Steps, at_once
from aioflow.errors import Unserializable

__all__ = (
    "DEPTH_LIMIT",
    "VALUE_LIMIT",
    "at_most",
    "decode",
    "decode_fields",
    "encode",
    "encode_fields",
    "fields_in_steps",
    "in_steps",
)

VALUE_LIMIT = 64 * 1024 * 1024
"""Maximum size of any value, in bytes of msgpack; most places have a lower limit."""


def encode(value: object, where: str, limit: int = VALUE_LIMIT) -> bytes:
    """Return a value as msgpack.

    Args:
        value: The value to serialize.
        where: Names the value in errors, such as ``the result of 'settle'``.
        limit: Maximum size in bytes.

    Raises:
        ValueTooLarge: If the encoded value is larger than the limit.
        Unserializable: If the value, or something inside it, cannot be serialized; the error says
            where it is.
    """
    body = packed_small(value)
    if body is None or len(body) > limit:
        body = at_once(_packed(Packing(value, where, limit)))
    return body


def encode_fields(fields: Mapping[str, object], owner: str, limit: int = VALUE_LIMIT) -> bytes:
    """Return named values as one msgpack map; errors name them ``owner.field``."""
    body = packed_small_fields(fields)
    if body is None or len(body) > limit:
        body = at_once(_packed(Packing(fields, owner, limit, is_fields=True)))
    return body


def at_most(value: object, limit: int) -> bytes | None:
    """Return a small value as msgpack; ``None`` if it needs ``encode`` or ``in_steps``."""
    body = packed_small(value)
    return None if body is None or len(body) > limit else body


def in_steps(value: object, where: str, limit: int) -> Steps[bytes]:
    """Encode like ``encode``, in steps that do not block the event loop for long."""
    body = packed_small(value)
    if body is None or len(body) > limit:
        body = yield from _packed(Packing(value, where, limit))
    return body


def fields_in_steps(fields: Mapping[str, object], owner: str, limit: int) -> Steps[bytes]:
    """Encode like ``encode_fields``, in steps that do not block the event loop for long."""
    body = packed_small_fields(fields)
    if body is None or len(body) > limit:
        body = yield from _packed(Packing(fields, owner, limit, is_fields=True))
    return body


def _packed(packing: Packing) -> Steps[bytes]:
    while not packing.run():
        yield
    return packing.body


def decode(data: bytes | memoryview, annotation: Any = Any, where: str = "the value") -> Any:
    """Decode a value that ``encode`` returned, converting it to its annotation.

    Without an annotation, dataclasses and structs become dicts and enums become their values; all
    other types are restored.

    Raises:
        Unserializable: If ``data`` is damaged, or cannot be converted to the annotation.
    """
    try:
        value = _decoder.decode(data)
    except Exception as exc:
        reason = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
        raise Unserializable(where, "damaged value", reason) from exc
    return restore(value, annotation, where)


def decode_fields(data: bytes, annotations: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Decode a map that ``encode_fields`` returned, converting each value to its annotation."""
    fields = decode(data, where=owner)
    if not isinstance(fields, dict):
        raise Unserializable(owner, type(fields).__name__, "a map of fields was expected")
    for name, annotation in annotations.items():
        value = fields.get(name)
        # None needs no conversion, whatever its annotation; most fields of most triggers are None.
        if value is not None:
            fields[name] = restore(value, annotation, f"{owner}.{name}")
    return fields


# ── decoding ────────────────────────────────────────────────────────────────────────────


def _unpack(code: int, data: memoryview) -> Any:
    unpack = _UNPACKERS.get(code)
    if unpack is None:
        raise ValueError(f"extension {code} is unknown to this version of aioflow")
    return unpack(bytes(data))


def _unpack_datetime(data: bytes) -> datetime:
    wall, fold, zone = data.decode().split(";")
    value = datetime.fromisoformat(wall)
    if fold != "0":
        value = value.replace(fold=int(fold))
    if not zone:
        return value
    try:
        return value.replace(tzinfo=ZoneInfo(zone))
    except ZoneInfoNotFoundError as exc:
        raise ValueError(f"time zone {zone!r} is unknown on this machine") from exc


def _unpack_time(data: bytes) -> time:
    wall, _, fold = data.decode().partition(";")
    return time.fromisoformat(wall).replace(fold=int(fold))


def _items(data: bytes) -> list[Any]:
    items: list[Any] = _list_decoder.decode(data)
    return items


def _hashed(make: Callable[[list[Any]], Any], items: list[Any]) -> Any:
    try:
        return make(items)
    except TypeError:
        return items  # items are dataclasses: dicts until an annotation restores them


_UNPACKERS: dict[int, Callable[[bytes], Any]] = {
    Tag.INT: lambda data: int.from_bytes(data, "big", signed=True),
    Tag.DATE: lambda data: date.fromisoformat(data.decode()),
    Tag.DATETIME: _unpack_datetime,
    Tag.TIME: _unpack_time,
    Tag.TIMEDELTA: lambda data: timedelta(*_items(data)),
    Tag.DECIMAL: lambda data: Decimal(data.decode()),
    Tag.UUID: lambda data: UUID(bytes=data),
    Tag.PATH: lambda data: Path(os.fsdecode(data)),
    Tag.TUPLE: lambda data: tuple(_items(data)),
    Tag.SET: lambda data: _hashed(set, _items(data)),
    Tag.FROZENSET: lambda data: _hashed(frozenset, _items(data)),
    Tag.MAP: lambda data: _hashed(dict, [tuple(pair) for pair in _items(data)]),
}

_decoder = msgspec.msgpack.Decoder(ext_hook=_unpack)
_list_decoder = msgspec.msgpack.Decoder(list[Any], ext_hook=_unpack)
