"""Versions: the hash of a file with what it imports, and the folder that keeps them for ever."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

__all__ = ("version_of", "write_snapshot")


def version_of(file: str, sources: Mapping[str, bytes], told: str = "") -> str:
    """Return the version of a DAG file with the local modules it imports.

    Args:
        told: Settings that its description depends on, if they are unusual: a run keeps them
            with its version.
    """
    digest = hashlib.sha256()
    parts = [file.encode(), *([told.encode()] if told else [])]
    for name in sorted(sources):
        parts += [name.encode(), sources[name]]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # so that no two ways to cut them agree
        digest.update(part)
    return digest.hexdigest()


def write_snapshot(code: Path, version: str, sources: Mapping[str, bytes]) -> None:
    """Make ``<code>/<version>/`` durably, all at once; one that is there is kept as it is."""
    target = code / version
    if target.exists():
        return
    code.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = code / f".{version}.{secrets.token_hex(4)}.part"
    try:
        for name, content in sources.items():
            _write_file(temporary / name, content)
        for place, _, _ in os.walk(temporary):
            _sync_folder(Path(place))
        try:
            temporary.rename(target)
        except OSError:
            if not target.exists():  # else another made the same: it is as good
                raise
        _sync_folder(code)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
