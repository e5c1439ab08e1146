"""Which local files a module may import, also those it would import only later.

An import inside a function runs when a task does. Its file must be in the snapshot all the same,
so imports are read from the source. Imports by name as data (``importlib.import_module``) are
seen only if they have happened.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = ("UNREADABLE", "named_files", "reachable")

UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
"""What keeps a file from being read as Python; whoever imports it will say so."""


def reachable(folder: Path, files: Iterable[str]) -> set[str]:
    """Return these files and all below ``folder`` that their imports lead to.

    Args:
        folder: Where imports begin, as the first entry of ``sys.path``.
        files: Relative to it, as are those returned.
    """
    found: set[str] = set()
    pending = set(files)
    while pending:
        file = pending.pop()
        found.add(file)
        pending |= named_files(folder, _tree(folder / file), _package(file)) - found
    return found


def _package(file: str) -> tuple[str, ...]:
    return Path(file).parts[:-1]


def named_files(folder: Path, tree: ast.AST, package: tuple[str, ...]) -> set[str]:
    """Return the local files that the imports in a piece of a module lead to at once.

    Args:
        package: The folders the module is in.
    """
    return {file for name in _imports(tree, package) for file in _files(folder, name)}


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


def _files(folder: Path, name: tuple[str, ...]) -> Iterator[str]:
    """Yield what is executed to import a module: it, and the packages it is in."""
    for length in range(1, len(name) + 1):
        place = Path(*name[:length])
        for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if (folder / file).is_file():
                yield file.as_posix()
