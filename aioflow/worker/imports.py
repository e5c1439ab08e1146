"""Which local files a module may import, also those it would import only later.

An import inside a function runs when a task does. Its file must be in the snapshot all the same,
so imports are read from the source. Imports by name as data (``importlib.import_module``) are
seen only if they have happened.
"""

from __future__ import annotations

import ast
import os.path
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

__all__ = ("UNREADABLE", "Reach", "named_files", "reachable")

UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
"""What keeps a file from being read as Python; whoever imports it will say so."""


class Reach:
    """Local files, and all that their imports lead to; each is read once.

    Attributes:
        files: Relative to the folder.
        wanted: Where imports looked in vain, without the suffix: once something comes to such a
            place, they lead there.

    Args:
        folder: Where imports begin, as the first entry of ``sys.path``.
        on_source: Takes each file with its source, parsed.
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
    """Return these files and all below ``folder`` that their imports lead to.

    Args:
        folder: Where imports begin, as the first entry of ``sys.path``.
        files: Relative to it, as are those returned.
    """
    reach = Reach(folder)
    reach.add(files)
    return reach.files


def _package(file: str) -> tuple[str, ...]:
    return Path(file).parts[:-1]


def named_files(folder: Path, tree: ast.AST, package: tuple[str, ...]) -> set[str]:
    """Return the local files that the imports in a piece of a module lead to at once.

    Args:
        package: The folders the module is in.
    """
    return {file for name in _imports(tree, package) for file in _look(folder, name)[0]}


def _tree(path: Path) -> ast.AST:
    try:
        return ast.parse(path.read_bytes())
    except UNREADABLE:
        return ast.Module([], [])


def _imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the modules that imports name; some may be names inside of modules."""
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
    # One dot is the package itself, each further one a step up.
    return (*package[: len(package) - node.level + 1], *named) if node.level else named


def _look(folder: Path, name: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Return what is executed to import a module, and where it looked in vain.

    It is the module itself, and the packages it is in.
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
