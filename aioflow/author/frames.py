"""Containers that are being packed item by item, and how errors name their contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.msgpack import Ext

__all__ = (
    "LOOSE_LIMIT",
    "NO_KEY",
    "Alone",
    "Frame",
    "Named",
    "Packed",
    "Pair",
    "Scan",
    "Text",
    "by_field",
    "by_index",
    "by_key",
    "path_of",
    "unnamed",
)

LOOSE_LIMIT = 256
"""Maximum number of packed objects before they are encoded; objects need far more memory."""

NO_KEY: Final = object()
"""The current key of a map while the key itself is being packed."""

_TEXT_32: Final = b"\xdb"
_KEY_LENGTH = 60
"""Maximum characters of a key in an error."""

_OF_KEY: Final = "a key of"
_encoder = msgspec.msgpack.Encoder()

Packed: TypeAlias = Any  # anything that msgspec encodes without a hook
Named: TypeAlias = Callable[[Any], str]


class Frame:
    """A container whose items are being packed.

    Attributes:
        value: The container. The stack of frames reveals a container that contains itself.
        items: Iterator over the remaining items; for a map, keys and values.
        out: Items that are packed but not yet encoded.
        named: Returns the name of an item in a path, from its key or index.
        depth: The nesting depth, this container included.
        left: The bytes that were left for the whole value when this container was begun.
        tag: The tag of the extension; 0 for a plain array or map.
        key: The key of the item being packed; ``None`` for items with an index.
        chunks: Encoded items, without a header.
        count: The number of items in ``chunks``.
        loose: The number of objects nested in the items of ``out``.
        largest: Size of the largest item and the path to it, if it is worth naming.
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
        named: Named,
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


class Alone(Frame):
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


class Scan(Frame):
    """Scans the keys of a map: if all are text, the map is encoded as a plain one."""

    __slots__ = ()


class Text(Frame):
    """A long text, encoded in parts."""

    __slots__ = ()

    def encoded(self) -> list[bytes]:
        """Return the encoded text."""
        size = sum(map(len, self.chunks))
        return [_TEXT_32 + size.to_bytes(4, "big"), *self.chunks]


class Pair:
    """A key that is not text, with its value."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Any, Any]) -> None:
        self.items = items

    def named(self, index: int) -> str:
        """Return the name of the key or the value in errors."""
        return f"[a {type(self.items[0]).__name__}]" if index else _OF_KEY


def path_of(where: str, steps: Iterable[str]) -> str:
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
