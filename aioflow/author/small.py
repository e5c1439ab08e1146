"""Encodes small values in a single step; nearly all values are small.

Values with long text, many items or many levels are left to ``packing``, and so are values that
need user code. The limits keep the result below 1 MiB, also if one object occurs many times.
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
"""Maximum nesting of containers."""

_ROOM = 1024
"""Maximum number of items in all containers together, counting repeated objects each time."""

_SHORT = 64
"""Text and bytes up to this length count as one item, longer ones once more per this length."""

_TEXT = 64 * 1024
"""Maximum length of text outside of containers."""

_DIGITS = 1024

Room: TypeAlias = list[int]
"""The remaining number of items, in a list of one element."""


def packed_small(value: object, levels: int = SMALL_LEVELS) -> bytes | None:
    """Return a value as msgpack; ``None`` if it is not small, or cannot be serialized.

    Args:
        value: The value to encode.
        levels: The maximum nesting of containers.
    """
    kind = type(value)
    try:
        if kind is int or (kind is str and len(value) <= _TEXT):  # type: ignore[arg-type]  # a str
            return _encoder.encode(value)
        return _encoder.encode(_packed(value, levels, [_ROOM]))
    except (_NotSmall, Misfit, UnicodeEncodeError, OverflowError):
        return None


def packed_small_fields(named: Mapping[str, object]) -> bytes | None:
    """Return named values as one map; ``None`` if they are not small or not serializable."""
    return packed_small(named) if type(named) is dict else None


class _NotSmall(Exception):
    """The value exceeds a limit, or needs the full encoder."""


def _packed(value: Any, levels: int, room: Room) -> Any:
    """Return the msgpack form of a value that has at most ``levels`` of nesting."""
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
    """Pack a value whose class is not built in."""
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
"""Field names of classes that are dataclasses and nothing else, such as a container."""

_AUTHORS_CONTAINERS = (Mapping, list, tuple, AbstractSet, Sequence)
_encoder = msgspec.msgpack.Encoder()

_PACKERS: dict[type, Callable[[Any, int, Room], Any]] = {
    str: _text,
    bytes: _text,
    int: lambda value, levels, room: value,  # the encoder refuses one that is too large
    float: lambda value, levels, room: checked_float(value),
    list: _items,
    dict: _map,
    tuple: _nested(Tag.TUPLE),
    set: _nested(Tag.SET),
    frozenset: _nested(Tag.FROZENSET),
    **{cls: _as_extension(tag, data) for cls, tag, data in EXTENSIONS},
}
