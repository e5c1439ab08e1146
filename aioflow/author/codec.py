"""Serialization of values as msgpack, for storage and for transfer between processes.

JSON types and bytes are plain msgpack. Other types have a msgpack extension with a tag that aioflow
defines, so that they are restored even if no annotation is known. Dataclasses, structs and enums
are stored as plain maps and values: only an annotation turns them into objects again (``decode``).
Decoding never imports anything by name.

Size and depth are measured while a value is packed. User code is not trusted: the length that an
object reports may be wrong, and an iteration may never end. Packed parts are stored as bytes, so
that a value in progress needs little more memory than its limit. Large values are packed in short
steps, between which a shared event loop can run other tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec.msgpack import Ext

from aioflow.author.decode import restore
from aioflow.author.msgpack_forms import (
    BASES,
    EXTENSIONS,
    INT_HIGH,
    INT_LOW,
    LOOSE_LIMIT,
    NO_KEY,
    SMALL_LEVELS,
    Frame,
    ItemName,
    KeyScanFrame,
    MapPair,
    Misfit,
    Packed,
    Tag,
    TextFrame,
    ValueFrame,
    based,
    by_field,
    by_index,
    by_key,
    checked_float,
    codec_of,
    error_path,
    has_more_digits,
    packed_int,
    packed_small,
    packed_small_fields,
    unnamed,
)
from aioflow.errors import Unserializable, ValueTooLarge

__all__ = (
    "DEPTH_LIMIT",
    "VALUE_LIMIT",
    "Packing",
    "Steps",
    "at_most",
    "decode",
    "decode_fields",
    "encode",
    "encode_fields",
    "fields_in_steps",
    "in_steps",
    "run_steps",
    "start_steps",
)

DEPTH_LIMIT = 64
"""Maximum nesting of containers. Deeper data is a mistake, or an attack on the decoder."""

_VALUES_PER_STEP = 16
"""How many containers and values of user-defined classes are packed in one step."""

_PATH_STEPS = 8
"""Maximum steps of the path to a value in an error about its size."""

_LARGE_BYTES = 16 * 1024
"""Values of at least this size in bytes are copied as rarely as possible."""

_PART = 256 * 1024
"""Characters of long text encoded in one step. Once large values that are not encoded yet take
more bytes than this, they are encoded early."""

_TINY_TEXT = 256

_TEXT_CHUNK = 64 * 1024


class Packing:
    """The encoding of one value as msgpack.

    Args:
        value: The value to encode.
        where: Names the value in errors, such as ``the result of 'settle'``.
        limit: Maximum size in bytes.
        is_fields: Whether the value is a map of named values, which errors call ``where.name``.

    Attributes:
        body: The msgpack, after the last step.
    """

    __slots__ = (
        "_heavy",
        "_large",
        "_left",
        "_limit",
        "_loose",
        "_stack",
        "_step",
        "_where",
        "body",
    )

    def __init__(self, value: Any, where: str, limit: int, *, is_fields: bool = False) -> None:
        self.body = b""
        self._where = where
        self._limit = self._left = limit
        self._large = min(limit >> 3, _LARGE_BYTES)
        self._loose = LOOSE_LIMIT
        self._heavy = 0
        self._step = _VALUES_PER_STEP
        root: Frame = ValueFrame(None, iter((value,)), [], unnamed, 0, limit)
        if is_fields:
            root = Frame(value, iter(value.items()), {}, by_field, 0, limit)
        self._stack: list[Frame] = [root]

    def run(self) -> bool:
        """Run one step; return whether the value is complete.

        Raises:
            ValueTooLarge: If it is larger than the limit.
            Unserializable: If it, or something inside it, cannot be serialized; the error names
                the place.
        """
        stack = self._stack
        self._step = _VALUES_PER_STEP
        while stack:
            frame = stack[-1]
            if isinstance(frame.out, dict):
                is_filled = self._fill_map(frame)
            elif type(frame) is KeyScanFrame:
                is_filled = self._scan(frame)
            elif type(frame) is TextFrame:
                is_filled = self._fill_text(frame)
            else:
                is_filled = self._fill(frame)
            if is_filled:
                self._close(frame)
            elif self._step <= 0:
                return False
        if len(self.body) > self._limit:
            raise ValueTooLarge(self._where, self._limit)
        return True

    # ── containers ──────────────────────────────────────────────────────────────────────

    def _fill(self, frame: Frame) -> bool:
        """Pack items until one is a container, or the step ends; return whether all are packed."""
        out, take = frame.out, self._take
        for item in frame.items:
            packed = take(item)
            if packed is _BEGUN:
                return False
            out.append(packed)
            if len(out) >= self._loose:
                return self._flush(frame)
        return True

    def _fill_map(self, frame: Frame) -> bool:
        out, take = frame.out, self._take
        # Counted here, because a faulty mapping may yield the same key again and again.
        for count, (key, item) in enumerate(frame.items, 1):
            frame.key = NO_KEY
            name = self._short(key) if type(key) is str else take(key)
            if type(name) is not str:
                raise self._refused(type(key).__name__, "names are text")
            frame.key = name
            packed = take(item)
            if packed is _BEGUN:
                return False
            out[name] = packed
            if count >= self._loose:
                return self._flush(frame)
        return True

    def _fill_text(self, frame: Frame) -> bool:
        """Encode one part of a long text; return whether it was the last."""
        start = frame.count
        part = frame.value[start : start + _PART]
        frame.count += len(part)
        try:
            frame.chunks.append(part.encode())
        except UnicodeEncodeError as exc:
            self._stack.pop()
            raise self._refused("str", f"a lone surrogate at {start + exc.start}") from exc
        self._left -= len(frame.chunks[-1])
        if self._left < 0:
            raise self._too_large()
        self._step = 0
        return not part

    def _scan(self, frame: Frame) -> bool:
        """Check whether all keys of a map are text, then replace this frame with one that packs it.

        The result decides how the map is encoded. A long map is scanned in several steps.
        """
        for key in frame.items:
            if type(key) is not str:
                break
            frame.count += 1
            if frame.count > self._left:
                raise self._too_large()
            if not frame.count % LOOSE_LIMIT:
                self._step = 0
                return False
        else:
            key = ""
        self._stack.pop()
        self._begin_map(frame.value, is_plain=type(key) is str)
        return False

    def _flush(self, frame: Frame) -> bool:
        """Encode the packed items of a container and end the step."""
        if self._left < 0:
            raise self._too_large()
        frame.flush()
        self._step = 0
        self._loose, self._heavy = LOOSE_LIMIT, 0
        return False

    def _close(self, frame: Frame) -> None:
        if self._left < 0:
            raise self._too_large()
        stack = self._stack
        stack.pop()
        if not stack:
            self.body = b"".join(frame.encoded())
            return
        above = stack[-1]
        cost = frame.left - self._left
        if cost > self._large:
            above.note(cost, above.name() + frame.inside(cost))
        if frame.chunks or cost > _LARGE_BYTES:
            above.add(frame.encoded())
            return
        packed = frame.close()
        if isinstance(above.out, dict):
            above.out[above.key] = packed
        else:
            above.out.append(packed)
        above.loose += frame.loose + 1
        if above.loose >= LOOSE_LIMIT:
            above.flush()

    def _begin(
        self,
        value: object,
        items: Iterable[Any],
        out: Any,
        named: ItemName,
        tag: int = 0,
        deeper: int = 1,
        kind: type[Frame] = Frame,
    ) -> Packed:
        """Push a frame for a container, whose items are packed next."""
        left = self._left
        if left < 0:
            raise self._too_large()
        self._left = left - 1
        self._step -= 1
        stack = self._stack
        stack.append(kind(value, iter(items), out, named, stack[-1].depth + deeper, left, tag))
        return _BEGUN

    def _container(self, value: Any, kind: type) -> Packed:
        if kind is dict:
            if len(value) >= _TEXT_CHUNK:
                return self._begin(value, value, [], unnamed, deeper=0, kind=KeyScanFrame)
            return self._begin_map(value, is_plain=_TEXTS.issuperset(map(type, value)))
        if isinstance(value, Mapping):
            return self._begin(value, value, [], unnamed, deeper=0, kind=KeyScanFrame)
        if isinstance(value, list):
            return self._begin(value, value, [], by_index)
        if isinstance(value, tuple):
            return self._begin(value, value, [], by_index, Tag.TUPLE)
        if isinstance(value, AbstractSet):
            tag = Tag.FROZENSET if isinstance(value, frozenset) else Tag.SET
            return self._begin(value, value, [], by_index, tag)
        if isinstance(value, Sequence):
            return self._begin(value, value, [], by_index)
        names = _field_names(value)
        if names is None:
            why = "register_codec() can have its class travel"
            raise self._refused(kind.__qualname__, "" if kind.__module__ == "builtins" else why)
        return self._begin(value, ((name, getattr(value, name)) for name in names), {}, by_field)

    def _begin_map(self, value: Any, *, is_plain: bool) -> Packed:
        if is_plain:
            return self._begin(value, value.items(), {}, by_key)
        return self._begin(value, map(MapPair, value.items()), [], unnamed, Tag.MAP)

    # ── values ──────────────────────────────────────────────────────────────────────────

    def _take(self, value: Any) -> Packed:
        """Return the packed value, or ``_BEGUN`` if its contents must be packed first."""
        kind = type(value)
        if kind is str:
            size = len(value)
            if size <= _TINY_TEXT and value.isascii():
                self._left -= 1 + size
                return value
            return self._text(value)
        if kind is int and INT_LOW <= value <= INT_HIGH:
            self._left -= 1 + (value.bit_length() >> 3)
            return value
        if value is None or kind is bool:
            self._left -= 1
            return value
        try:
            if kind is float:
                self._left -= 9
                return checked_float(value)
            if kind is int:
                return self._int(value)
            extension = _EXTENSIONS.get(kind)
            if extension is not None:
                return self._extension(value, *extension)
            return self._bytes(value) if kind in _BYTES else self._other(value, kind)
        except Misfit as exc:
            raise self._refused(exc.value_type, exc.why) from None

    def _other(self, value: Any, kind: type) -> Packed:
        if kind is MapPair:
            return self._begin(value, value.items, [], value.named, deeper=0)
        codec = None if kind in _CONTAINERS else codec_of(kind)
        if codec is None:
            if isinstance(value, Enum):
                return self._enum(value)
            if isinstance(value, BASES):
                return self._by_base(value)
        if any(frame.value is value for frame in self._stack):
            why = "it contains itself" if codec is None else _ENDLESS_CODEC
            raise self._refused(kind.__qualname__, why)
        if self._stack[-1].depth >= DEPTH_LIMIT:
            why = f"nested deeper than {DEPTH_LIMIT}" if codec is None else _ENDLESS_CODEC
            raise self._refused(kind.__qualname__, why)
        if codec is None:
            body = None
            if kind in _CONTAINERS or is_dataclass(kind):
                levels = min(SMALL_LEVELS, DEPTH_LIMIT - self._stack[-1].depth)
                body = packed_small(value, levels)
            if body is None or len(body) > self._large:
                return self._container(value, kind)
            self._left -= len(body)
            if self._left < 0:
                raise self._too_large()
            self._step -= 1
            return msgspec.Raw(body)
        made = self._encoded(value, codec.encode)
        return self._begin(value, (made,), [], unnamed, kind=ValueFrame)

    def _encoded(self, value: Any, encode: Callable[[Any], object]) -> object:
        """Return the output of a user-defined codec, which may contain values with codecs again."""
        try:
            return encode(value)
        except Exception as exc:
            why = f"its codec raised {type(exc).__name__}: {exc}"
            raise self._refused(type(value).__qualname__, why) from exc

    def _enum(self, value: Enum) -> Packed:
        plain: Any = value
        for _ in range(DEPTH_LIMIT):
            plain = plain.value
            if not isinstance(plain, Enum):
                return self._take(plain)
        raise self._refused(type(value).__qualname__, "its value does not come to an end")

    def _by_base(self, value: Any) -> Packed:
        plain = based(value)
        if plain is not value:
            return self._take(plain)
        if isinstance(value, bytes):
            return self._bytes(value)
        for base, tag, data in EXTENSIONS:
            if isinstance(value, base):
                return self._extension(value, tag, data)
        raise self._refused(type(value).__qualname__, "")

    def _text(self, value: str) -> Packed:
        if len(value) <= _PART or value.isascii():
            return self._short(value)
        if len(value) > self._left:
            self._spend(len(value))
        frame = TextFrame(value, iter(()), [], unnamed, self._stack[-1].depth, self._left)
        self._left -= 5
        self._step = 0
        self._stack.append(frame)
        return _BEGUN

    def _short(self, value: str) -> str:
        cost = 1 + (len(value) if value.isascii() else self._utf8_size(value))
        self._left -= cost
        if cost > self._large:
            self._note(cost)
        return value

    def _utf8_size(self, value: str) -> int:
        size = len(value)
        if size > self._left:
            return size
        size = 0
        for start in range(0, len(value), _TEXT_CHUNK):
            try:
                size += len(value[start : start + _TEXT_CHUNK].encode())
            except UnicodeEncodeError as exc:
                raise self._refused("str", f"a lone surrogate at {start + exc.start}") from exc
        return size

    def _int(self, value: int) -> int | Ext:
        """Pack an integer outside the range of msgpack."""
        self._spend(value.bit_length() >> 3)
        return packed_int(value)

    def _bytes(self, value: Any) -> bytes:
        self._spend(memoryview(value).nbytes)
        return bytes(value)

    def _extension(self, value: Any, tag: int, data: Callable[[Any], bytes]) -> Ext:
        if tag == Tag.DECIMAL and has_more_digits(value, max(self._left, 0)):
            self._spend(self._limit)
        if tag == Tag.PATH and len(str(value)) > self._left:
            self._spend(self._limit)
        packed = data(value)
        self._spend(len(packed))
        return Ext(tag, packed)

    # ── limits ──────────────────────────────────────────────────────────────────────────

    def _spend(self, size: int) -> None:
        """Subtract the size of a copy that is about to be made from the remaining limit."""
        cost = size + 2
        self._left -= cost
        if cost > self._large:
            self._note(cost)

    def _note(self, cost: int) -> None:
        """Remember a large value. Once there are many of them, they are encoded early."""
        frame = self._stack[-1]
        frame.note(cost, frame.name())
        if self._left < 0:
            raise self._too_large()
        self._heavy += cost
        if self._heavy > _PART:
            self._loose = 0

    def _refused(self, value_type: str, why: str) -> Unserializable:
        """Return the error for the value being packed."""
        return Unserializable(
            error_path(self._where, [f.name() for f in self._stack]), value_type, why
        )

    def _too_large(self) -> ValueTooLarge:
        """Return the error that names the part that uses most of the limit."""
        steps: list[str] = []
        costs = [*(frame.left - self._left for frame in self._stack[1:]), 0]
        for frame, inside in zip(self._stack, costs, strict=True):
            half = (frame.left - self._left) / 2
            if frame.largest is not None and frame.largest[0] >= max(inside, half):
                steps.append(frame.largest[1])
                break
            if inside < half:
                break
            steps.append(frame.name())
        if len(steps) > _PATH_STEPS:
            steps = [*steps[:_PATH_STEPS], "…"]
        return ValueTooLarge(error_path(self._where, steps), self._limit)


def _field_names(value: object) -> tuple[str, ...] | None:
    if isinstance(value, type):
        return None
    if is_dataclass(value):
        return tuple(field.name for field in fields(value))
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return None


_BEGUN: Final = object()
_ENDLESS_CODEC: Final = "its codec does not come to an end"
_TEXTS = frozenset({str})
_BYTES = frozenset({bytes, bytearray, memoryview})
_CONTAINERS = frozenset({list, dict, tuple, set, frozenset})


_EXTENSIONS = {cls: (tag, data) for cls, tag, data in EXTENSIONS}


T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A generator that yields after each step, and returns the result of the work."""

