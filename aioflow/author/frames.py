"""Containers on their way into msgpack, item by item, and how errors name what is in them."""

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
"""Packed values that are kept as objects before they are encoded: an object takes far more room."""

NO_KEY: Final = object()
"""The key of a map while that itself is packed."""

_TEXT_32: Final = b"\xdb"
_KEY_LENGTH = 60
"""Characters of a key in an error."""

_OF_KEY: Final = "a key of"
_encoder = msgspec.msgpack.Encoder()

Packed: TypeAlias = Any  # what msgspec encodes without further help
Named: TypeAlias = Callable[[Any], str]


class Frame:
    """A container whose items are being packed.

    Attributes:
        value: The container; the stack of frames shows whether one contains itself.
        items: What is left of it. Of a map: keys and values.
        out: What is packed, and not encoded yet.
        named: How an item is named in a path, from its key or index.
        depth: Containers it stands in, and itself.
        left: What the whole value could still take when this one was begun.
        tag: Of the extension it becomes; 0 for a plain array or map.
        key: Of the item being packed; ``None`` where an index tells.
        chunks: What is encoded, without a header.
        count: Items in ``chunks``.
        loose: Objects inside those in ``out``.
        largest: What its largest item took, if that is worth naming, and the path to it.
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
        """Return the step of a path that leads to the item being packed."""
        return self.named(self.count + len(self.out) if self.key is None else self.key)

    def note(self, cost: int, path: str) -> None:
        """Remember an item that took much."""
        if self.largest is None or cost > self.largest[0]:
            self.largest = (cost, path)

    def inside(self, cost: int) -> str:
        """Return the path to the item that most of this cost is owed to, empty if to none."""
        if self.largest is None or 2 * self.largest[0] < cost:
            return ""
        return self.largest[1]

    def flush(self) -> None:
        """Encode what is packed."""
        size = len(self.out)
        if not size:
            return
        self.chunks.append(_encoder.encode(self.out)[_header_size(size) :])
        self.count += size
        self.loose = 0
        self.out.clear()

    def add(self, chunks: list[bytes]) -> None:
        """Take an item that is encoded; its bytes are not copied."""
        self.flush()
        if isinstance(self.out, dict):
            self.chunks.append(_encoder.encode(self.key))
        self.chunks += chunks
        self.count += 1

    def encoded(self) -> list[bytes]:
        """Return the whole container, encoded."""
        self.flush()
        chunks = [_header(self.count, is_map=isinstance(self.out, dict)), *self.chunks]
        if self.tag:
            chunks.insert(0, _extension_header(self.tag, sum(map(len, chunks))))
        return chunks

    def close(self) -> Packed:
        """Return the packed container; ``loose`` then says of how many objects it is made."""
        if self.tag:
            self.loose = 0
            return Ext(self.tag, _encoder.encode(self.out))
        self.loose += len(self.out)
        if self.loose < LOOSE_LIMIT:
            return self.out
        self.loose = 0
        return msgspec.Raw(_encoder.encode(self.out))


class Alone(Frame):
    """Something that is packed as one other value: what a codec has made of it, or the whole."""

    __slots__ = ()

    def flush(self) -> None:
        """There is one value, and its container takes it."""

    def add(self, chunks: list[bytes]) -> None:
        """Take the value that is encoded."""
        self.chunks = chunks

    def encoded(self) -> list[bytes]:
        """Return the value, encoded."""
        return self.chunks or [_encoder.encode(self.out[0])]

    def close(self) -> Packed:
        """Return the packed value."""
        return self.out[0]


class Scan(Frame):
    """A map whose keys are looked through first: where all are text, it is a plain one."""

    __slots__ = ()


class Text(Frame):
    """Long text, whose items are parts of it."""

    __slots__ = ()

    def encoded(self) -> list[bytes]:
        """Return the text, encoded."""
        size = sum(map(len, self.chunks))
        return [_TEXT_32 + size.to_bytes(4, "big"), *self.chunks]


class Pair:
    """A key that is no text, and its value."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Any, Any]) -> None:
        self.items = items

    def named(self, index: int) -> str:
        """Return how errors name the key, then the value."""
        return f"[a {type(self.items[0]).__name__}]" if index else _OF_KEY


def path_of(where: str, steps: Iterable[str]) -> str:
    """Return how an error names a place."""
    for step in steps:
        where = f"a key of {where}" if step == _OF_KEY else where + step
    return where


def unnamed(_: object) -> str:
    """Name nothing: there is but one thing inside."""
    return ""


def by_index(index: object) -> str:
    """Name an item of a list."""
    return f"[{index}]"


def by_field(name: object) -> str:
    """Name a field."""
    return "" if name is NO_KEY else f".{_shortened(str(name))}"


def by_key(key: object) -> str:
    """Name an item of a map."""
    return "" if key is NO_KEY else f"[{_shortened(repr(key))}]"


def _shortened(text: str) -> str:
    return text if len(text) <= _KEY_LENGTH else f"{text[:_KEY_LENGTH]}…"


def _extension_header(tag: int, size: int) -> bytes:
    """Return what msgpack begins an extension with."""
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
    """Return what msgpack begins an array or a map with."""
    if count < 16:
        return bytes([(0x80 if is_map else 0x90) | count])
    if count < 1 << 16:
        return (b"\xde" if is_map else b"\xdc") + count.to_bytes(2, "big")
    return (b"\xdf" if is_map else b"\xdd") + count.to_bytes(4, "big")
