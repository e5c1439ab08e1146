"""Local files that a module may import, and digests of the code that trigger classes depend on.

Imports are read from the source, because an import inside a function runs only when a task runs,
and its file must be part of the version, too. Imports by a computed name
(``importlib.import_module``) are found only if they have already happened.

The parser detects changed triggers by their digests. A digest covers the class, all names of its
module that it uses directly or indirectly, the whole local modules imported by those names, and the
data files named there. Names looked up as data (``globals()["f"]``) are not covered. If only the
tasks of a DAG file were edited, the digests of its triggers do not change.
"""

from __future__ import annotations

import ast
import hashlib
import os.path
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from aioflow.author.trigger import Trigger, class_path
from aioflow.worker.code.data_files import UsedFiles

__all__ = ("UNREADABLE", "Reach", "named_files", "reachable", "trigger_digests")

UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors that prevent reading a file as Python. The import of the file will report them."""


class Reach:
    """Local files, and all files reachable through their imports. Each file is read once.

    Attributes:
        files: Paths of the files, relative to the folder.
        wanted: Paths, without suffix, at which an import found no file. A file created there later
            would be imported.

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
                found, missing = _find_files(self._folder, name)
                pending |= found - self.files
                self.wanted |= missing


def reachable(folder: Path, files: Iterable[str]) -> set[str]:
    """Return ``files``, and all files below ``folder`` that are reachable through their imports.

    Args:
        folder: Where imports are resolved, like the first entry of ``sys.path``.
        files: Paths relative to the folder, as are the returned ones.
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
    return {file for name in _imports(tree, package) for file in _find_files(folder, name)[0]}


def _tree(path: Path) -> ast.AST:
    try:
        return ast.parse(path.read_bytes())
    except UNREADABLE:
        return ast.Module([], [])


def _imports(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names in imports, each split at its dots.

    A name may be a module, or a function or class in a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = _import_base(node, package)
            yield base
            for alias in node.names:
                yield (*base, alias.name)


def _import_base(node: ast.ImportFrom, package: tuple[str, ...]) -> tuple[str, ...]:
    named = tuple(node.module.split(".")) if node.module else ()
    # One dot is the package itself. Each further dot is one level up.
    return (*package[: len(package) - node.level + 1], *named) if node.level else named


def _find_files(folder: Path, name: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Return the files executed to import a module, and the paths at which a file is missing.

    The files are the module itself and the packages that contain it.
    """
    found: set[str] = set()
    missing: set[str] = set()
    for length in range(1, len(name) + 1):
        place = "/".join(name[:length])
        path = os.path.join(folder, place)  # noqa: PTH118 - called hundreds of times per file
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


_STAR = "*"


def trigger_digests(folder: Path) -> dict[str, str]:
    """Return a digest for each trigger class of this process that is defined in a folder.

    The keys are class paths. A class inside a function has no digest, and cannot run as a trigger.
    """
    modules: dict[str, _Module | None] = {}
    found: dict[str, str] = {}
    for cls in _subclasses(Trigger):
        if cls.__module__ not in modules:
            modules[cls.__module__] = _module_of(cls.__module__, folder)
        module = modules[cls.__module__]
        if module is None or "<locals>" in cls.__qualname__:
            continue
        try:
            digest = module.digest(cls.__qualname__.partition(".")[0])
        except UNREADABLE:
            continue  # a file was deleted in the meantime
        found[class_path(cls)] = digest
    return found


def _subclasses(cls: type) -> Iterator[type]:
    seen: set[type] = set()
    pending = [cls]
    while pending:
        derived: list[type] = type.__subclasses__(pending.pop())
        for below in derived:
            if below not in seen:
                seen.add(below)
                pending.append(below)
                yield below


def _module_of(name: str, folder: Path) -> _Module | None:
    """Return the module with a name, or ``None`` if it is outside the folder."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if not isinstance(file, str) or not Path(file).is_relative_to(folder):
        return None
    try:
        return _Module(folder, Path(file).relative_to(folder), ast.parse(Path(file).read_bytes()))
    except UNREADABLE:
        return None


class _Module:
    """A local module, split into its top-level statements.

    Args:
        folder: The folder in which imports are resolved.
        file: Path of the module, relative to ``folder``.
    """

    def __init__(self, folder: Path, file: Path, tree: ast.Module) -> None:
        self._folder = folder
        self._file = file.as_posix()
        self._package = file.parts[:-1]
        self._statements = tree.body
        self._binding: dict[str, list[int]] = {}
        for index, statement in enumerate(tree.body):
            for name in set(_bound_names(statement)):
                self._binding.setdefault(name, []).append(index)

    def digest(self, name: str) -> str:
        """Return the digest of a name and everything it depends on."""
        whole = hashlib.sha256()
        files: set[str] = set()
        needed = [self._statements[index] for index in sorted(self._needed(name))]
        for statement in needed:
            whole.update(ast.dump(statement).encode("utf-8", "surrogatepass"))
            files |= named_files(self._folder, statement, self._package)
        for file in sorted(reachable(self._folder, files)):
            whole.update(file.encode() + b"\0" + (self._folder / file).read_bytes())
        used = UsedFiles(self._folder, self._file)
        used.take(self._file, ast.Module(needed, []))
        for beside in used.files():
            whole.update(beside.encode() + b"\0" + (self._folder / beside).read_bytes())
        return whole.hexdigest()

    def _needed(self, name: str) -> set[int]:
        """Return the indexes of the statements that a name depends on."""
        found: set[int] = set()
        pending = [*self._binding.get(_STAR, ()), *self._binding.get(name, ())]
        while pending:
            index = pending.pop()
            if index in found:
                continue
            found.add(index)
            for node in ast.walk(self._statements[index]):
                if isinstance(node, ast.Name):
                    pending += self._binding.get(node.id, ())
        return found


def _bound_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds or modifies."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
        return
    for node in ast.walk(statement):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.alias():
                yield (node.asname or node.name).partition(".")[0]
            case ast.Name(ctx=ast.Store() | ast.Del()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                yield from _root_name(node.value)
            case _:
                pass


def _root_name(target: ast.expr) -> Iterator[str]:
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    if isinstance(target, ast.Name):
        yield target.id