_FIRST_STEPS = 100
"""The number of steps that ``start_steps`` runs: a few milliseconds of work."""


def run_steps(steps: Steps[T]) -> T:
    """Run all steps and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            value: T = done.value
            return value


def start_steps(steps: Steps[T]) -> Steps[T]:
    """Run the first steps and return the remaining ones. Only large values have remaining steps."""
    for _ in range(_FIRST_STEPS):
        try:
            next(steps)
        except StopIteration as done:
            return _finished(done.value)
    return steps


def _finished(value: T) -> Steps[T]:
    yield from ()
    return value


VALUE_LIMIT = 64 * 1024 * 1024
"""Maximum size of any value, in bytes of msgpack. Most uses have a lower limit."""


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
        body = run_steps(_run_packing(Packing(value, where, limit)))
    return body


def encode_fields(fields: Mapping[str, object], owner: str, limit: int = VALUE_LIMIT) -> bytes:
    """Return named values as one msgpack map; errors name them ``owner.field``."""
    body = packed_small_fields(fields)
    if body is None or len(body) > limit:
        body = run_steps(_run_packing(Packing(fields, owner, limit, is_fields=True)))
    return body


def at_most(value: object, limit: int) -> bytes | None:
    """Return a small value as msgpack; ``None`` if it needs ``encode`` or ``in_steps``."""
    body = packed_small(value)
    return None if body is None or len(body) > limit else body


def in_steps(value: object, where: str, limit: int) -> Steps[bytes]:
    """Encode like ``encode``, in steps that do not block the event loop for long."""
    body = packed_small(value)
    if body is None or len(body) > limit:
        body = yield from _run_packing(Packing(value, where, limit))
    return body


def fields_in_steps(fields: Mapping[str, object], owner: str, limit: int) -> Steps[bytes]:
    """Encode like ``encode_fields``, in steps that do not block the event loop for long."""
    body = packed_small_fields(fields)
    if body is None or len(body) > limit:
        body = yield from _run_packing(Packing(fields, owner, limit, is_fields=True))
    return body


def _run_packing(packing: Packing) -> Steps[bytes]:
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


def _decoded_items(data: bytes) -> list[Any]:
    items: list[Any] = _list_decoder.decode(data)
    return items


def _hashed(make: Callable[[list[Any]], Any], items: list[Any]) -> Any:
    try:
        return make(items)
    except TypeError:
        return items  # items may be dataclasses, which are dicts until an annotation restores them


_UNPACKERS: dict[int, Callable[[bytes], Any]] = {
    Tag.INT: lambda data: int.from_bytes(data, "big", signed=True),
    Tag.DATE: lambda data: date.fromisoformat(data.decode()),
    Tag.DATETIME: _unpack_datetime,
    Tag.TIME: _unpack_time,
    Tag.TIMEDELTA: lambda data: timedelta(*_decoded_items(data)),
    Tag.DECIMAL: lambda data: Decimal(data.decode()),
    Tag.UUID: lambda data: UUID(bytes=data),
    Tag.PATH: lambda data: Path(os.fsdecode(data)),
    Tag.TUPLE: lambda data: tuple(_decoded_items(data)),
    Tag.SET: lambda data: _hashed(set, _decoded_items(data)),
    Tag.FROZENSET: lambda data: _hashed(frozenset, _decoded_items(data)),
    Tag.MAP: lambda data: _hashed(dict, [tuple(pair) for pair in _decoded_items(data)]),
}

_decoder = msgspec.msgpack.Decoder(ext_hook=_unpack)
_list_decoder = msgspec.msgpack.Decoder(list[Any], ext_hook=_unpack)
