"""What may travel between processes: values as msgpack, and back.

JSON types and bytes are plain msgpack. What msgpack does not have is an extension with a tag of
ours, so that it comes back as what it was even where nothing says what is expected. Dataclasses,
structs and enums travel as plain maps and values: only an annotation turns them into objects
again (``restoring``). Nothing is ever imported by name while decoding.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec.msgpack import Ext

from aioflow.author.registered import Codec, codec_of
from aioflow.author.restoring import restore
from aioflow.errors import Unserializable

__all__ = ("DEPTH_LIMIT", "decode", "decode_fields", "encode", "encode_fields")

DEPTH_LIMIT = 64
"""Containers inside each other. Deeper data is a mistake, or an attack on whoever reads it."""

ITEM_LIMIT = 64 * 1024 * 1024
"""Items of one sequence. More cannot fit into a result anyway."""


class Tag:
    """Codes of the extensions. Stored for good: never change one, never use one again."""

    INT = 1
    DATE = 2
    DATETIME = 3
    TIME = 4
    TIMEDELTA = 5
    DECIMAL = 6
    UUID = 7
    PATH = 8
    TUPLE = 9
    SET = 10
    FROZENSET = 11
    MAP = 12


_INT_LOW, _INT_HIGH = -(1 << 63), (1 << 64) - 1
_encoder = msgspec.msgpack.Encoder()
_CONTAINERS = frozenset({list, dict, tuple, set, frozenset})
_Packed: TypeAlias = Any  # what msgspec encodes without further help


def encode(value: object, where: str) -> bytes:
    """Return a value as msgpack.

    Args:
        value: What is to travel.
        where: Names it in the error, such as ``the result of 'settle'``.

    Raises:
        Unserializable: If it, or something inside it, cannot travel; the error names the place.
    """
    return _encoder.encode(_pack(value, where, ()))


def encode_fields(fields: Mapping[str, object], owner: str) -> bytes:
    """Return named values as one msgpack map; errors name them ``owner.field``."""
    return _encoder.encode(
        {name: _pack(value, f"{owner}.{name}", ()) for name, value in fields.items()}
    )


def decode(data: bytes | memoryview, annotation: Any = Any, where: str = "the value") -> Any:
    """Return what ``encode`` was given, as its annotation says.

    Without an annotation dataclasses and structs are dicts and enums are their values;
    everything else is what it was.

    Raises:
        Unserializable: If ``data`` is damaged, or cannot become what the annotation says.
    """
    try:
        value = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as exc:
        raise Unserializable(where, "damaged value", str(exc)) from exc
    return restore(value, annotation, where)


def decode_fields(data: bytes, annotations: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Return what ``encode_fields`` was given, each value by its annotation."""
    fields = decode(data, where=owner)
    if not isinstance(fields, dict):
        raise Unserializable(owner, type(fields).__name__, "a map of fields was expected")
    for name, annotation in annotations.items():
        value = fields.get(name)
        # Nothing is what it is, whatever was annotated; most fields of most triggers are that.
        if value is not None:
            fields[name] = restore(value, annotation, f"{owner}.{name}")
    return fields


# ── there ───────────────────────────────────────────────────────────────────────────────


def _pack(value: Any, where: str, above: tuple[int, ...]) -> _Packed:
    """Return ``value`` in terms of msgpack; ``above`` are the containers it stands in."""
    if value is None or value is True or value is False:
        return value
    pack = _PACKERS.get(type(value))
    if pack is not None:
        return pack(value, where)
    codec = None if type(value) in _CONTAINERS else codec_of(type(value))
    if codec is not None:
        return _pack_registered(value, codec, where, above)
    if isinstance(value, Enum):
        return _pack(value.value, where, above)
    if isinstance(value, str | int | float | bytes | datetime | date | PurePath | Decimal):
        return _by_base(value, where)
    if id(value) in above:
        raise Unserializable(where, type(value).__name__, "it contains itself")
    if len(above) >= DEPTH_LIMIT:
        raise Unserializable(where, type(value).__name__, f"nested deeper than {DEPTH_LIMIT}")
    return _pack_container(value, where, (*above, id(value)))


def _pack_registered(value: Any, codec: Codec[Any], where: str, above: tuple[int, ...]) -> _Packed:
    """Return what a codec of the author makes of a value; it may hold others that have one."""
    if id(value) in above or len(above) >= DEPTH_LIMIT:
        raise Unserializable(where, type(value).__qualname__, "its codec does not come to an end")
    try:
        plain = codec.encode(value)
    except Exception as exc:
        why = f"its codec raised {type(exc).__name__}: {exc}"
        raise Unserializable(where, type(value).__qualname__, why) from exc
    return _pack(plain, where, (*above, id(value)))


