"""Patterns for files in a DAG folder: those in ``.aioflowignore``, and those for data files.

``.aioflowignore`` has the same syntax as ``.gitignore``. An excluded file is not a DAG file, but
other files may still import it. An excluded folder is not searched. Data files are named in an
``aioflow.toml`` in a folder of DAG files, or in the DAG files themselves.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from pathspec import GitIgnoreSpec

from aioflow.worker.code.data_files import BadFiles, patterns_of

__all__ = ("IGNORE_FILE", "MAGIC", "TABLE_FILE", "Ignored", "compile_pattern", "read_table")

TABLE_FILE = "aioflow.toml"
"""File that names data files for the DAG files in its folder and below, except for DAG files that
name their own.
"""

MAGIC = re.compile(r"[*?\[]")
"""Characters that make a text a pattern instead of a path."""

_TABLE_BYTES = 1024 * 1024


def read_table(path: Path, place: str) -> tuple[str, ...] | BadFiles | None:
    """Return the patterns in an ``aioflow.toml``; ``None`` if it has no patterns.

    If they are invalid, return the error instead of raising it, so that the caller can cache it.
    """
    try:
        with path.open("rb") as file:
            values = tomllib.loads(file.read(_TABLE_BYTES).decode())
        return patterns_of(values["files"], place) if "files" in values else None
    except OSError:
        return None
    except ValueError as exc:
        return BadFiles(f"{posixpath.join(place, TABLE_FILE)} is not understood: {exc}")


def compile_pattern(pattern: str) -> re.Pattern[str]:
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


IGNORE_FILE = ".aioflowignore"


class Ignored:
    """The patterns that apply in one folder: its own, and those of all folders above it.

    Args:
        specs: The patterns, outermost folder first. Each has the path of its folder below the DAG
            folder with a trailing slash, or an empty path for the DAG folder itself.
    """

    def __init__(self, specs: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        self._specs = specs

    def below(self, place: Path, prefix: str, on_error: Callable[[Path, OSError], None]) -> Ignored:
        """Return the patterns for a folder below that has its own ``.aioflowignore``.

        Args:
            place: The folder.
            prefix: Path of the folder below the DAG folder, as in ``specs``.
            on_error: Called if the file cannot be read; the file is then ignored.
        """
        file = place / IGNORE_FILE
        try:
            text = file.read_text(errors="replace")
            spec = GitIgnoreSpec.from_lines(text.splitlines())
        except OSError as exc:
            on_error(file, exc)
            return self
        except ValueError as exc:  # an invalid pattern
            on_error(file, OSError(0, f"{IGNORE_FILE} is not understood: {exc}"))
            return self
        return Ignored((*self._specs, (prefix, spec)))

    def hides(self, path: str) -> bool:
        """Return whether a path below the DAG folder is excluded. Folders end in a slash.

        As in git, the patterns of deeper folders take precedence.
        """
        for prefix, spec in reversed(self._specs):
            verdict = spec.check_file(path.removeprefix(prefix)).include
            if verdict is not None:
                return verdict
        return False
