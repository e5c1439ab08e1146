"""Planting a bug in this process: the modules it changes are compiled from edited syntax trees.

A process that gets the variables of ``environment`` has the bug, and so has every process that it
starts: on startup Python imports ``sitecustomize`` from ``site/``, which calls ``install``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType

from tests.sim.planted.bug import PlantedBug
from tests.sim.planted.edit import DoesNotApply

__all__ = ("VARIABLE", "check", "environment", "install")

ROOT = Path(__file__).parents[3]
VARIABLE = "PYTHON_PLANTED_BUG"
"""The variable that names the bug. The daemon passes variables with this prefix to its children."""


def environment(bug: PlantedBug | None) -> dict[str, str]:
    """Return the environment of a process with the bug, or of an ordinary process for ``None``."""
    folders = [str(ROOT), str(ROOT / "triggers")]
    chosen = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if bug is not None:
        folders.append(str(Path(__file__).parent / "site"))
        chosen[VARIABLE] = bug.name
    return {**chosen, "PYTHONPATH": os.pathsep.join(folders)}


def install(bug: PlantedBug) -> None:
    """From now on, import the modules that the bug changes with the bug in them.

    Raises:
        DoesNotApply: If one of the modules has been imported already.
    """
    if too_late := sorted(bug.modules & sys.modules.keys()):
        raise DoesNotApply(f"{bug.name}: {', '.join(too_late)} has been imported without it")
    sys.meta_path.insert(0, _Finder(bug))


def check(bug: PlantedBug) -> None:
    """Check that every module that the bug changes compiles.

    Raises:
        DoesNotApply: If an edit does not fit.
    """
    for module in bug.modules:
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise DoesNotApply(f"{bug.name}: there is no module {module}")
        bug.compile(module, Path(spec.origin).read_bytes(), spec.origin)


class _Finder(MetaPathFinder):
    def __init__(self, bug: PlantedBug) -> None:
        self._bug = bug

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._bug.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            raise DoesNotApply(f"{self._bug.name}: there is no module {fullname}")
        spec.loader = _Loader(self._bug, fullname, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, bug: PlantedBug, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._bug = bug

    def get_code(self, fullname: str) -> CodeType:
        """Compile the edited tree. Nothing is cached on disk."""
        return self._bug.compile(fullname, self.get_data(self.path), self.path)
