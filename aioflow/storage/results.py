"""Where large results are stored: files of the home, objects under a URL, or the database.

A stored result is the content of the file that the child has written (see ``aioflow.results``),
followed by a trailer::

    content   "AFRESULT"   task_no: u64   start_no: u64   size: u64   crc32: u32

All numbers are little-endian. The checksum covers everything before it. So when a result is read,
truncation, changes, and storage under another name are detected. Each start stores its result under
a separate name, and never changes it. A result of a start that was never committed is an orphan.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.errors import (
    ObjectMissing,
    ResultDamaged,
    ResultMissing,
    StorageUnavailable,
    StoreUnavailable,
)
from aioflow.model.ids import StartNo, TaskNo
from aioflow.model.timestamps import Timestamp
from aioflow.results import (
    RESULT_LIMIT,
    RESULTS_IN_BLOCK,
    read_value,
    result_path,
    write_value,
)
from aioflow.storage.objects import ObjectStore

__all__ = (
    "CHUNK_BYTES",
    "ChunkStore",
    "DatabaseResults",
    "FileResults",
    "FileVersion",
    "ObjectResults",
    "ResultKey",
    "ResultStorage",
    "SpoolDamaged",
    "Spooled",
    "StoredResult",
    "file_version",
    "pack_result",
    "read_spooled",
    "unpack_result",
)

ResultKey: TypeAlias = tuple[TaskNo, StartNo]

_TRAILER = struct.Struct("<8sQQQ")
_CHECKSUM = struct.Struct("<I")
_MAGIC = b"AFRESULT"
TRAILER_SIZE = _TRAILER.size + _CHECKSUM.size

_NAME = re.compile(r"(\d{1,19})\.(\d{1,19})")
_PREFIX = "results"
_LAST_TASK = 2**63 - 1
_SPOOL_LIMIT = 2 * RESULT_LIMIT
"""Maximum size of a result file: the items of a list, and its index."""


class StoredResult(NamedTuple):
    """A stored result in a listing.

    Attributes:
        stored_at: When it was stored, by the clock of the storage.
    """

    key: ResultKey
    stored_at: Timestamp


class ResultStorage(Protocol):
    """Stores the content of result files by task and start.

    Raises:
        StorageUnavailable: From every method, if the storage cannot be used now. The caller
            retries.
    """

    async def owner(self, mark: str) -> str:
        """Return the mark of the database that uses this storage. The first mark is stored."""

    async def put(self, key: ResultKey, data: bytearray) -> None:
        """Store a packed result durably. Storing it again is harmless."""

    async def get(self, key: ResultKey) -> bytes:
        """Return a packed result; see ``unpack_result``.

        Raises:
            ResultMissing: If the result is not stored.
        """

    async def delete(self, keys: Collection[ResultKey]) -> None:
        """Delete results. Missing results are ignored."""

    async def list_blocks(self) -> list[int]:
        """Return the numbers of the blocks that may have results, in order."""

    async def list_block(self, block: int) -> list[StoredResult]:
        """Return all results of the tasks in a block of ``RESULTS_IN_BLOCK`` row numbers."""


class ObjectResults:
    """Results as objects, ``results/<block>/<task_no>.<start_no>``."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def owner(self, mark: str) -> str:
        """See ``ResultStorage``."""
        return await self._objects.owner(mark)

    async def put(self, key: ResultKey, data: bytearray) -> None:
        """See ``ResultStorage``."""
        await self._objects.put(_name(key), data)

    async def get(self, key: ResultKey) -> bytes:
        """See ``ResultStorage``."""
        try:
            return await self._objects.get(_name(key), RESULT_LIMIT)
        except ObjectMissing:
            raise ResultMissing(*key) from None

    async def delete(self, keys: Collection[ResultKey]) -> None:
        """See ``ResultStorage``."""
        await self._objects.delete([_name(key) for key in keys])

    async def list_blocks(self) -> list[int]:
        """See ``ResultStorage``."""
        names = await self._objects.list_folders(_PREFIX)
        return sorted(int(name) for name in names if name.isdecimal())

    async def list_block(self, block: int) -> list[StoredResult]:
        """See ``ResultStorage``."""
        found = []
        async for stored in self._objects.list_objects(f"{_PREFIX}/{block}"):
            key = _key(stored.name.rpartition("/")[2])
            if key is not None:
                found.append(StoredResult(key, stored.stored_at))
        return found


