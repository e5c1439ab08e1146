"""Find paths that every user of the machine may write: such a user could run code as the daemon.

A path is only as safe as what leads to it. So each folder above it is checked as well, and each
link is followed one step at a time, because its target lies in folders of its own.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ("find_writable", "how_to_mend")

_NAMED = 5
"""Paths that a message names, at most."""


def find_writable(paths: Iterable[str | Path]) -> list[Path]:
    """Return what every user may write, of these paths and of all that leads to them.

    Links are followed, and their targets returned. In a folder with the sticky bit, such as
    ``/tmp``, other users can add names but not replace ours: it may lead to a path, but not be
    one of the paths. What does not exist, and what lies on a read-only mount, is not writable.
    """
    ways = _Ways()
    for path in paths:
        with suppress(OSError):  # it does not exist yet, or cannot be read either
            ways.check(os.path.abspath(path))  # noqa: PTH100 - a Path would drop a ``..``
    return [Path(path) for path in ways.found if not _is_read_only(path)]


def how_to_mend(found: Sequence[Path], folders: Iterable[Path] = ()) -> str:
    """Return a sentence that names writable paths, and the command that takes the mode away.

    Args:
        found: At least one.
        folders: If many were found and all lie in one of these, the command is for all of it.
    """
    named, rest = found[:_NAMED], found[_NAMED:]
    command = f"chmod o-w {' '.join(shlex.quote(str(path)) for path in named)}"
    for folder in map(Path.resolve, folders if rest else ()):
        if all(path.is_relative_to(folder) for path in found):
            command = f"chmod -R o-w {shlex.quote(str(folder))}"
    others = f" and {len(rest)} more" if rest else ""
    return (
        f"every user of this machine can write {', '.join(map(str, named))}{others}, "
        f"and so run code as this daemon; run: {command}"
    )


class _Ways:
    """Follows paths, each folder once, and collects what every user may write."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self._modes: dict[str, int] = {}
        self._real: dict[str, str] = {}
        self._pending: set[str] = set()

    def check(self, path: str) -> None:
        """Check a path and all that leads to it."""
        real = self._follow(path)
        mode = self._modes.get(real, 0)
        if mode & stat.S_IWOTH and (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            self.found[real] = None

    def _follow(self, path: str) -> str:
        """Return where a path leads, having checked each folder on the way.

        Raises:
            OSError: If it leads nowhere.
        """
        real = self._real.get(path)
        if real is None:
            if path in self._pending:
                raise OSError(errno.ELOOP, "a link leads to itself")
            self._pending.add(path)
            try:
                real = self._real[path] = self._step(path)
            finally:
                self._pending.discard(path)
        return real

    def _step(self, path: str) -> str:
        above, name = os.path.split(path)
        if not name:
            return path if above == path else self._follow(above)
        folder = self._follow(above)
        self._check_passed(folder)
        if name in {".", ".."}:
            return os.path.dirname(folder) if name == ".." else folder  # noqa: PTH120
        here = os.path.join(folder, name)  # noqa: PTH118
        mode = os.lstat(here).st_mode
        if stat.S_ISLNK(mode):
            return self._follow(os.path.join(folder, os.readlink(here)))  # noqa: PTH115, PTH118
        self._modes[here] = mode
        return here

    def _check_passed(self, folder: str) -> None:
        mode = self._modes.get(folder, 0)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            self.found[folder] = None


def _is_read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False
