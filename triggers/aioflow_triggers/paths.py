"""Paths of files, and patterns of them, as the author of a DAG writes them: text or ``Path``."""

from __future__ import annotations

import os.path
from pathlib import Path

__all__ = ("absolute", "in_one_folder", "parted")


def absolute(path: str | Path) -> str:
    """Return a path as text.

    Raises:
        ValueError: If it is relative or names no file.
    """
    text = str(path)
    if not text.startswith("/") or not os.path.basename(text):  # noqa: PTH119
        raise ValueError(f"path must be absolute and name a file, got {text!r}")
    return text


def in_one_folder(pattern: str | Path) -> str:
    """Return a pattern as text, whose last part alone may stand for several files.

    Raises:
        ValueError: If it is relative, names no file, or stands for several folders.
    """
    text = str(pattern)
    folder, glob = os.path.split(text)
    if not folder.startswith("/") or not glob:
        raise ValueError(f"pattern must be absolute and name files, got {text!r}")
    if any(sign in folder for sign in "*?["):
        raise ValueError(f"pattern must be in one folder: {folder!r} stands for many")
    return text


def parted(path: str | Path) -> tuple[str, str]:
    """Return what stands before the name, with its slash, and the name."""
    text = str(path)
    name = os.path.basename(text)  # noqa: PTH119
    return text.removesuffix(name), name
