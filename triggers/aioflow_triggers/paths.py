"""Validation of file paths and patterns, given as text or ``Path``."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

__all__ = ("absolute", "in_key", "in_one_folder", "parted")

_LONGEST_IN_KEY = 900
"""Maximum bytes of a path in the key of an event. A key is limited to 1,024 bytes."""


def absolute(path: str | Path) -> str:
    """Return an absolute path as text.

    Raises:
        ValueError: If it is relative, names no file, or is not a possible file name.
    """
    text = str(path)
    if not text.startswith("/") or not os.path.basename(text):  # noqa: PTH119
        raise ValueError(f"path must be absolute and name a file, got {text!r}")
    return _possible(text)


def in_one_folder(pattern: str | Path) -> str:
    """Return a pattern as text. Only the last part of it may have wildcards.

    Raises:
        ValueError: If it is relative, names no file, has wildcards in its folder, or is not a
            possible file name.
    """
    text = str(pattern)
    folder, glob = os.path.split(text)
    if not folder.startswith("/") or not glob:
        raise ValueError(f"pattern must be absolute and name files, got {text!r}")
    if any(sign in folder for sign in "*?["):
        raise ValueError(f"pattern must be in one folder: {folder!r} stands for many")
    return _possible(text)


def parted(path: str | Path) -> tuple[str, str]:
    """Return the part of a path before the name, including its slash, and the name."""
    text = str(path)
    name = os.path.basename(text)  # noqa: PTH119
    return text.removesuffix(name), name


def in_key(path: str | Path) -> str:
    """Return a path for use in a key: the path itself, or a digest of it if it is too long."""
    text = str(path)
    if 4 * len(text) <= _LONGEST_IN_KEY:
        return text  # short enough in any encoding
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= _LONGEST_IN_KEY else hashlib.sha256(data).hexdigest()


def _possible(text: str) -> str:
    """Return a path unchanged. Raise if it has a NUL or cannot be encoded as a file name."""
    try:
        is_possible = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise ValueError(f"no file can be called {text!r}")
    return text
