"""The msgpack forms of values: scalars, small values, containers in progress, custom codecs.

Nearly all values are small, and are encoded in a single step. ``codec`` encodes all others: values
with long text, many items or many levels, and values that need user code. The limits keep the
result of a single step below 1 MiB, even if one object occurs many times.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Rounded
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo

import msgspec
from msgspec.msgpack import Ext

from aioflow.author.source_location import dag_error

__all__ = (
    "BASES",
    "EXTENSIONS",
    "INT_HIGH",
    "INT_LOW",
    "LOOSE_LIMIT",
    "NO_KEY",
    "SMALL_LEVELS",
    "Codec",
    "Frame",
    "ItemName",
    "KeyScanFrame",
    "MapPair",
    "Misfit",
    "Packed",
    "Tag",
    "TextFrame",
    "ValueFrame",
    "based",
    "by_field",
    "by_index",
    "by_key",
    "checked_float",
    "codec_for",
    "codec_of",
    "error_path",
    "has_more_digits",
    "packed_int",
    "packed_small",
    "packed_small_fields",
    "register_codec",
    "unnamed",
)

INT_LOW, INT_HIGH = -(1 << 63), (1 << 64) - 1
"""The range of integers in msgpack."""

BASES = (str, int, float, bytes, datetime, date, PurePath, Decimal)
"""Base types. An instance of a subclass, such as a template library's str, is encoded as its base.
"""

_DIGITS_PER_BYTE = 3  # a Decimal stores 19 digits in 8 bytes
_encoder = msgspec.msgpack.Encoder()


class Misfit(Exception):
    """Raised if a value cannot be serialized. The caller adds the location of the value.

    Attributes:
        value_type: The name of its type.
        why: The reason.
    """

    def __init__(self, value_type: str, why: str) -> None:
        super().__init__(value_type, why)
        self.value_type = value_type
        self.why = why


class Tag:
    """Codes of the msgpack extensions. They are stored: never change or reuse one."""

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


def checked_float(value: float) -> float:
    """Return a finite number.

    Raises:
        Misfit: If it is infinite or NaN.
    """
    if not math.isfinite(value):
        raise Misfit("float", f"{value} is not a number")
    return value


def packed_int(value: int) -> int | Ext:
    """Return an integer, as an extension if it is out of the range of msgpack."""
    if INT_LOW <= value <= INT_HIGH:
        return value
    return Ext(Tag.INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def has_more_digits(value: Decimal, count: int) -> bool:
    """Return whether a finite number has more than ``count`` characters, without formatting it."""
    if _DIGITS_PER_BYTE * Decimal.__sizeof__(value) <= count:
        return False
    context = Context(prec=max(1, min(count, MAX_PREC)), Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
    context.plus(value)
    return bool(context.flags[Rounded])


def based(value: Any) -> Any:
    """Return the value, converted to the base type if its class derives from text or a number."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return value


def _encode_decimal(value: Decimal) -> bytes:
    if not value.is_finite():
        raise Misfit("Decimal", f"{Decimal.__format__(value, '')[:20]} is not a number")
    return Decimal.__str__(value).encode()


def _encode_datetime(value: datetime) -> bytes:
    """Encode the local time, the name of its zone, if any, and the ``fold``."""
    zone = getattr(value.tzinfo, "key", None)
    if isinstance(value.tzinfo, ZoneInfo) and zone is not None:
        wall = datetime.isoformat(value.replace(tzinfo=None))
        return f"{wall};{value.fold};{zone}".encode()
    return f"{datetime.isoformat(value)};{value.fold};".encode()


def _encode_time(value: time) -> bytes:
    if value.tzinfo is not None and not isinstance(value.tzinfo, timezone):
        raise Misfit("time with a zone", "its offset depends on the day")
    return f"{value.isoformat()};{value.fold}".encode()


EXTENSIONS: tuple[tuple[type, int, Callable[[Any], bytes]], ...] = (
    (datetime, Tag.DATETIME, _encode_datetime),
    (date, Tag.DATE, lambda value: date.isoformat(value).encode()),
    (time, Tag.TIME, _encode_time),
    (
        timedelta,
        Tag.TIMEDELTA,
        lambda value: _encoder.encode((value.days, value.seconds, value.microseconds)),
    ),
    (Decimal, Tag.DECIMAL, _encode_decimal),
    (UUID, Tag.UUID, lambda value: value.bytes),
    (PurePath, Tag.PATH, lambda value: os.fsencode(str(value))),
)
"""Classes, their codes, and their encoders; a subclass comes before its base class."""


LOOSE_LIMIT = 256
"""Maximum number of packed objects that are not yet encoded. Encoded, they need far less memory."""

NO_KEY: Final = object()
"""A marker for the current key of a map, set while the key itself is being packed."""

