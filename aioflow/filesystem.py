"""Free space on a disk, files and folders only for their owner, and paths that others can write.

User code shares the daemon's umask, so all code that creates files in the home sets their mode
explicitly. If every user of the machine could write a path of the home, each of them could run code
as the daemon.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

__all__ = (
    "LEAST_BYTES",
    "create_file",
    "find_writable",
    "full_disk",
    "how_to_mend",
    "make_folder",
    "require_space",
    "sync_folder",
    "write_file",
)

LEAST_BYTES = 1024 * 1024
"""Minimum free space of a disk that does not count as full: a commit and its log need space."""


def full_disk(path: Path) -> str:
    """Return a sentence that says that the disk of a path is full; empty if there is space left.

    If the file does not exist yet, the disk is that of its folder. A disk that cannot be queried
    does not count as full.
    """
    for place in (path, *path.parents):
        try:
            free = _free_bytes(place)
        except FileNotFoundError:
            continue
        except OSError:
            return ""
        has_space = free >= LEAST_BYTES
        return "" if has_space else f"the disk of {path} is full: {free:,} bytes are free"
    return ""


def require_space(folder: Path, size: int) -> None:
    """Raise the error of a full disk unless a file of this size leaves ``LEAST_BYTES`` free.

    Without this check, writing the file could briefly take the space that the database needs.
    """
    if _free_bytes(folder) < size + LEAST_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


_FOLDER_MODE, _FILE_MODE = 0o700, 0o600


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents. Existing folders keep their mode."""
    try:
        path.mkdir(exist_ok=True, mode=_FOLDER_MODE)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_folder(path.parent)  # `parents=True` would use the mode of the umask for parents
        path.mkdir(exist_ok=True, mode=_FOLDER_MODE)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable, such as that of a file that was renamed into it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_file(path: Path) -> BinaryIO:
    """Create a file and open it for writing. An existing file is truncated."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, _FILE_MODE), "wb")


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file. An existing file is overwritten."""
    with create_file(path) as file:
        file.write(content)


_NAMED = 5
"""Maximum number of paths in a message."""


def find_writable(paths: Iterable[str | Path]) -> list[Path]:
    """Return which of these paths, and of the folders that lead to them, every user can write.

    Links are followed, and their targets returned. In a folder with the sticky bit, such as
    ``/tmp``, other users can add names but cannot replace existing ones. Such a folder is returned
    only if it is one of ``paths``, not if it only leads to one. A path that does not exist, or is
    on a read-only mount, is not returned.
    """
    ways = _Ways()
    for path in paths:
        with suppress(OSError):  # the path does not exist yet, or the daemon cannot read it either
            ways.check(os.path.abspath(path))  # noqa: PTH100 - a Path would drop a ``..``
    return [Path(path) for path in ways.found if not _is_read_only(path)]


def how_to_mend(found: Sequence[Path], folders: Iterable[Path] = ()) -> str:
    """Return a sentence that names writable paths, and the command that removes the permission.

    Args:
        found: At least one path.
        folders: If more than ``_NAMED`` paths were found, and all are in one of these folders, the
            command covers that whole folder.
    """
    named, rest = found[:_NAMED], found[_NAMED:]
    command = f"chmod o-w {' '.join(shlex.quote(str(path)) for path in named)}"
    for folder in map(Path.resolve, folders if rest else ()):
        if all(path.is_relative_to(folder) for path in found):
            command = f"chmod -R o-w {shlex.quote(str(folder))}"
    others = f" and {len(rest)} more" if rest else ""
    return (
        f"every user of this machine can write {', '.join(map(str, named))}{others}, "
        f"and so run code as this daemon; run: {command}"
    )


class _Ways:
    """Follows paths, each folder once, and collects the paths that every user can write."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self._modes: dict[str, int] = {}
        self._real: dict[str, str] = {}
        self._pending: set[str] = set()

    def check(self, path: str) -> None:
        """Check a path, and all folders and links that lead to it."""
        real = self._follow(path)
        mode = self._modes.get(real, 0)
        if mode & stat.S_IWOTH and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            self.found[real] = None

    def _follow(self, path: str) -> str:
        """Return the target of a path, after checking each folder on the way.

        Raises:
            OSError: If the path leads nowhere.
        """
        real = self._real.get(path)
        if real is None:
            if path in self._pending:
                raise OSError(errno.ELOOP, "a link leads to itself")
            self._pending.add(path)
            try:
                real = self._real[path] = self._step(path)
            finally:
                self._pending.discard(path)
        return real

    def _step(self, path: str) -> str:
        above, name = os.path.split(path)
        if not name:
            return path if above == path else self._follow(above)
        folder = self._follow(above)
        self._check_passed(folder)
        if name in {".", ".."}:
            return os.path.dirname(folder) if name == ".." else folder  # noqa: PTH120
        here = os.path.join(folder, name)  # noqa: PTH118
        mode = os.lstat(here).st_mode
        if stat.S_ISLNK(mode):
            return self._follow(os.path.join(folder, os.readlink(here)))  # noqa: PTH115, PTH118
        self._modes[here] = mode
        return here

    def _check_passed(self, folder: str) -> None:
        mode = self._modes.get(folder, 0)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            self.found[folder] = None


def _is_read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False
