"""How much space is left on the disk of a path, and whether that is too little to work with."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ("LEAST_BYTES", "full_disk", "require_space")

LEAST_BYTES = 1024 * 1024
"""With less than this free a disk counts as full: a commit and its log need some of it."""


def full_disk(path: Path) -> str:
    """Return a sentence that names the full disk of a path; empty if space is left.

    A file that does not exist yet is on the disk of its folder. What cannot be asked is not full.
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
    """Raise the error of a full disk unless a file of this size leaves the least space free.

    Written to its end the file would take that space from the database for a moment.
    """
    if _free_bytes(folder) < size + LEAST_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
