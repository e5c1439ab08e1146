"""Local files that a module may import, including those imported only later.

An import inside a function runs when a task does. Its file must be part of the version all the
same, so imports are read from the source. Imports by a computed name (``importlib.import_module``)
are found only if they have already happened.
"""

from __future__ import annotations

import ast
import os.path
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = ("UNREADABLE", "Reach", "named_files", "reachable")

UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors that keep a file from being read as Python; importing it will report them."""


class Reach:
    """Local files, and all files reachable through their imports; each file is read once.

    Attributes:
        files: Relative to the folder.
        wanted: Paths, without suffix, at which an import found nothing: a file created there would
            be imported.

    Args:
        folder: Where imports are resolved, like the first entry of ``sys.path``.
        on_source: Called with each file and its syntax tree.
    """

    def __init__(
        self, folder: Path, on_source: Callable[[str, ast.AST], None] | None = None
    ) -> None:
        self.files: set[str] = set()
        self.wanted: set[str] = set()
        self._folder = folder
        self._on_source = on_source

    def add(self, files: Iterable[str]) -> None:
        """Follow the imports of these files."""
        pending = set(files) - self.files
        while pending:
            file = pending.pop()
            self.files.add(file)
            tree = _tree(self._folder / file)
            if self._on_source is not None:
                self._on_source(file, tree)
            for name in set(_imports(tree, _package(file))):
                found, missing = _look(self._folder, name)
                pending |= found - self.files
                self.wanted |= missing


def reachable(folder: Path, files: Iterable[str]) -> set[str]:
    """Return these files and all files below ``folder`` reachable through their imports.

    Args:
        folder: Where imports are resolved, like the first entry of ``sys.path``.
        files: Relative to the folder, as are those returned.
    """
    reach = Reach(folder)
    reach.add(files)
    return reach.files


def _package(file: str) -> tuple[str, ...]:
    return Path(file).parts[:-1]


def named_files(folder: Path, tree: ast.AST, package: tuple[str, ...]) -> set[str]:
    """Return the local files that the imports in a part of a module lead to directly.

    Args:
        package: The folders that contain the module.
    """
    return {file for name in _imports(tree, package) for file in _look(folder, name)[0]}


def _tree(path: Path) -> ast.AST:
    try:
        return ast.parse(path.read_bytes())
    except UNREADABLE:
        return ast.Module([], [])


def _imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the modules named in imports; some may be names inside modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield base
            for alias in node.names:
                yield (*base, alias.name)


def _base(node: ast.ImportFrom, package: tuple[str, ...]) -> tuple[str, ...]:
    named = tuple(node.module.split(".")) if node.module else ()
    # One dot is the package itself, each further one a level up.
    return (*package[: len(package) - node.level + 1], *named) if node.level else named


def _look(folder: Path, name: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Return the files executed to import a module, and the paths at which none was found.

    The files are those of the module itself and of the packages that contain it.
    """
    found: set[str] = set()
    missing: set[str] = set()
    for length in range(1, len(name) + 1):
        place = "/".join(name[:length])
        path = os.path.join(folder, place)  # noqa: PTH118 - some hundred times for each file
        is_folder = os.path.isdir(path)  # noqa: PTH112
        is_file = os.path.isfile(f"{path}.py")  # noqa: PTH113
        if is_file:
            found.add(f"{place}.py")
        if is_folder and os.path.isfile(f"{path}/__init__.py"):  # noqa: PTH113
            found.add(f"{place}/__init__.py")
        elif is_folder:
            missing.add(f"{place}/__init__")
        elif not is_file:
            missing.add(place)
            break
    return found, missing
