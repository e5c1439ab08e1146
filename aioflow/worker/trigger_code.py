"""A digest of the code a trigger class depends on, by which a parser detects changed triggers.

It covers the class, all names of its module that it uses directly or indirectly, the whole local
modules imported by those names, and the data files named there. Names looked up as data
(``globals()["f"]``) are not covered. If only the tasks of a DAG file were edited, the digests of
its triggers do not change.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from aioflow.author.trigger import Trigger, class_path
from aioflow.worker.data_files import UsedFiles
from aioflow.worker.imports import UNREADABLE, named_files, reachable

__all__ = ("trigger_digests",)

_STAR = "*"


def trigger_digests(folder: Path) -> dict[str, str]:
    """Return a digest for each trigger class of this process that is defined in a folder.

    Keyed by class path. A class inside a function has no digest, and cannot run either.
    """
    modules: dict[str, _Module | None] = {}
    found: dict[str, str] = {}
    for cls in _subclasses(Trigger):
        if cls.__module__ not in modules:
            modules[cls.__module__] = _read(cls.__module__, folder)
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


def _read(name: str, folder: Path) -> _Module | None:
    """Return the module of this name, or ``None`` if it is outside the folder."""
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
        file: Relative to the folder.
    """

    def __init__(self, folder: Path, file: Path, tree: ast.Module) -> None:
        self._folder = folder
        self._file = file.as_posix()
        self._package = file.parts[:-1]
        self._statements = tree.body
        self._binding: dict[str, list[int]] = {}
        for index, statement in enumerate(tree.body):
            for name in set(_bound(statement)):
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


def _bound(statement: ast.stmt) -> Iterator[str]:
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
                yield from _root(node.value)
            case _:
                pass


def _root(target: ast.expr) -> Iterator[str]:
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    if isinstance(target, ast.Name):
        yield target.id
