"""Contents and entries of paths in a DAG folder that are not modules. Blocks."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import msgspec

from aioflow.worker.data_files import FILE_LIMIT_BYTES

__all__ = ("Content", "Entries", "content_of", "is_link_inside", "list_entries", "read")

_SNIFFED = 8_000
"""A file with a zero byte among this many first bytes is not text, as for git."""


class Content(msgspec.Struct, frozen=True):
    """The content of a file, as last seen.

    Attributes:
        stamp: Modification time, size and inode. While it is unchanged, so is the content.
        digest: Digest of its content; empty if it is too large.
    """

    stamp: tuple[int, ...]
    digest: bytes
    is_text: bool

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stamp[1]

    @property
    def is_too_large(self) -> bool:
        """True if the file is too large to be read."""
        return not self.digest


class Entries(msgspec.Struct, frozen=True):
    """The entries of a folder, by name: folders, all others, and which of both are links."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    links: frozenset[str] = frozenset()


def read(path: Path) -> bytes | None:
    """Return the content of a file; ``None`` if it cannot be read, or is now too large."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= FILE_LIMIT_BYTES else None


def content_of(path: str, before: Content | None) -> Content | None:
    """Return the content of a file, reading it if it has changed; ``None`` if there is none.

    If the file cannot be examined, return it as last seen.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path takes longer to make than to look at
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return before
    if not stat.S_ISREG(status.st_mode):
        return None
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    if before is not None and before.stamp == stamp:
        return before
    if status.st_size > FILE_LIMIT_BYTES:
        return Content(stamp, b"", is_text=False)
    content = read(Path(path))
    if content is None:
        return before
    return Content(stamp, hashlib.sha256(content).digest(), b"\0" not in content[:_SNIFFED])


def list_entries(path: Path) -> Entries:
    """Return the entries of a folder; none if it cannot be listed."""
    folders: list[str] = []
    files: list[str] = []
    links: set[str] = set()
    try:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if not entry.name.isprintable():  # nor are undecodable bytes
                    continue
                if entry.is_symlink():
                    links.add(entry.name)
                (folders if _is_folder(entry) else files).append(entry.name)
    except OSError:
        pass
    return Entries(tuple(folders), tuple(files), frozenset(links))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_link_inside(folder: Path, place: str, name: str) -> bool:
    """Return whether a link leads into the DAG folder, or into the folder it lies in."""
    target = os.path.realpath(folder / name)
    roots = (os.path.realpath(folder), os.path.realpath(folder / place))
    return any(target.startswith(f"{root}/") for root in roots)
