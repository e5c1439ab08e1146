"""Copies of stored results on this machine, so that its processes fetch each result only once."""

from __future__ import annotations

import logging
import os
import shutil
from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from aioflow._threads import in_thread
from aioflow.filesystem import create_file, make_folder, require_space, write_file
from aioflow.results import delete_results, result_path
from aioflow.storage.results import FileVersion, ResultKey, file_version

__all__ = ("COPIES_BYTES", "ResultCopies", "discard_after_reboot", "evict")

COPIES_BYTES = 10 * 1024**3
"""Default of the maximum total size of all copies."""

_REMAINING_SHARE = 0.8
"""Share of the maximum size that is left after an eviction, so that evictions are rare."""

_OPEN_ATTEMPTS = 100

_logger = logging.getLogger(__name__)


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT_NOTE = "boot"


def discard_after_reboot(folder: Path) -> None:
    """Empty a folder of copies unless it was written since the last boot of the machine.

    Copies are not synced, so after a power failure they may be empty or contain arbitrary data.
    """
    try:
        boot = _BOOT_ID.read_text()
    except OSError:
        boot = ""  # then each start counts as one after a reboot
    note = folder / _BOOT_NOTE
    with suppress(OSError):
        if boot and note.read_text() == boot:
            return
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    write_file(note, boot.encode())


class ResultCopies:
    """A folder of copies with a size limit. The copies read least recently are evicted.

    Any copy may be lost at any time without harm. Children read the folder directly. Therefore the
    time of the last read is taken from the file system, where it may be a day old.
    """

    def __init__(self, folder: Path, limit_bytes: int = COPIES_BYTES) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._bytes = -1  # not measured yet

    def path(self, key: ResultKey) -> Path:
        """Return the path of a copy, which may be missing."""
        return result_path(self.folder, *key)

    async def adopt(self, key: ResultKey, file: Path, version: FileVersion) -> None:
        """Move the result file of a process into the copies, once its result is stored.

        Args:
            version: The file that was stored. User code may have replaced it in the meantime.
        """
        size = version[2]
        try:
            is_it = await in_thread(_move, file, self.path(key), version)
        except OSError as exc:  # another file system, or a full disk: the result can be fetched
            _logger.warning("cannot keep a copy of %s: %s", file, exc)
            with suppress(OSError):
                await in_thread(_unlink, file)
        else:
            if is_it:
                await self._grow(size)
            else:
                _logger.warning("%s was changed after it was stored: it is no longer a copy", file)

    async def write(self, key: ResultKey, content: bytes) -> None:
        """Write the copy of a result that was fetched.

        Raises:
            OSError: If the disk is full.
        """
        await in_thread(_write, self.path(key), content)
        await self._grow(len(content))

    async def delete(self, task_nos: Collection[int]) -> None:
        """Delete the copies of all results of these tasks."""
        await in_thread(delete_results, self.folder, task_nos)

    async def _grow(self, size: int) -> None:
        if self._bytes < 0 or self._bytes + size > self._limit_bytes:
            # Set the size first, so that parallel calls do not evict at the same time.
            self._bytes = 0
            self._bytes = await in_thread(evict, self.folder, self._limit_bytes)
        else:
            self._bytes += size


def _unlink(file: Path) -> None:
    file.unlink(missing_ok=True)


def _move(file: Path, copy: Path, version: FileVersion) -> bool:
    """Move a file. Return whether it is still the expected version. Delete it otherwise."""
    for _ in range(_OPEN_ATTEMPTS):
        make_folder(copy.parent)
        with suppress(FileNotFoundError):  # the folder was empty and has just been deleted
            file.rename(copy)
            break
    else:
        file.rename(copy)
    with suppress(OSError):  # the folder contains other results
        file.parent.rmdir()
    is_it = file_version(copy.lstat()) == version
    if not is_it:
        copy.unlink()
    return is_it


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        for _ in range(_OPEN_ATTEMPTS):
            make_folder(path.parent)
            with suppress(FileNotFoundError):
                file = create_file(temporary)
                break
        else:
            file = create_file(temporary)
        with file:
            require_space(path.parent, len(content))
            file.write(content)
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def evict(folder: Path, limit_bytes: int) -> int:
    """Delete the least recently read copies if all together are too large.

    Return the total size.
    """
    total, found = 0, []
    for place, _, names in os.walk(folder):
        for name in names if place != str(folder) else ():
            path = os.path.join(place, name)  # noqa: PTH118 - there may be very many
            with suppress(OSError):
                about = os.stat(path, follow_symlinks=False)  # noqa: PTH116
                total += about.st_size
                found.append((max(about.st_atime_ns, about.st_mtime_ns), about.st_size, path))
    if total <= limit_bytes:
        return total
    folders: defaultdict[str, int] = defaultdict(int)
    for _, size, path in sorted(found):
        if total <= limit_bytes * _REMAINING_SHARE:
            break
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108
            total -= size
            folders[os.path.dirname(path)] += 1  # noqa: PTH120
    for place in folders:
        with suppress(OSError):
            os.rmdir(place)  # noqa: PTH106
    return total