_TEXT_32: Final = b"\xdb"
_KEY_LENGTH = 60
"""Maximum characters of a key in an error."""

_OF_KEY: Final = "a key of"

Packed: TypeAlias = Any  # anything that msgspec encodes without a hook
ItemName: TypeAlias = Callable[[Any], str]


class Frame:
    """A container whose items are being packed.

    Attributes:
        value: The container. It is compared with those of other frames to detect a container that
            contains itself.
        items: Iterator over the remaining items; for a map, keys and values.
        out: Items that are packed but not yet encoded.
        named: Returns the name of an item in a path, from its key or index.
        depth: The nesting depth, including this container.
        left: How many bytes of the limit for the whole value were left when this container was
            begun.
        tag: The tag of the extension; 0 for a plain array or map.
        key: The key of the item being packed; ``None`` for items with an index.
        chunks: Encoded items, without a header.
        count: The number of items in ``chunks``.
        loose: The number of objects nested in the items of ``out``.
        largest: Size of the largest item and the path to it, if it is large enough to be named.
    """

    __slots__ = (
        *("chunks", "count", "depth", "items", "key", "largest", "left", "loose", "named", "out"),
        *("tag", "value"),
    )

    def __init__(
        self,
        value: Any,
        items: Iterator[Any],
        out: Any,
        named: ItemName,
        depth: int,
        left: int,
        tag: int = 0,
    ) -> None:
        self.value = value
        self.items = items
        self.out = out
        self.named = named
        self.depth = depth
        self.left = left
        self.tag = tag
        self.key: Any = None
        self.chunks: list[bytes] = []
        self.count = 0
        self.loose = 0
        self.largest: tuple[int, str] | None = None

    def name(self) -> str:
        """Return the path step of the item being packed."""
        return self.named(self.count + len(self.out) if self.key is None else self.key)

    def note(self, cost: int, path: str) -> None:
        """Remember an item if it is the largest so far."""
        if self.largest is None or cost > self.largest[0]:
            self.largest = (cost, path)

    def inside(self, cost: int) -> str:
        """Return the path to an item that makes up at least half of this cost; empty if none."""
        if self.largest is None or 2 * self.largest[0] < cost:
            return ""
        return self.largest[1]

    def flush(self) -> None:
        """Encode the packed items."""
        size = len(self.out)
        if not size:
            return
        self.chunks.append(_encoder.encode(self.out)[_header_size(size) :])
        self.count += size
        self.loose = 0
        self.out.clear()

    def add(self, chunks: list[bytes]) -> None:
        """Add an item that is already encoded, without copying its bytes."""
        self.flush()
        if isinstance(self.out, dict):
            self.chunks.append(_encoder.encode(self.key))
        self.chunks += chunks
        self.count += 1

    def encoded(self) -> list[bytes]:
        """Return the encoded container."""
        self.flush()
        chunks = [_header(self.count, is_map=isinstance(self.out, dict)), *self.chunks]
        if self.tag:
            chunks.insert(0, _extension_header(self.tag, sum(map(len, chunks))))
        return chunks

    def close(self) -> Packed:
        """Return the packed container, and set ``loose`` to the number of objects in it."""
        if self.tag:
            self.loose = 0
            return Ext(self.tag, _encoder.encode(self.out))
        self.loose += len(self.out)
        if self.loose < LOOSE_LIMIT:
            return self.out
        self.loose = 0
        return msgspec.Raw(_encoder.encode(self.out))


class ValueFrame(Frame):
    """A frame for one value: the output of a codec, or the root."""

    __slots__ = ()

    def flush(self) -> None:
        """Do nothing: the enclosing container takes the single value."""

    def add(self, chunks: list[bytes]) -> None:
        """Set the encoded value."""
        self.chunks = chunks

    def encoded(self) -> list[bytes]:
        """Return the encoded value."""
        return self.chunks or [_encoder.encode(self.out[0])]

    def close(self) -> Packed:
        """Return the packed value."""
        return self.out[0]


class KeyScanFrame(Frame):
    """Scans the keys of a map. If all of them are text, the map is encoded as a plain map."""

    __slots__ = ()


class TextFrame(Frame):
    """A long text, encoded in parts."""

    __slots__ = ()

    def encoded(self) -> list[bytes]:
        """Return the encoded text."""
        size = sum(map(len, self.chunks))
        return [_TEXT_32 + size.to_bytes(4, "big"), *self.chunks]


