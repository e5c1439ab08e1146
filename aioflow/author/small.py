"""Small values, packed in one go: nearly all values are.

A value with long text, many items or many levels is left to ``packing``, and so is one that an
author's code has to be asked about. What passes takes less than a mebibyte, however often one item
stands in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
from msgspec.msgpack import Ext

from aioflow.author.custom_codecs import codec_of
from aioflow.author.scalars import (
    BASES,
    EXTENSIONS,
    Misfit,
    Tag,
    based,
    checked_float,
    has_more_digits,
)

__all__ = ("SMALL_LEVELS", "packed_small", "packed_small_fields")

SMALL_LEVELS = 8
"""Containers inside each other."""

_ROOM = 1024
"""Items of all containers together, those in which one item stands many times included."""

_SHORT = 64
"""Text and bytes up to this length are one item; what is longer takes room for each of these."""

_TEXT = 64 * 1024
"""Length of text that is alone."""

_DIGITS = 1024

Room: TypeAlias = list[int]
"""What is left of the room: one number."""


def packed_small(value: object, levels: int = SMALL_LEVELS) -> bytes | None:
    """Return a value as msgpack; ``None`` if it is not small, or nothing that can travel.

    Args:
        value: What is to travel.
        levels: Containers inside each other that are still small.
    """
    kind = type(value)
    try:
        if kind is int or (kind is str and len(value) <= _TEXT):  # type: ignore[arg-type]  # a str
            return _encoder.encode(value)
        return _encoder.encode(_packed(value, levels, [_ROOM]))
    except (_NotSmall, Misfit, UnicodeEncodeError, OverflowError):
        return None


def packed_small_fields(named: Mapping[str, object]) -> bytes | None:
    """Return named values as one map; ``None`` if they are not small, or one cannot travel."""
    return packed_small(named) if type(named) is dict else None


class _NotSmall(Exception):
    """It takes more than is done here."""


def _packed(value: Any, levels: int, room: Room) -> Any:
    """Return a value in terms of msgpack; at most so many levels are inside it."""
    if value is None or value is True or value is False:
        return value
    pack = _PACKERS.get(type(value))
    return _derived(value, levels, room) if pack is None else pack(value, levels, room)


def _spend(room: Room, count: int) -> None:
    room[0] -= count
    if room[0] < 0:
        raise _NotSmall


def _items(items: Any, levels: int, room: Room) -> list[Any]:
    room[0] -= len(items)
    if not levels or room[0] < 0:
        raise _NotSmall
    levels -= 1
    return [_packed(item, levels, room) for item in items]


def _map(value: dict[Any, Any], levels: int, room: Room) -> dict[str, Any]:
    room[0] -= len(value)
    if not levels or room[0] < 0:
        raise _NotSmall
    levels -= 1
    packed = {}
    for key, item in value.items():
        if type(key) is not str:
            raise _NotSmall
        if len(key) > _SHORT:
            _spend(room, len(key) // _SHORT)
        packed[key] = _packed(item, levels, room)
    return packed


def _text(value: Any, levels: int, room: Room) -> Any:
    if len(value) > _SHORT:
        _spend(room, len(value) // _SHORT)
    return value


def _derived(value: Any, levels: int, room: Room) -> Any:
    """Pack what is not of a class that Python brings along."""
    kind = type(value)
    if codec_of(kind) is not None:
        raise _NotSmall
    names = _names.get(kind)
    if names is not None:
        return _map({name: getattr(value, name) for name in names}, levels, room)
    if isinstance(value, Enum):
        if isinstance(value.value, Enum):
            raise _NotSmall
        return _packed(value.value, levels, room)
    if isinstance(value, BASES):
        return _of_base(value, levels, room)
    if not is_dataclass(kind) or isinstance(value, _AUTHORS_CONTAINERS):
        raise _NotSmall
    names = tuple(field.name for field in fields(kind))
    if len(names) > _ROOM:
        raise _NotSmall
    _names[kind] = names
    return _derived(value, levels, room)


def _of_base(value: Any, levels: int, room: Room) -> Any:
    plain = based(value)
    if plain is not value:
        return _packed(plain, levels, room)
    for base, tag, data in EXTENSIONS:
        if isinstance(value, base):
            return _extension(value, tag, data, room)
    raise _NotSmall


def _extension(value: Any, tag: int, data: Callable[[Any], bytes], room: Room) -> Ext:
    if tag == Tag.DECIMAL and has_more_digits(value, _DIGITS):
        raise _NotSmall
    packed = data(value)
    if len(packed) > _SHORT:
        _spend(room, len(packed) // _SHORT)
    return Ext(tag, packed)


def _as_extension(tag: int, data: Callable[[Any], bytes]) -> Callable[[Any, int, Room], Ext]:
    return lambda value, levels, room: _extension(value, tag, data, room)


def _nested(tag: int) -> Callable[[Any, int, Room], Ext]:
    return lambda value, levels, room: Ext(tag, _encoder.encode(_items(value, levels, room)))


_names: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()
"""Fields of dataclasses that are nothing else besides."""

_AUTHORS_CONTAINERS = (Mapping, list, tuple, AbstractSet, Sequence)
_encoder = msgspec.msgpack.Encoder()

_PACKERS: dict[type, Callable[[Any, int, Room], Any]] = {
    str: _text,
    bytes: _text,
    int: lambda value, levels, room: value,  # a large one is refused by the encoder
    float: lambda value, levels, room: checked_float(value),
    list: _items,
    dict: _map,
    tuple: _nested(Tag.TUPLE),
    set: _nested(Tag.SET),
    frozenset: _nested(Tag.FROZENSET),
    **{cls: _as_extension(tag, data) for cls, tag, data in EXTENSIONS},
}