def _pack_container(value: Any, where: str, above: tuple[int, ...]) -> _Packed:
    if isinstance(value, Mapping):
        return _pack_map(value, where, above)
    if isinstance(value, list):
        return _pack_items(value, where, above)
    if isinstance(value, tuple):
        return _nested(Tag.TUPLE, _pack_items(value, where, above))
    if isinstance(value, AbstractSet):
        tag = Tag.FROZENSET if isinstance(value, frozenset) else Tag.SET
        return _nested(tag, _pack_items(list(value), where, above))
    if isinstance(value, Sequence):
        return _pack_items(value, where, above)
    names = _field_names(value)
    if names is None:
        is_builtin = type(value).__module__ == "builtins"
        why = "" if is_builtin else "register_codec() can have its class travel"
        raise Unserializable(where, type(value).__qualname__, why)
    return {name: _pack(getattr(value, name), f"{where}.{name}", above) for name in names}


def _field_names(value: object) -> tuple[str, ...] | None:
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return None


def _pack_items(items: Sequence[Any], where: str, above: tuple[int, ...]) -> list[_Packed]:
    if len(items) > ITEM_LIMIT:
        raise Unserializable(where, type(items).__name__, f"{len(items)} items")
    return [_pack(item, f"{where}[{index}]", above) for index, item in enumerate(items)]


def _pack_map(value: Mapping[Any, Any], where: str, above: tuple[int, ...]) -> _Packed:
    if all(type(key) is str for key in value):
        return {
            _pack_text(key, where): _pack(item, f"{where}[{key!r}]", above)
            for key, item in value.items()
        }
    pairs = [
        (
            _pack(key, f"a key of {where}", above),
            _pack(item, f"{where}[a {type(key).__name__}]", above),
        )
        for key, item in value.items()
    ]
    return _nested(Tag.MAP, pairs)


def _nested(tag: int, items: Sequence[_Packed]) -> Ext:
    return Ext(tag, _encoder.encode(items))


def _pack_text(value: str, where: str) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise Unserializable(where, "str", f"a lone surrogate at {exc.start}") from exc
    return value


def _pack_int(value: int, where: str) -> int | Ext:
    if _INT_LOW <= value <= _INT_HIGH:
        return value
    return Ext(Tag.INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _pack_float(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise Unserializable(where, "float", f"{value} is no number")
    return value


def _pack_decimal(value: Decimal, where: str) -> Ext:
    if not value.is_finite():
        raise Unserializable(where, "Decimal", f"{value} is no number")
    return Ext(Tag.DECIMAL, str(value).encode())


def _pack_datetime(value: datetime, where: str) -> Ext:
    """Keep the time on the wall, its zone by name if it has one, and which of two it is."""
    zone = getattr(value.tzinfo, "key", None)
    if isinstance(value.tzinfo, ZoneInfo) and zone is not None:
        wall = datetime.isoformat(value.replace(tzinfo=None))
        return Ext(Tag.DATETIME, f"{wall};{value.fold};{zone}".encode())
    return Ext(Tag.DATETIME, f"{datetime.isoformat(value)};{value.fold};".encode())


def _pack_time(value: time, where: str) -> Ext:
    if value.tzinfo is not None and not isinstance(value.tzinfo, timezone):
        raise Unserializable(where, "time with a zone", "its offset depends on the day")
    return Ext(Tag.TIME, f"{value.isoformat()};{value.fold}".encode())


def _pack_timedelta(value: timedelta, where: str) -> Ext:
    return _nested(Tag.TIMEDELTA, (value.days, value.seconds, value.microseconds))


def _by_base(value: object, where: str) -> _Packed:
    """Pack an instance of a derived class, such as a str of a template library, as its base."""
    if isinstance(value, str):
        return _pack_text(str.__str__(value), where)
    if isinstance(value, int):
        return _pack_int(int(value), where)
    if isinstance(value, float):
        return _pack_float(float(value), where)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, datetime):
        return _pack_datetime(value, where)
    if isinstance(value, date):
        return Ext(Tag.DATE, date.isoformat(value).encode())
    if isinstance(value, Decimal):
        return _pack_decimal(value, where)
    return Ext(Tag.PATH, os.fsencode(str(value)))


_PACKERS: dict[type, Callable[[Any, str], _Packed]] = {
    str: _pack_text,
    int: _pack_int,
    float: _pack_float,
    bytes: lambda value, where: value,
    bytearray: lambda value, where: bytes(value),
    memoryview: lambda value, where: bytes(value),
    date: lambda value, where: Ext(Tag.DATE, value.isoformat().encode()),
    datetime: _pack_datetime,
    time: _pack_time,
    timedelta: _pack_timedelta,
    Decimal: _pack_decimal,
    UUID: lambda value, where: Ext(Tag.UUID, value.bytes),
}


# ── and back ────────────────────────────────────────────────────────────────────────────


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
        return items  # of dataclasses, which are maps until an annotation makes them again


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
