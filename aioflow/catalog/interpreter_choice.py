"""The interpreter that a DAG file chooses, determined without running any of its code.

A comment in one of the first lines of the file names the interpreter. Without a comment, the
nearest ``aioflow.toml`` in a folder above that names one applies. An empty name means the daemon's
own interpreter.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from pathlib import Path, PurePosixPath

import msgspec

from aioflow.catalog.file_patterns import TABLE_FILE

__all__ = (
    "HEADER_LINES",
    "OURS",
    "UNCLEAR",
    "InterpreterChoice",
    "choice_of_file",
    "choice_of_folder",
    "name_in_comment",
)

UNCLEAR = "file.python_unclear"
"""Reason for the failure of a file if it is unclear which interpreter the file chooses."""

HEADER_LINES = 20
"""The comment is recognized in this number of lines at the top of a DAG file."""

_COMMENT = re.compile(rb"^#\s*aioflow:\s*python\s*=\s*(.*?)\s*$", re.MULTILINE)
_QUOTED = re.compile(r"""(["'])(.*)\1""")
_TABLE_BYTES = 1024 * 1024


class InterpreterChoice(msgspec.Struct, frozen=True):
    """A chosen interpreter.

    Attributes:
        name: Its name in the settings; empty for the daemon's own.
        problem: Why it is unclear which interpreter is meant; empty if it is clear.
    """

    name: str = ""
    problem: str = ""


OURS = InterpreterChoice()


def name_in_comment(content: bytes) -> str | None:
    """Return the name in the comment ``# aioflow: python = "name"``; ``None`` if there is none."""
    end = -1
    for _ in range(HEADER_LINES):
        end = content.find(b"\n", end + 1)
        if end < 0:
            end = len(content)
            break
    found = _COMMENT.search(content, 0, end)
    if found is None:
        return None
    text = found[1].decode(errors="replace")
    quoted = _QUOTED.fullmatch(text)
    return quoted[2] if quoted else text


def choice_of_folder(folder: Path, prefix: str, above: InterpreterChoice) -> InterpreterChoice:
    """Return the choice that applies to files of a folder that do not name an interpreter.

    Args:
        prefix: Path of the folder below the DAG folder, for messages.
        above: The choice that applies to the folder above.
    """
    path = folder / TABLE_FILE
    try:
        status = path.stat()
    except OSError:
        return above
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    found = _read(str(path), f"{prefix}{TABLE_FILE}", stamp)
    return above if found is None else found


def choice_of_file(folder: Path, file: str) -> InterpreterChoice:
    """Return the choice of a single file.

    Args:
        folder: Its DAG folder.
        file: Its path in that folder.
    """
    try:
        named = name_in_comment((folder / file).read_bytes())
    except OSError:
        return OURS
    if named is not None:
        return InterpreterChoice(named)
    choice, prefix = OURS, ""
    for part in ("", *PurePosixPath(file).parts[:-1]):
        prefix = f"{prefix}{part}/" if part else ""
        choice = choice_of_folder(folder / prefix, prefix, choice)
    return choice


@lru_cache(maxsize=1_024)
def _read(path: str, name: str, _: tuple[int, int, int]) -> InterpreterChoice | None:
    """Return the choice in a file; ``None`` if there is none. Cached for each stamp of the file."""
    try:
        with Path(path).open("rb") as file:
            value = tomllib.loads(file.read(_TABLE_BYTES).decode()).get("python")
    except OSError:
        return None
    except ValueError as exc:
        return InterpreterChoice(problem=f"{name} is not understood: {exc}")
    if value is None:
        return None
    if not isinstance(value, str):
        return InterpreterChoice(problem=f"python in {name} must be a text, not {value!r}")
    return InterpreterChoice(value)
