"""What lies in the DAG folders. Blocks; called in a thread.

Links are what they point to, under the name they have here: mounted and released
configuration is made of them. Only what the file system says is not there is gone; what cannot
be looked at for any other reason stays as it was last seen.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import msgspec

__all__ = ("NO_STAMP", "Found", "Seen", "list_folders", "read_sources", "scan")

FILE_LIMIT_BYTES = 16 * 1024 * 1024
"""A larger ``.py`` file is data with the wrong name."""

NO_STAMP = (-1, -1, -1)
"""That of no file."""

_WORD = b"aioflow"
_GONE = (FileNotFoundError, NotADirectoryError)

_logger = logging.getLogger(__name__)

_OnError: TypeAlias = Callable[[Path, OSError], None]
_Inode: TypeAlias = tuple[int, int]


class Seen(msgspec.Struct, frozen=True):
    """A Python file as it was found.

    Attributes:
        folder: The DAG folder it lies in.
        stamp: Time of change, size and inode; as long as it stays the content does.
        has_dags: Whether it may define DAGs: one that does not even name us cannot.
    """

    folder: Path
    stamp: tuple[int, int, int]
    digest: bytes
    has_dags: bool


class Found(msgspec.Struct, frozen=True):
    """What lies in the DAG folders, as far as could be seen.

    Attributes:
        files: All Python files by their path relative to their folder.
        unseen: Files and folders, by such paths, that could not be looked at.
        causes: Why not, in words, with the first place each struck.
    """

    files: dict[str, Seen] = {}
    unseen: frozenset[str] = frozenset()
    causes: dict[str, Path] = {}

    def hides(self, file: str) -> bool:
        """Whether this file may be there all the same."""
        return _is_below(file, self.unseen)


def scan(folders: Sequence[Path], before: Mapping[str, Seen]) -> Found:
    """Look for Python files.

    Files whose stamp has not changed since ``before`` are not read again, and those that cannot
    be looked at are taken from there. Of two files with one relative path that of the first
    folder counts.
    """
    files: dict[str, Seen] = {}
    unseen: set[str] = set()
    causes: dict[str, Path] = {}
    for folder in folders:
        blind = _Blind(folder)
        for path in _python_files(folder, blind.note):
            name = path.relative_to(folder).as_posix()
            if name in files:
                continue
            seen = _look(folder, path, before.get(name), blind.note)
            if seen is not None:
                files[name] = seen
        for name, seen in before.items():
            if name not in files and seen.folder == folder and _is_below(name, blind.names):
                files[name] = seen
        unseen |= blind.names
        causes = blind.causes | causes
    return Found(files, frozenset(unseen), causes)


class _Blind:
    """Collects what could not be looked at in one DAG folder, and why."""

    def __init__(self, folder: Path) -> None:
        self.names: set[str] = set()
        self.causes: dict[str, Path] = {}
        self._folder = folder

    def note(self, place: Path, exc: OSError) -> None:
        self.names.add(place.relative_to(self._folder).as_posix())
        self.causes.setdefault(exc.strerror or type(exc).__name__, place)


def list_folders(folders: Sequence[Path]) -> list[Path]:
    """Return the DAG folders and all below them that may hold Python files."""
    return [place for folder in folders for place, _ in _walk(folder, lambda place, exc: None)]


def read_sources(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of these files of a folder; what cannot be read is left out."""
    sources = {}
    for name in names:
        try:
            sources[name] = (folder / name).read_bytes()
        except OSError as exc:
            _logger.info("%s went away while it was read: %s", folder / name, exc)
    return sources


def _look(folder: Path, path: Path, before: Seen | None, on_error: _OnError) -> Seen | None:
    try:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if before is not None and (before.folder, before.stamp) == (folder, stamp):
            return before
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_LIMIT_BYTES:
            return None
        content = path.read_bytes()
    except _GONE:
        return None
    except OSError as exc:
        on_error(path, exc)
        return None
    return Seen(folder, stamp, hashlib.sha256(content).digest(), _WORD in content)


def _python_files(folder: Path, on_error: _OnError) -> Iterator[Path]:
    for place, files in _walk(folder, on_error):
        for name in files:
            yield place / name


def _walk(folder: Path, on_error: _OnError) -> Iterator[tuple[Path, list[str]]]:
    """Give each folder with its Python files, through links too, but never in a circle."""
    waiting: list[tuple[Path, frozenset[_Inode]]] = [(folder, frozenset())]
    while waiting:
        place, above = waiting.pop()
        try:
            status = place.stat()
            inode = (status.st_dev, status.st_ino)
            if inode in above:
                continue
            folders, files = _list(place, on_error)
        except _GONE:
            continue
        except OSError as exc:
            on_error(place, exc)
            continue
        yield place, files
        waiting += [(place / name, above | {inode}) for name in reversed(folders)]


def _list(place: Path, on_error: _OnError) -> tuple[list[str], list[str]]:
    folders, files = [], []
    with os.scandir(place) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            try:
                is_folder = entry.is_dir()
            except OSError as exc:
                on_error(place / entry.name, exc)
                continue
            if is_folder:
                folders.append(entry.name)
            elif entry.name.endswith(".py"):
                files.append(entry.name)
    return folders, files


def _is_below(name: str, places: AbstractSet[str]) -> bool:
    if not places:
        return False
    return name in places or any(str(above) in places for above in PurePosixPath(name).parents)