CHUNK_BYTES = 1024 * 1024
"""Size of the chunks in the database.

Each chunk is one transaction, so commits wait only briefly.
"""


class ChunkStore(Protocol):
    """The methods of the database that ``DatabaseResults`` uses; see ``store.Store``."""

    async def put_result_chunk(
        self, task_no: TaskNo, start_no: StartNo, chunk_no: int, body: bytes, at: Timestamp
    ) -> None:
        """See ``Store``."""

    async def delete_result_chunks(self, task_no: TaskNo, start_no: StartNo) -> None:
        """See ``Store``."""

    async def find_result_chunk(
        self, task_no: TaskNo, start_no: StartNo, chunk_no: int
    ) -> bytes | None:
        """See ``Store``."""

    async def list_chunked_results(
        self, first: TaskNo, end: TaskNo
    ) -> list[tuple[TaskNo, StartNo, Timestamp]]:
        """See ``Store``."""

    async def next_chunked_task(self, first: TaskNo) -> TaskNo | None:
        """See ``Store``."""


class DatabaseResults:
    """Results stored in chunks in the database, for small installations without an object store."""

    def __init__(self, store: ChunkStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def owner(self, mark: str) -> str:
        """See ``ResultStorage``. The database is the owner."""
        return mark

    async def put(self, key: ResultKey, data: bytearray) -> None:
        """See ``ResultStorage``. The last chunk is the shortest, and may be empty."""
        view, at = memoryview(data), self._clock.now()
        with _as_storage():
            for chunk_no in range(len(data) // CHUNK_BYTES + 1):
                first = chunk_no * CHUNK_BYTES
                body = bytes(view[first : first + CHUNK_BYTES])
                await self._store.put_result_chunk(*key, chunk_no, body, at)

    async def get(self, key: ResultKey) -> bytes:
        """See ``ResultStorage``."""
        pieces: list[bytes] = []
        with _as_storage():
            while not pieces or len(pieces[-1]) == CHUNK_BYTES:
                piece = await self._store.find_result_chunk(*key, len(pieces))
                if piece is None:
                    break  # if chunks are missing, so is the trailer
                pieces.append(piece)
        if not pieces:
            raise ResultMissing(*key)
        return b"".join(pieces)

    async def delete(self, keys: Collection[ResultKey]) -> None:
        """See ``ResultStorage``."""
        with _as_storage():
            for key in keys:
                await self._store.delete_result_chunks(*key)

    async def list_blocks(self) -> list[int]:
        """See ``ResultStorage``.

        A damaged number is read as 0, and SQLite sorts a text after all numbers. The search ends at
        such a row, because each further search would find the same row.
        """
        blocks: list[int] = []
        first = 0
        with _as_storage():
            while first <= _LAST_TASK:
                task_no = await self._store.next_chunked_task(first)
                if task_no is None or task_no < first:
                    break
                blocks.append(task_no // RESULTS_IN_BLOCK)
                first = (blocks[-1] + 1) * RESULTS_IN_BLOCK
        return blocks

    async def list_block(self, block: int) -> list[StoredResult]:
        """See ``ResultStorage``."""
        first = block * RESULTS_IN_BLOCK
        with _as_storage():
            found = await self._store.list_chunked_results(
                first, min(first + RESULTS_IN_BLOCK, _LAST_TASK)
            )
        return [StoredResult((task_no, start_no), at) for task_no, start_no, at in found]


@contextmanager
def _as_storage() -> Iterator[None]:
    """Translate an outage of the database to an outage of the storage."""
    try:
        yield
    except StoreUnavailable as exc:
        raise StorageUnavailable(str(exc)) from exc


class FileResults:
    """Results as files in one folder of this machine, as the child processes have written them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def owner(self, mark: str) -> str:
        """See ``ResultStorage``. A home has one database."""
        return mark

    async def put(self, key: ResultKey, data: bytearray) -> None:
        """See ``ResultStorage``."""
        content = memoryview(data)[:-TRAILER_SIZE]
        await in_thread(write_value, result_path(self._folder, *key), content)

    async def get(self, key: ResultKey) -> bytes:
        """See ``ResultStorage``."""
        try:
            content = await in_thread(read_value, result_path(self._folder, *key))
        except FileNotFoundError:
            raise ResultMissing(*key) from None
        return bytes(pack_result(key, bytearray(content)))

    async def delete(self, keys: Collection[ResultKey]) -> None:
        """See ``ResultStorage``."""
        await in_thread(_unlink, [result_path(self._folder, *key) for key in keys])

    async def list_blocks(self) -> list[int]:
        """See ``ResultStorage``."""
        names = await in_thread(_names, self._folder)
        return sorted(int(name) for name in names if name.isdecimal())

    async def list_block(self, block: int) -> list[StoredResult]:
        """See ``ResultStorage``."""
        return await in_thread(_files, self._folder / str(block))


def _unlink(paths: Collection[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths}:
        with suppress(OSError):  # the folder contains other results
            folder.rmdir()


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return []


def _files(folder: Path) -> list[StoredResult]:
    found = []
    with suppress(FileNotFoundError):
        for entry in list(os.scandir(folder)):
            key = _key(entry.name)
            if key is not None:
                with suppress(FileNotFoundError):
                    written = entry.stat(follow_symlinks=False).st_mtime_ns // 1_000
                    found.append(StoredResult(key, written))
    return found


def pack_result(key: ResultKey, content: bytearray) -> bytearray:
    """Append the trailer to the content of a result."""
    content += _TRAILER.pack(_MAGIC, *key, len(content))
    content += _CHECKSUM.pack(zlib.crc32(content))
    return content


def unpack_result(key: ResultKey, data: bytes) -> bytes:
    """Check the trailer of a stored result, and return the content.

    Raises:
        ResultDamaged: If the result differs from what was stored under this key.
    """
    size = len(data) - TRAILER_SIZE
    if size < 0:
        raise ResultDamaged(*key, why=f"it has only {len(data)} bytes")
    magic, task_no, start_no, stored_size = _TRAILER.unpack_from(data, size)
    if magic != _MAGIC or stored_size != size:
        raise ResultDamaged(*key, why=f"its {len(data):,} bytes do not end as they were stored")
    (checksum,) = _CHECKSUM.unpack_from(data, size + _TRAILER.size)
    if zlib.crc32(memoryview(data)[: size + _TRAILER.size]) != checksum:
        raise ResultDamaged(*key, why="its checksum is wrong")
    if (task_no, start_no) != key:
        raise ResultDamaged(*key, why=f"it is that of task number {task_no}, start {start_no}")
    return data[:size]


FileVersion: TypeAlias = tuple[int, int, int, int]
"""Device, inode, size and modification time of a file. Renaming the file changes none of them."""


def file_version(found: os.stat_result) -> FileVersion:
    """Return the identity of a file, and a fingerprint of its content."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class Spooled(NamedTuple):
    """The content of a result file, with its trailer, and the file it was read from."""

    data: bytearray
    version: FileVersion


class SpoolDamaged(Exception):
    """Raised if the result file of a try is missing, or not the file that its process reported."""


def read_spooled(folder: Path, key: ResultKey, size: int) -> Spooled:
    """Read the file that the process of a try has written.

    User code could have replaced the file by a link to any file that the daemon can read. So links
    are not followed, and anything but a regular file is refused.

    Args:
        size: The size that the process reported. A list has an index in addition.

    Raises:
        SpoolDamaged: If the file is not as reported.
        OSError: If the file cannot be read now.
    """
    if not 0 <= size <= _SPOOL_LIMIT:
        raise SpoolDamaged(f"the process of the try reported a result of {size:,} bytes")
    path = result_path(folder, *key)
    try:
        parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path.name, flags, dir_fd=parent)
        finally:
            os.close(parent)
    except OSError as exc:
        raise SpoolDamaged(f"the result file of the try cannot be opened: {exc.strerror}") from exc
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise SpoolDamaged("the result file of the try is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        if found.st_size != size:
            raise SpoolDamaged(
                f"the result file of the try has {found.st_size:,} bytes instead of {size:,}"
            )
        content = bytearray(size)
        if file.readinto(content) != size:
            raise SpoolDamaged("the result file of the try became shorter while it was read")
    return Spooled(pack_result(key, content), file_version(found))


def _name(key: ResultKey) -> str:
    task_no, start_no = key
    return f"{_PREFIX}/{task_no // RESULTS_IN_BLOCK}/{task_no}.{start_no}"


def _key(name: str) -> ResultKey | None:
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))
