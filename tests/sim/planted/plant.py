"""Plant a bug in this process: the modules it changes are compiled from their edited trees.

With the variables of ``environment`` a process, and every process that it starts, has the bug:
Python imports ``sitecustomize`` at its start, and that one, in ``site/``, calls ``install``.
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
"""Names the bug. The daemon passes variables to its children whose names begin like this."""


def environment(bug: PlantedBug | None) -> dict[str, str]:
    """Return the environment of a process that has a bug, or none."""
    folders = [str(ROOT), str(ROOT / "triggers")]
    chosen = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if bug is not None:
        folders.append(str(Path(__file__).parent / "site"))
        chosen[VARIABLE] = bug.name
    return {**chosen, "PYTHONPATH": os.pathsep.join(folders)}


def install(bug: PlantedBug) -> None:
    """Have the modules that a bug changes imported with it from now on.

    Raises:
        DoesNotApply: If one of them has been imported already.
    """
    if too_late := sorted(bug.modules & sys.modules.keys()):
        raise DoesNotApply(f"{bug.name}: {', '.join(too_late)} has been imported without it")
    sys.meta_path.insert(0, _Finder(bug))


def check(bug: PlantedBug) -> None:
    """Compile every module that a bug changes.

    Raises:
        DoesNotApply: If it does not fit.
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
        """Compile the edited tree; nothing of it is cached on disk."""
        return self._bug.compile(fullname, self.get_data(self.path), self.path)
