"""Detection of changes to installed packages while a process runs code from them.

A process keeps each module as it was when it was imported. After an upgrade, the process would run
old code while newer processes run new code. After an installation, it may not find a module that
newer processes find.
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

__all__ = ("POLL_SECONDS", "SETTLE_SECONDS", "InstalledPackages")

POLL_SECONDS = 5.0
"""Seconds between two checks. A check costs a ``stat`` per imported file: a few milliseconds."""

SETTLE_SECONDS = 2.0
"""Seconds without a write after which an installation counts as finished."""

_OURS = ("aioflow", "aioflow_triggers")
_OWN_DISTRIBUTIONS = ("aioflow_engine-", "aioflow_worker-")
_PLACES = frozenset(("site-packages", "dist-packages"))
_SUFFIXES = (".dist-info", ".egg-info", ".egg-link", ".pth")
_STDLIB = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - compared with paths as text
_GONE = (0, 0)


class _Change(NamedTuple):
    """A changed package, and the time of the last write to it."""

    name: str
    written_ns: int


class InstalledPackages:
    """Compares installed packages with their state at the start of this process or at import.

    Checks the files of imported modules and the metadata of distributions. Version folders, which
    never change, and the standard library are not checked. aioflow itself is not checked either,
    because the children of a daemon of the old release must not run the new release. After an
    upgrade of aioflow, no change is reported.

    Args:
        code: Folder of the code versions.
        wall_ns: Returns the time, in nanoseconds since 1970.

    Attributes:
        changed: Name of the first module or distribution found to have changed; empty before that.
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
        """Check in a background thread until a change is found."""
        threading.Thread(target=self._watch, name="aioflow-packages", daemon=True).start()

    def _watch(self) -> None:
        while not self.changed:
            time.sleep(POLL_SECONDS)
            self.check()

    def check_if_due(self) -> str:
        """Check unless the last check was less than ``POLL_SECONDS`` ago. Return ``changed``."""
        if time.monotonic() >= self._looked_at + POLL_SECONDS:
            self.check()
        return self.changed

    def check(self) -> str:
        """Check, and return ``changed``, which is set once the installation seems finished."""
        with self._guard:
            self._check()
        return self.changed

    def check_again(self, failed_at: float) -> str:
        """Check after a failure that a changed package may explain. Return ``changed``.

        A package counts as changed even if its installation is unfinished.

        Args:
            failed_at: Monotonic time of the failure. If a check has run since then, it is not
                repeated.
        """
        with self._guard:
            if self._looked_at < failed_at:
                self._check()
            self.changed = self.changed or self._unsettled
        return self.changed

    def _check(self) -> None:
        self._looked_at = time.monotonic()
        self._note_imports()
        change = None if self.changed or self._is_upgraded else self._find()
        self._unsettled = "" if change is None else change.name
        # A timestamp in the future does not show whether the installation is finished, so report
        # the change.
        if change and not 0 <= self._wall_ns() - change.written_ns < SETTLE_SECONDS * 1e9:
            self.changed = change.name

    def _note_imports(self) -> None:
        for name in set(sys.modules) - self._seen:
            self._seen.add(name)
            path = self._path_of(sys.modules.get(name))
            if path and name.partition(".")[0] not in _OURS:
                self._files[name] = path, _stamp(path)

    def _path_of(self, module: object) -> str:
        """Return the file of a module of an installed package; empty for any other module."""
        if type(module) is not ModuleType:  # checking a lazy module would load it
            return ""
        spec = module.__dict__.get("__spec__")
        path = spec.origin if isinstance(spec, ModuleSpec) and spec.has_location else None
        if not path or path.startswith(self._code):
            return ""
        in_place = any(path.startswith(place + os.sep) for place in self._places)
        return path if in_place or not path.startswith(_STDLIB) else ""

    def _find(self) -> _Change | None:
        """Return a change, preferably that of a distribution, because users know its name."""
        distributions = self._changed_distributions()
        if any(name.startswith(_OWN_DISTRIBUTIONS) for name in distributions):
            self._is_upgraded = True
            return None
        files = {name: path for name, (path, stamp) in self._files.items() if _stamp(path) != stamp}
        if not distributions and not files:
            return None
        # The removal of a file changes the timestamp of its folder.
        touched = {*files.values(), *map(os.path.dirname, files.values()), *self._places}
        return _Change(next(iter((*distributions, *files))), max(_stamp(p)[0] for p in touched))

    def _changed_distributions(self) -> list[str]:
        """Return the names of new or changed distributions, followed by the removed ones."""
        places = {place: _stamp(place) for place in self._places}
        if places == self._places:
            return []
        now = _distributions(places)
        changed = {name for name, _ in now.items() ^ self._distributions.items()}
        if not changed:
            self._places = places
        return sorted(changed, key=lambda name: (name not in now, name))


def _is_place(place: str) -> bool:
    return os.path.basename(place) in _PLACES  # noqa: PTH119 - a path as in `sys.path`


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - called thousands of times per check
    except OSError:
        return _GONE
    return status.st_mtime_ns, status.st_size


def _distributions(places: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Return the installed distributions with their modification times."""
    found: dict[str, int] = {}
    for place in places:
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    name, dot, _ = entry.name.rpartition(".")
                    if entry.name.endswith(_SUFFIXES) and dot:
                        found[name] = entry.stat().st_mtime_ns
        except OSError:
            continue  # it was removed in the meantime, or never existed
    return found
