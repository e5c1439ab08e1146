"""Free space on a disk, files and folders for their owner alone, and paths that others can write.

User code shares the daemon's umask, so everything created in the home sets its mode explicitly. A
path that every user of the machine can write would let such a user run code as the daemon.
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
    "write_file",
)

LEAST_BYTES = 1024 * 1024
"""A disk with less free space than this counts as full: a commit and its log need some."""


def full_disk(path: Path) -> str:
    """Return a sentence that names the full disk of a path; empty if there is space left.

    A file that does not exist yet is on the disk of its folder. A disk that cannot be queried does
    not count as full.
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
    """Create a folder and its missing parents; one that exists keeps its mode."""
    try:
        path.mkdir(exist_ok=True, mode=_FOLDER_MODE)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_folder(path.parent)  # `parents=True` would create them with the mode of the umask
        path.mkdir(exist_ok=True, mode=_FOLDER_MODE)


def create_file(path: Path) -> BinaryIO:
    """Open a file for writing, and truncate one that exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, _FILE_MODE), "wb")


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file, replacing one that exists."""
    with create_file(path) as file:
        file.write(content)


_NAMED = 5
"""Maximum number of paths in a message."""


def find_writable(paths: Iterable[str | Path]) -> list[Path]:
    """Return what every user can write, among these paths and the folders that lead to them.

    Links are followed, and their targets returned. In a folder with the sticky bit, such as
    ``/tmp``, other users can add names but not replace existing ones: it may lead to a path, but
    not be one of the paths. A path that does not exist, or is on a read-only mount, is not
    writable.
    """
    ways = _Ways()
    for path in paths:
        with suppress(OSError):  # it does not exist yet, or cannot be read either
            ways.check(os.path.abspath(path))  # noqa: PTH100 - a Path would drop a ``..``
    return [Path(path) for path in ways.found if not _is_read_only(path)]


def how_to_mend(found: Sequence[Path], folders: Iterable[Path] = ()) -> str:
    """Return a sentence that names writable paths, and the command that removes the permission.

    Args:
        found: At least one path.
        folders: If many were found and all are in one of these, the command covers all of it.
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
    """Follows paths, each folder once, and collects what every user can write."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self._modes: dict[str, int] = {}
        self._real: dict[str, str] = {}
        self._pending: set[str] = set()

    def check(self, path: str) -> None:
        """Check a path and all that leads to it."""
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
