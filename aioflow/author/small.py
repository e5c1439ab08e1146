"""Small values, packed in one go: nearly all values are.

Nothing here counts, since nothing here can become large: a value with long text, many items or
many levels is left to ``packing``, and so is one that an author's code has to be asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from aioflow.author.registered import codec_of
from aioflow.author.scalars import (
    BASES,
    EXTENSIONS,
    Misfit,
    Tag,
    based,
    checked_float,
    has_more_digits,
)

__all__ = ("packed_small", "packed_small_fields")

_LEVELS = 3
_ITEMS = 32
_LENGTH = 1024
"""Of text and bytes."""


def packed_small(value: object, levels: int = _LEVELS) -> bytes | None:
    """Return a value as msgpack; ``None`` if it is not small, or nothing that can travel.

    Args:
        levels: Containers inside each other that are still small.
    """
    try:
        return _encoder.encode(_packed(value, levels))
    except (_NotSmall, Misfit, UnicodeEncodeError, OverflowError):
        return None


def packed_small_fields(named: Mapping[str, object]) -> bytes | None:
    """Return named values as one map; ``None`` if one is not small, or cannot travel."""
    try:
        return _encoder.encode({name: _packed(item, _LEVELS) for name, item in named.items()})
    except (_NotSmall, Misfit, UnicodeEncodeError, OverflowError):
        return None


class _NotSmall(Exception):
    """It takes more than is done here."""


def _packed(value: Any, levels: int) -> Any:
    """Return a value in terms of msgpack; at most so many levels are inside it."""
    if value is None or value is True or value is False:
        return value
    pack = _PACKERS.get(type(value))
    return _derived(value, levels) if pack is None else pack(value, levels)


def _items(items: Any, levels: int) -> list[Any]:
    if not levels or len(items) > _ITEMS:
        raise _NotSmall
    return [_packed(item, levels - 1) for item in items]


def _map(value: dict[Any, Any], levels: int) -> dict[str, Any]:
    if not levels or len(value) > _ITEMS:
        raise _NotSmall
    packed = {}
    for key, item in value.items():
        if type(key) is not str or len(key) > _LENGTH:
            raise _NotSmall
        packed[key] = _packed(item, levels - 1)
    return packed


def _text(value: Any, levels: int) -> Any:
    if len(value) > _LENGTH:
        raise _NotSmall
    return value


def _derived(value: Any, levels: int) -> Any:
    """Pack what is not of a class that Python brings along."""
    kind = type(value)
    if codec_of(kind) is not None:
        raise _NotSmall
    if isinstance(value, Enum):
        if isinstance(value.value, Enum):
            raise _NotSmall
        return _packed(value.value, levels)
    if isinstance(value, BASES):
        return _of_base(value, levels)
    if not is_dataclass(kind) or isinstance(value, _AUTHORS_CONTAINERS):
        raise _NotSmall
    names = fields(kind)
    if not levels or len(names) > _ITEMS:
        raise _NotSmall
    return {field.name: _packed(getattr(value, field.name), levels - 1) for field in names}


def _of_base(value: Any, levels: int) -> Any:
    plain = based(value)
    if plain is not value:
        return _packed(plain, levels)
    for base, tag, data in EXTENSIONS:
        if isinstance(value, base):
            return _extension(value, tag, data)
    raise _NotSmall


def _extension(value: Any, tag: int, data: Callable[[Any], bytes]) -> Ext:
    if tag == Tag.DECIMAL and has_more_digits(value, _LENGTH):
        raise _NotSmall
    return Ext(tag, data(value))


def _as_extension(tag: int, data: Callable[[Any], bytes]) -> Callable[[Any, int], Ext]:
    return lambda value, levels: _extension(value, tag, data)


def _nested(tag: int) -> Callable[[Any, int], Ext]:
    return lambda value, levels: Ext(tag, _encoder.encode(_items(value, levels)))


_AUTHORS_CONTAINERS = (Mapping, list, tuple, AbstractSet, Sequence)
_encoder = msgspec.msgpack.Encoder()

_PACKERS: dict[type, Callable[[Any, int], Any]] = {
    str: _text,
    bytes: _text,
    int: lambda value, levels: value,  # a large one is refused by the encoder
    float: lambda value, levels: checked_float(value),
    list: _items,
    dict: _map,
    tuple: _nested(Tag.TUPLE),
    set: _nested(Tag.SET),
    frozenset: _nested(Tag.FROZENSET),
    **{cls: _as_extension(tag, data) for cls, tag, data in EXTENSIONS},
}
