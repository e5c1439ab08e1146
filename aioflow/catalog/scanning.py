"""What lies in the DAG folders. Blocks; called in a thread."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

__all__ = ("Seen", "list_folders", "read_sources", "scan")

FILE_LIMIT_BYTES = 16 * 1024 * 1024
"""A larger ``.py`` file is data with the wrong name."""

_WORD = b"aioflow"

_logger = logging.getLogger(__name__)


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


def scan(folders: Sequence[Path], before: dict[str, Seen]) -> dict[str, Seen]:
    """Return all Python files by their path relative to their folder.

    Files whose stamp has not changed since ``before`` are not read again. Of two files with
    one relative path that of the first folder counts.
    """
    found: dict[str, Seen] = {}
    for folder in folders:
        for path in _python_files(folder):
            name = path.relative_to(folder).as_posix()
            if name not in found and (seen := _look(folder, path, before.get(name))) is not None:
                found[name] = seen
    return found


def list_folders(folders: Sequence[Path]) -> list[Path]:
    """Return the DAG folders and all below them that may hold Python files."""
    return [Path(place) for folder in folders for place, _, _ in _walk(folder)]


def read_sources(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the contents of these files of a folder; what is gone or lies outside is left out."""
    root, sources = folder.resolve(), {}
    for name in names:
        path = folder / name
        try:
            if path.resolve().is_relative_to(root) and ".." not in Path(name).parts:
                sources[name] = path.read_bytes()
        except OSError as exc:
            _logger.info("%s went away while it was read: %s", path, exc)
    return sources


def _look(folder: Path, path: Path, before: Seen | None) -> Seen | None:
    try:
        status = path.stat()
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if before is not None and (before.folder, before.stamp) == (folder, stamp):
            return before
        if status.st_size > FILE_LIMIT_BYTES:
            return None
        content = path.read_bytes()
    except OSError as exc:
        _logger.info("cannot read %s: %s", path, exc)
        return None
    return Seen(folder, stamp, hashlib.sha256(content).digest(), _WORD in content)


def _python_files(folder: Path) -> Iterator[Path]:
    for place, _, files in _walk(folder):
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("."):
                yield Path(place) / name


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk through links too, as mounted configuration is made of them, but never in a circle."""
    entered: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        try:
            status = Path(place).stat()
        except OSError:
            continue  # deleted since it was listed
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__pycache__")
        yield place, folders, files