class MapPair:
    """A key that is not text, with its value."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Any, Any]) -> None:
        self.items = items

    def named(self, index: int) -> str:
        """Return the name of the key or the value in errors."""
        return f"[a {type(self.items[0]).__name__}]" if index else _OF_KEY


def error_path(where: str, steps: Iterable[str]) -> str:
    """Return the path of a value, for an error."""
    for step in steps:
        where = f"a key of {where}" if step == _OF_KEY else where + step
    return where


def unnamed(_: object) -> str:
    """Return an empty name: the frame holds a single value."""
    return ""


def by_index(index: object) -> str:
    """Return the name of a list item."""
    return f"[{index}]"


def by_field(name: object) -> str:
    """Return the name of a field."""
    return "" if name is NO_KEY else f".{_shortened(str(name))}"


def by_key(key: object) -> str:
    """Return the name of a map item."""
    return "" if key is NO_KEY else f"[{_shortened(repr(key))}]"


def _shortened(text: str) -> str:
    return text if len(text) <= _KEY_LENGTH else f"{text[:_KEY_LENGTH]}…"


def _extension_header(tag: int, size: int) -> bytes:
    """Return the header of a msgpack extension."""
    if size < 1 << 8:
        return bytes([0xC7, size, tag])
    if size < 1 << 16:
        return b"\xc8" + size.to_bytes(2, "big") + bytes([tag])
    return b"\xc9" + size.to_bytes(4, "big") + bytes([tag])


def _header_size(count: int) -> int:
    if count < 16:
        return 1
    return 3 if count < 1 << 16 else 5


def _header(count: int, *, is_map: bool) -> bytes:
    """Return the header of a msgpack array or map."""
    if count < 16:
        return bytes([(0x80 if is_map else 0x90) | count])
    if count < 1 << 16:
        return (b"\xde" if is_map else b"\xdc") + count.to_bytes(2, "big")
    return (b"\xdf" if is_map else b"\xdd") + count.to_bytes(4, "big")


T = TypeVar("T")

_SERIALIZABLE_CLASSES = (date, datetime, time, timedelta, Decimal, UUID, Path, PurePath)
_CODEC_ATTRIBUTE = "__aioflow_codec__"


class Codec(NamedTuple, Generic[T]):
    """Converts values of a class to plain data and back."""

    encode: Callable[[T], object]
    decode: Callable[[Any], T]


_foreign_codecs: dict[type, Codec[Any]] = {}
"""Codecs of classes that accept no new attributes. Other classes have the codec as an attribute."""


def register_codec(
    cls: type[T], *, encode: Callable[[T], object], decode: Callable[[Any], T]
) -> None:
    """Register how values of a class are serialized in results, triggers, events and conf.

    Call it once, at the top level of a module that is imported by every task with such values. If
    an annotation names the class, a value is restored to it. Without an annotation, the task
    receives the output of ``encode``.

    Args:
        cls: Any class that is not serializable already. The codec applies to its subclasses too.
        encode: Returns serializable data; called in the process that has the value.
        decode: Recreates the value from that data.

    Raises:
        DagError: If ``cls`` is not a class, or is serializable already.
    """
    given: object = cls
    if not isinstance(given, type) or cls.__module__ == "builtins" or cls in _SERIALIZABLE_CLASSES:
        raise dag_error(f"register_codec() takes a class of your own or of a library, not {cls!r}")
    codec = Codec(encode, decode)
    try:
        setattr(cls, _CODEC_ATTRIBUTE, codec)
    except TypeError:
        _foreign_codecs[cls] = codec


def codec_of(cls: type) -> Codec[Any] | None:
    """Return the codec of a class, or of its nearest base class that has one."""
    for one in cls.__mro__:
        found = codec_for(one)
        if found is not None:
            return found
    return None


def codec_for(cls: type) -> Codec[Any] | None:
    """Return the codec of exactly this class."""
    found: Codec[Any] | None = cls.__dict__.get(_CODEC_ATTRIBUTE)
    return _foreign_codecs.get(cls) if found is None and _foreign_codecs else found


SMALL_LEVELS = 8
"""Maximum nesting of containers in a small value."""

_SMALL_ITEMS = 1024
"""Maximum number of items in all containers of a small value. A repeated object counts each time
it occurs."""

_SHORT_TEXT = 64
"""Text and bytes count as one item, plus one for each multiple of this length."""

_SMALL_TEXT = 64 * 1024
"""Maximum length of a small value that is text."""

_SMALL_DIGITS = 1024

Budget: TypeAlias = list[int]
"""The remaining number of items, in a list of one element."""


def packed_small(value: object, levels: int = SMALL_LEVELS) -> bytes | None:
    """Return a value as msgpack; ``None`` if it is not small, or cannot be serialized.

    Args:
        value: The value to encode.
        levels: The maximum nesting of containers.
    """
    kind = type(value)
    try:
        if kind is int or (kind is str and len(value) <= _SMALL_TEXT):  # type: ignore[arg-type]  # a str
            return _encoder.encode(value)
        return _encoder.encode(_pack(value, levels, [_SMALL_ITEMS]))
    except (_NotSmall, Misfit, UnicodeEncodeError, OverflowError):
        return None


def packed_small_fields(named: Mapping[str, object]) -> bytes | None:
    """Return named values as one map; ``None`` if they are not small or not serializable."""
    return packed_small(named) if type(named) is dict else None


class _NotSmall(Exception):
    """Raised if a value exceeds a limit or needs the full encoder."""


def _pack(value: Any, levels: int, budget: Budget) -> Any:
    """Return the msgpack form of a value that has at most ``levels`` of nesting."""
    if value is None or value is True or value is False:
        return value
    pack = _PACKERS.get(type(value))
    return _pack_derived(value, levels, budget) if pack is None else pack(value, levels, budget)


def _spend(budget: Budget, count: int) -> None:
    budget[0] -= count
    if budget[0] < 0:
        raise _NotSmall


def _pack_items(items: Any, levels: int, budget: Budget) -> list[Any]:
    budget[0] -= len(items)
    if not levels or budget[0] < 0:
        raise _NotSmall
    levels -= 1
    return [_pack(item, levels, budget) for item in items]


def _pack_map(value: dict[Any, Any], levels: int, budget: Budget) -> dict[str, Any]:
    budget[0] -= len(value)
    if not levels or budget[0] < 0:
        raise _NotSmall
    levels -= 1
    packed = {}
    for key, item in value.items():
        if type(key) is not str:
            raise _NotSmall
        if len(key) > _SHORT_TEXT:
            _spend(budget, len(key) // _SHORT_TEXT)
        packed[key] = _pack(item, levels, budget)
    return packed


def _pack_text(value: Any, levels: int, budget: Budget) -> Any:
    if len(value) > _SHORT_TEXT:
        _spend(budget, len(value) // _SHORT_TEXT)
    return value


def _pack_derived(value: Any, levels: int, budget: Budget) -> Any:
    """Pack a value whose class is not in ``_PACKERS``, such as an enum or a dataclass."""
    kind = type(value)
    if codec_of(kind) is not None:
        raise _NotSmall
    names = _dataclass_fields.get(kind)
    if names is not None:
        return _pack_map({name: getattr(value, name) for name in names}, levels, budget)
    if isinstance(value, Enum):
        if isinstance(value.value, Enum):
            raise _NotSmall
        return _pack(value.value, levels, budget)
    if isinstance(value, BASES):
        return _pack_based(value, levels, budget)
    if not is_dataclass(kind) or isinstance(value, _AUTHORS_CONTAINERS):
        raise _NotSmall
    names = tuple(field.name for field in fields(kind))
    if len(names) > _SMALL_ITEMS:
        raise _NotSmall
    _dataclass_fields[kind] = names
    return _pack_derived(value, levels, budget)


def _pack_based(value: Any, levels: int, budget: Budget) -> Any:
    plain = based(value)
    if plain is not value:
        return _pack(plain, levels, budget)
    for base, tag, data in EXTENSIONS:
        if isinstance(value, base):
            return _pack_extension(value, tag, data, budget)
    raise _NotSmall


def _pack_extension(value: Any, tag: int, data: Callable[[Any], bytes], budget: Budget) -> Ext:
    if tag == Tag.DECIMAL and has_more_digits(value, _SMALL_DIGITS):
        raise _NotSmall
    packed = data(value)
    if len(packed) > _SHORT_TEXT:
        _spend(budget, len(packed) // _SHORT_TEXT)
    return Ext(tag, packed)


def _extension_packer(tag: int, data: Callable[[Any], bytes]) -> Callable[[Any, int, Budget], Ext]:
    return lambda value, levels, budget: _pack_extension(value, tag, data, budget)


def _nested_packer(tag: int) -> Callable[[Any, int, Budget], Ext]:
    return lambda value, levels, budget: Ext(
        tag, _encoder.encode(_pack_items(value, levels, budget))
    )


_dataclass_fields: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()
"""Field names by dataclass. A dataclass that is also a container, such as a list, is not included.
"""

_AUTHORS_CONTAINERS = (Mapping, list, tuple, AbstractSet, Sequence)

_PACKERS: dict[type, Callable[[Any, int, Budget], Any]] = {
    str: _pack_text,
    bytes: _pack_text,
    int: lambda value, levels, budget: value,  # the encoder refuses an int that is too large
    float: lambda value, levels, budget: checked_float(value),
    list: _pack_items,
    dict: _pack_map,
    tuple: _nested_packer(Tag.TUPLE),
    set: _nested_packer(Tag.SET),
    frozenset: _nested_packer(Tag.FROZENSET),
    **{cls: _extension_packer(tag, data) for cls, tag, data in EXTENSIONS},
}
