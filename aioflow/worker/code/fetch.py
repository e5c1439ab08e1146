"""Download of a version's code from the daemon, for a machine without the daemon's home."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import msgspec

__all__ = (
    "CODE_QUERY",
    "read_version",
    "write_version",
)

CODE_QUERY = "code"
"""The kind of the query for the code of a version. Its body is the version, its reply the files."""


def read_version(folder: Path) -> bytes:
    """Return the files below a version's folder as a msgpack map. Blocks.

    Raises:
        OSError: If the files cannot be read. It is a ``FileNotFoundError`` if the folder is
            missing.
    """
    files = {}
    for parent, _, names in os.walk(folder, onerror=_raise):
        for name in names:
            path = Path(parent, name)
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return msgspec.msgpack.encode(files)


def _raise(error: OSError) -> None:
    raise error


def write_version(folder: Path, packed: bytes) -> None:
    """Create the folder of a version with its files, atomically. Blocks.

    Several processes of a machine may call this for the same folder at the same time.

    Raises:
        OSError: If the folder cannot be written.
        ValueError: If ``packed`` is not what ``read_version`` returns.
    """
    files = msgspec.msgpack.decode(packed, type=dict[str, bytes])
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(new, files)
        new.rename(folder)
    except BaseException as exc:
        shutil.rmtree(new, ignore_errors=True)
        if not (isinstance(exc, OSError) and folder.is_dir()):  # another process was faster
            raise


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"{name!r} is not a path within a version")
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
