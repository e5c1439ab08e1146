"""Make folders and files for their owner alone, whatever the umask.

User code has the umask of the daemon, so what is made in the home says its mode each time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

__all__ = ("create_file", "make_folder", "write_file")

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600


def make_folder(path: Path) -> None:
    """Make a folder and what is missing above it; one that exists keeps its mode."""
    try:
        path.mkdir(exist_ok=True, mode=_FOLDER_MODE)
    except FileNotFoundError:
        if path.parent == path:
            raise
        make_folder(path.parent)  # `parents=True` would make them with the mode of the umask
        path.mkdir(exist_ok=True, mode=_FOLDER_MODE)


def create_file(path: Path) -> BinaryIO:
    """Open a file to write, and cut one that exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, _FILE_MODE), "wb")


def write_file(path: Path, content: bytes) -> None:
    """Write a whole file, and replace one that exists."""
    with create_file(path) as file:
        file.write(content)
