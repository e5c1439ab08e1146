"""Values between tasks: small ones travel in rows, large ones and lists to expand in files.

A file is named by numbers only: ``<folder>/<task_no // 4096>/<task_no>.<start_no>``. It is
written to a temporary name, synced, renamed, and its folder synced, before the start that
made it reports; a file whose start never committed belongs to nobody and may be deleted.

An **indexed file** holds a list item by item, so that child ``i`` of a fan-out reads item
``i`` alone::

    "AFLIST1" LF   count: u64   offset of each item and of the end: u64 * (count + 1)   items

Everything little-endian; items are msgpack.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

from aioflow.model import StartNo, TaskNo

__all__ = (
    "INLINE_LIMIT",
    "RESULT_LIMIT",
    "read_item",
    "read_items",
    "read_value",
    "result_path",
    "write_list",
    "write_value",
)

INLINE_LIMIT = 64 * 1024
"""Bytes of msgpack up to which a result lives in its row."""

RESULT_LIMIT = 64 * 1024 * 1024
"""Bytes of msgpack a result may have at all."""

_MAGIC = b"AFLIST1\n"
_COUNT = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")


def result_path(folder: Path, task_no: TaskNo, start_no: StartNo) -> Path:
    """Return where the result of one start is kept."""
    return folder / str(task_no // 4096) / f"{task_no}.{start_no}"


def write_value(path: Path, body: bytes) -> None:
    """Write a whole value durably; a second call replaces the first."""
    _write(path, [body])


def write_list(path: Path, items: Sequence[bytes]) -> None:
    """Write an indexed file durably; ``items`` are msgpack, one each."""
    offset = len(_MAGIC) + _COUNT.size + 8 * (len(items) + 1)
    offsets = [offset]
    for item in items:
        offset += len(item)
        offsets.append(offset)
    index = struct.pack(f"<{len(offsets)}Q", *offsets)
    _write(path, [_MAGIC, _COUNT.pack(len(items)), index, *items])


def read_value(path: Path) -> bytes:
    """Return a whole value.

    Raises:
        FileNotFoundError: If that start left none.
    """
    return path.read_bytes()


def read_item(path: Path, index: int) -> bytes:
    """Return the msgpack of one item of an indexed file.

    Raises:
        FileNotFoundError: If that start left no file.
        IndexError: If the list is shorter.
    """
    with path.open("rb") as file:
        count = _read_count(file.read(len(_MAGIC) + _COUNT.size))
        if not 0 <= index < count:
            raise IndexError(f"item {index} of a list of {count}")
        file.seek(len(_MAGIC) + _COUNT.size + 8 * index)
        start, end = _PAIR.unpack(file.read(_PAIR.size))
        file.seek(start)
        return file.read(end - start)


def read_items(path: Path) -> list[bytes]:
    """Return the msgpack of all items of an indexed file, in order."""
    data = path.read_bytes()
    count = _read_count(data[: len(_MAGIC) + _COUNT.size])
    offsets = struct.unpack_from(f"<{count + 1}Q", data, len(_MAGIC) + _COUNT.size)
    return [data[offsets[i] : offsets[i + 1]] for i in range(count)]


def _read_count(head: bytes) -> int:
    if len(head) != len(_MAGIC) + _COUNT.size or not head.startswith(_MAGIC):
        raise ValueError("not an indexed result file, or damaged")
    count: int = _COUNT.unpack_from(head, len(_MAGIC))[0]
    return count


def _write(path: Path, parts: Sequence[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
