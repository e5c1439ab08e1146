"""Paths of files, and patterns of them, as the author of a DAG writes them: text or ``Path``."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ("absolute", "in_key", "in_one_folder", "parted")

_LONGEST_IN_KEY = 900
"""Bytes of a path that stands in the key of an event, which has at most 1,024."""


def absolute(path: str | Path) -> str:
    """Return a path as text.

    Raises:
        ValueError: If it is relative, names no file, or no file can be called so.
    """
    text = str(path)
    if not text.startswith("/") or not os.path.basename(text):  # noqa: PTH119
        raise ValueError(f"path must be absolute and name a file, got {text!r}")
    return _possible(text)


def in_one_folder(pattern: str | Path) -> str:
    """Return a pattern as text, whose last part alone may stand for several files.

    Raises:
        ValueError: If it is relative, names no file, stands for several folders, or no file can
            be called so.
    """
    text = str(pattern)
    folder, glob = os.path.split(text)
    if not folder.startswith("/") or not glob:
        raise ValueError(f"pattern must be absolute and name files, got {text!r}")
    if any(sign in folder for sign in "*?["):
        raise ValueError(f"pattern must be in one folder: {folder!r} stands for many")
    return _possible(text)


def parted(path: str | Path) -> tuple[str, str]:
    """Return what stands before the name, with its slash, and the name."""
    text = str(path)
    name = os.path.basename(text)  # noqa: PTH119
    return text.removesuffix(name), name


def in_key(path: str | Path) -> str:
    """Return what a path is called in a key: itself, or a digest if it is too long for that."""
    text = str(path)
    if 4 * len(text) <= _LONGEST_IN_KEY:
        return text  # however it is encoded
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= _LONGEST_IN_KEY else hashlib.sha256(data).hexdigest()


def _possible(text: str) -> str:
    """Refuse what no file system has: a NUL, or text that cannot be encoded."""
    try:
        is_possible = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise ValueError(f"no file can be called {text!r}")
    return text
