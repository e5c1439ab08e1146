"""Notice that installed packages changed under a process that runs code of them.

A process keeps a module as it was imported. After an upgrade it would run old code beside
processes that began later; after an installation it may not find what the others do.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple

__all__ = ("LOOK_SECONDS", "SETTLE_SECONDS", "InstalledPackages")

LOOK_SECONDS = 5.0
"""Between two looks, each of which costs a ``stat`` per imported file: a few milliseconds."""

SETTLE_SECONDS = 2.0
"""While something was written so recently, the installation is taken to go on."""

_OURS = ("aioflow", "aioflow_triggers")
_OWN_DISTRIBUTION = "aioflow_engine-"
_PLACES = frozenset(("site-packages", "dist-packages"))
_SUFFIXES = (".dist-info", ".egg-info", ".egg-link", ".pth")
_STDLIB = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - compared with paths as text
_GONE = (0, 0)


class _Change(NamedTuple):
    """What is no longer as it was, and when something of that was last written."""

    name: str
    written_ns: int


class InstalledPackages:
    """Compares what is installed with what it was when this process began or imported it.

    Looks at the files of imported modules and at the metadata of distributions. Snapshots of
    versions never change, and the standard library is not looked at. Neither is aioflow: while
    the daemon is of the old release its children are not to be of the new one, so from an
    upgrade of aioflow on no change is reported.

    Args:
        code: Folder of the version snapshots.
        wall_ns: Tells the time, in nanoseconds since 1970.

    Attributes:
        changed: Name of a module or distribution that changed; empty until one did. Stays.
    """

    def __init__(self, code: str, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self.changed = ""
        self._wall_ns = wall_ns
        self._code = code.rstrip(os.sep) + os.sep
        self._guard = threading.Lock()
        self._seen = set(sys.modules)
        self._files: dict[str, tuple[str, tuple[int, int]]] = {}
        self._places = {place: _stamp(place) for place in sys.path if _is_place(place)}
        self._distributions = _distributions(self._places)
        self._is_upgraded = False
        self._looked_at = time.monotonic()
        self._unsettled = ""

    def watch(self) -> None:
        """Look from a thread of its own, until something changed."""
        threading.Thread(target=self._watch, name="aioflow-packages", daemon=True).start()

    def _watch(self) -> None:
        while not self.changed:
            time.sleep(LOOK_SECONDS)
            self.look()

    def look_if_due(self) -> str:
        """Look unless the last look was less than ``LOOK_SECONDS`` ago; return ``changed``."""
        if time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self.look()
        return self.changed

    def look(self) -> str:
        """Look, and return ``changed``: set once the installation seems to be over."""
        with self._guard:
            self._look()
        return self.changed

    def look_again(self, failed_at: float) -> str:
        """Look after something failed that a change may explain, and return ``changed``.

        An installation that still goes on counts.

        Args:
            failed_at: When it failed, on the monotonic clock. A look since then will do.
        """
        with self._guard:
            if self._looked_at < failed_at:
                self._look()
            self.changed = self.changed or self._unsettled
        return self.changed

    def _look(self) -> None:
        self._looked_at = time.monotonic()
        self._note_imports()
        change = None if self.changed or self._is_upgraded else self._find()
        self._unsettled = "" if change is None else change.name
        # A time that is still to come tells nothing.
        if change and not 0 <= self._wall_ns() - change.written_ns < SETTLE_SECONDS * 1e9:
            self.changed = change.name

    def _note_imports(self) -> None:
        for name in set(sys.modules) - self._seen:
            self._seen.add(name)
            path = self._path_of(sys.modules.get(name))
            if path and name.partition(".")[0] not in _OURS:
                self._files[name] = path, _stamp(path)

    def _path_of(self, module: object) -> str:
        """Return the file of a module of an installed package; empty for any other."""
        if type(module) is not ModuleType:  # a lazy one would be loaded by a look
            return ""
        spec = module.__dict__.get("__spec__")
        path = spec.origin if isinstance(spec, ModuleSpec) and spec.has_location else None
        if not path or path.startswith(self._code):
            return ""
        in_place = any(path.startswith(place + os.sep) for place in self._places)
        return path if in_place or not path.startswith(_STDLIB) else ""

    def _find(self) -> _Change | None:
        """Return a change: of metadata first, which has the name that people know."""
        distributions = self._changed_distributions()
        if any(name.startswith(_OWN_DISTRIBUTION) for name in distributions):
            self._is_upgraded = True
            return None
        files = {name: path for name, (path, stamp) in self._files.items() if _stamp(path) != stamp}
        if not distributions and not files:
            return None
        # The folder of a file tells when the file was removed.
        touched = {*files.values(), *map(os.path.dirname, files.values()), *self._places}
        return _Change(next(iter((*distributions, *files))), max(_stamp(p)[0] for p in touched))

    def _changed_distributions(self) -> list[str]:
        """Return the names of distributions that came or changed, then of those that are gone."""
        places = {place: _stamp(place) for place in self._places}
        if places == self._places:
            return []
        now = _distributions(places)
        changed = {name for name, _ in now.items() ^ self._distributions.items()}
        if not changed:
            self._places = places
        return sorted(changed, key=lambda name: (name not in now, name))


def _is_place(place: str) -> bool:
    return os.path.basename(place) in _PLACES  # noqa: PTH119 - as `sys.path` has it


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - some thousand times for each look
    except OSError:
        return _GONE
    return status.st_mtime_ns, status.st_size


def _distributions(places: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Return the names of what is installed, each with when it was."""
    found: dict[str, int] = {}
    for place in places:
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    name, dot, _ = entry.name.rpartition(".")
                    if entry.name.endswith(_SUFFIXES) and dot:
                        found[name] = entry.stat().st_mtime_ns
        except OSError:
            continue  # it went away meanwhile, or never was
    return found
