"""Patterns that name files in a DAG folder, and the table beside DAG files that may hold them."""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path

from aioflow.worker.data_files import BadFiles, patterns_of

__all__ = ("MAGIC", "TABLE", "compiled", "read_table")

TABLE = "aioflow.toml"
"""Names files for all DAG files in its folder and below, except those that name their own."""

MAGIC = re.compile(r"[*?\[]")
"""Characters that make a path a pattern."""

_TABLE_BYTES = 1024 * 1024


def read_table(path: Path, place: str) -> tuple[str, ...] | BadFiles | None:
    """Return the patterns of a table in a folder; ``None`` if it has none."""
    try:
        with path.open("rb") as file:
            values = tomllib.loads(file.read(_TABLE_BYTES).decode())
        return patterns_of(values["files"], place) if "files" in values else None
    except OSError:
        return None
    except ValueError as exc:
        return BadFiles(f"{posixpath.join(place, TABLE)} is not understood: {exc}")


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for a pattern in which ``**`` matches any folders.

    Raises:
        BadFiles: If the pattern is invalid.
    """
    try:
        return re.compile(_expression(pattern))
    except re.error as exc:
        raise BadFiles(f"the pattern {pattern!r} in files is not understood: {exc}") from exc


def _expression(pattern: str) -> str:
    parts = pattern.split("/")
    found = ""
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if part == "**":
            found += ".*" if is_last else "(?:.*/)?"
        else:
            found += _PIECES.sub(_piece, part) + ("" if is_last else "/")
    return found


_PIECES = re.compile(r"\*+|\?|\[!?[^\]]+\]|.")


def _piece(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] == "*":
        return "[^/]*"
    if text == "?":
        return "[^/]"
    if text[0] == "[" and len(text) > 2:
        inner = text[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        return f"[^/{inner[1:]}]" if inner[0] == "!" else f"[{inner}]"
    return re.escape(text)
