"""Values passed between tasks: small values in rows, large ones and lists to expand in files.

The name of a file has only numbers: ``<folder>/<task_no // 4096>/<task_no>.<start_no>``. Before the
start that creates a file reports its end, the file is written under a temporary name, synced and
renamed, and its folder is synced. If a start never committed, its file is an orphan and may be
deleted.

An **indexed file** stores a list item by item, so that child ``i`` of a mapped task reads only item
``i``::

    "AFLIST1" LF   count: u64   offset of each item and of the end: u64 * (count + 1)   items

All numbers are little-endian; items are msgpack.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, TypeVar

from aioflow.filesystem import create_file, make_folder, require_space, sync_folder
from aioflow.model.ids import RunNo, StartNo, TaskNo

__all__ = (
    "INLINE_LIMIT",
    "RESULTS_IN_BLOCK",
    "RESULT_LIMIT",
    "ResultFiles",
    "delete_results",
    "read_item",
    "read_items",
    "read_one_item",
    "read_value",
    "result_path",
    "result_size",
    "write_list",
    "write_value",
)

INLINE_LIMIT = 64 * 1024
"""Maximum size of a result in its row, in bytes of msgpack."""

RESULT_LIMIT = 64 * 1024 * 1024
"""Maximum size of any result, in bytes of msgpack."""

RESULTS_IN_BLOCK = 4096
"""Number of consecutive tasks whose results are in one folder."""

_OPEN_LISTS_LIMIT = 8
"""Maximum number of indexed files that one process keeps open: the most recently used ones."""

_CACHED_PATHS = 64
"""Size of the path cache. Paths repeat, because the children of a mapped task read one file."""

_OPEN_ATTEMPTS = 100
_FETCH_ATTEMPTS = 3

Content = TypeVar("Content")

_DAMAGED = "not an indexed result file, or damaged"

_MAGIC = b"AFLIST1\n"
_COUNT = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")


@lru_cache(maxsize=_CACHED_PATHS)
def result_path(folder: Path, task_no: TaskNo, start_no: StartNo) -> Path:
    """Return the path of the result of one start."""
    return folder / str(task_no // RESULTS_IN_BLOCK) / f"{task_no}.{start_no}"


def result_size(size: int, width: int | None) -> int:
    """Return the size of a result file, whose items have ``size`` bytes together."""
    return size if width is None else _list_head(width) + size


def _list_head(count: int) -> int:
    return len(_MAGIC) + _COUNT.size + 8 * (count + 1)


def delete_results(folder: Path, task_nos: Collection[TaskNo]) -> None:
    """Delete the results of all starts of these tasks. Idempotent."""
    by_block: dict[int, set[str]] = defaultdict(set)
    for task_no in task_nos:
        by_block[task_no // RESULTS_IN_BLOCK].add(str(task_no))
    for block, names in by_block.items():
        place = folder / str(block)
        with contextlib.suppress(FileNotFoundError):
            for entry in list(os.scandir(place)):
                if entry.name.partition(".")[0] in names:
                    Path(entry.path).unlink(missing_ok=True)
            _remove_if_empty(place)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def write_value(path: Path, body: bytes | memoryview, *, sync: bool = True) -> None:
    """Write a whole value, durably unless ``sync`` is not set. A second call replaces the file."""
    _write(path, [body], sync=sync)


def write_list(path: Path, items: Sequence[bytes], *, sync: bool = True) -> None:
    """Write an indexed file as ``write_value`` does. Each item is encoded as msgpack."""
    offset = _list_head(len(items))
    offsets = [offset]
    for item in items:
        offset += len(item)
        offsets.append(offset)
    index = struct.pack(f"<{len(offsets)}Q", *offsets)
    _write(path, [_MAGIC, _COUNT.pack(len(items)), index, *items], sync=sync)


def read_value(path: Path) -> bytes:
    """Return a whole value.

    Raises:
        FileNotFoundError: If the start left no file.
    """
    return path.read_bytes()


def read_item(path: Path, index: int) -> bytes:
    """Return the msgpack of one item of an indexed file.

    Raises:
        FileNotFoundError: If the start left no file.
        IndexError: If the list is shorter.
        ValueError: If the file is damaged.
    """
    return _open_list(path).item(index)


def read_one_item(path: Path, index: int) -> bytes:
    """Return an item as ``read_item`` does, but close the file afterwards, for a single read."""
    opened = _OpenList(path)
    try:
        return opened.item(index)
    finally:
        opened.close()


def read_items(path: Path) -> list[bytes]:
    """Return the msgpack of all items of an indexed file, in order.

    Raises:
        FileNotFoundError: If the start left no file.
        ValueError: If the file is damaged.
    """
    data = path.read_bytes()
    first = len(_MAGIC) + _COUNT.size
    count = _read_count(data[:first], len(data))
    offsets = struct.unpack_from(f"<{count + 1}Q", data, first)
    if list(offsets) != sorted(offsets) or offsets[-1] != len(data):
        raise ValueError(_DAMAGED)
    return [data[offsets[i] : offsets[i + 1]] for i in range(count)]


class ResultFiles:
    """The result files that a process can read: those of the home, and copies of stored results.

    Attributes:
        folder: The folder in which this process writes results.
        sync: Whether it writes them durably. If they are stored elsewhere before their try is
            committed, the file need not survive the machine.

    Args:
        copies: The folder of the copies, if results are stored outside of the home.
        fetch: Called with ``(run_no, task_no, start_no)`` to have the daemon copy a missing result.
            It blocks.
    """

    def __init__(
        self,
        folder: Path,
        copies: Path | None = None,
        fetch: Callable[[RunNo, TaskNo, StartNo], None] | None = None,
    ) -> None:
        self.folder = folder
        self.copies = copies
        self.sync = copies is None
        self._fetch = fetch

    def has(self, task_no: TaskNo, start_no: StartNo) -> bool:
        """Return whether a result is on this machine."""
        folders = (self.folder,) if self.copies is None else (self.copies, self.folder)
        return any(result_path(folder, task_no, start_no).exists() for folder in folders)

    def read(
        self, run_no: RunNo, task_no: TaskNo, start_no: StartNo, read: Callable[[Path], Content]
    ) -> Content:
        """Return what ``read`` returns for the file of a result. Fetch the file if it is missing.

        Raises:
            FileNotFoundError: If the start left no file.
            BaseException: Whatever ``read`` or ``fetch`` raises.
        """
        if self.copies is None:
            return read(result_path(self.folder, task_no, start_no))
        copy = result_path(self.copies, task_no, start_no)
        with contextlib.suppress(FileNotFoundError):
            return read(copy)
        with contextlib.suppress(FileNotFoundError):  # from before results were stored elsewhere
            return read(result_path(self.folder, task_no, start_no))
        for _ in range(_FETCH_ATTEMPTS):
            if self._fetch is not None:
                self._fetch(run_no, task_no, start_no)
            with contextlib.suppress(FileNotFoundError):  # evicted before it could be opened
                return read(copy)
        return read(copy)


class _OpenList:
    """An indexed file that stays open, since the children of a mapped task each read an item."""

    __slots__ = ("_count", "_descriptor", "_size")

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._size = os.fstat(self._descriptor).st_size
            head = os.pread(self._descriptor, len(_MAGIC) + _COUNT.size, 0)
            self._count = _read_count(head, self._size)
        except ValueError:
            os.close(self._descriptor)
            raise

    def item(self, index: int) -> bytes:
        if not 0 <= index < self._count:
            raise IndexError(f"item {index} of a list of {self._count}")
        place = len(_MAGIC) + _COUNT.size + 8 * index
        start, end = _PAIR.unpack(os.pread(self._descriptor, _PAIR.size, place))
        if not place < start <= end <= self._size:
            raise ValueError(_DAMAGED)
        return os.pread(self._descriptor, end - start, start)

    def close(self) -> None:
        os.close(self._descriptor)


_open_lists: OrderedDict[Path, _OpenList] = OrderedDict()
_last_read: list[tuple[Path, _OpenList]] = []
"""The newest entry of ``_open_lists``. Hashing a path takes longer than this comparison."""


def _open_list(path: Path) -> _OpenList:
    """Return an open file, from the cache if possible, since the file of a start never changes."""
    if _last_read and _last_read[0][0] is path:
        return _last_read[0][1]
    found = _open_lists.pop(path, None)
    if found is None:
        found = _OpenList(path)
        if len(_open_lists) == _OPEN_LISTS_LIMIT:
            _open_lists.popitem(last=False)[1].close()
    _open_lists[path] = found
    _last_read[:] = [(path, found)]
    return found


def _read_count(head: bytes, size: int) -> int:
    """Return the number of items, after a check that the file is long enough for all offsets."""
    if len(head) != len(_MAGIC) + _COUNT.size or not head.startswith(_MAGIC):
        raise ValueError(_DAMAGED)
    count: int = _COUNT.unpack_from(head, len(_MAGIC))[0]
    if len(head) + 8 * (count + 1) > size:
        raise ValueError(_DAMAGED)
    return count


def _open_new(path: Path) -> BinaryIO:
    """Open a new file and create its folder, again if that is deleted while it is still empty."""
    for _ in range(_OPEN_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            make_folder(path.parent)
            return create_file(path)
    return create_file(path)


def _write(path: Path, parts: Sequence[bytes | memoryview], *, sync: bool) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with _open_new(temporary) as file:
            require_space(path.parent, sum(map(len, parts)))
            file.writelines(parts)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)
