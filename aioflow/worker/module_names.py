"""Detects names of modules and classes that a DAG file replaces while it is imported.

Already loaded modules are compared with their earlier state. A module first imported by the file
is compared with its state after its import, which the loaders of this process report. A package
may still rebind its own names while it is imported, so its state is recorded when the outermost
import has finished.

Names added to a module affect no other code and are ignored. A private name counts only if it was
a function or a class: other private names are caches, which fill by themselves.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from aioflow.worker.dict_counts import DictCounts
from aioflow.worker.shared_state import is_same

__all__ = ("ModuleState", "watch_loaders")

_OURS = "aioflow"
_NOTHING = object()
_CALLED = (
    BuiltinFunctionType,
    FunctionType,
    MethodType,
    classmethod,
    property,
    staticmethod,
    type,
)
_FILLED = frozenset({"tempfile.tempdir"})
"""Public names that Python itself fills on first use, as it does all names of ``mimetypes``."""

_FILLED_MODULES = frozenset({"__main__", "mimetypes"})

_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8

# References from before any DAG file is imported, which could replace the originals.
_setattr, _type, _vars = setattr, type, vars


class _Scope:
    """The names of one module or class at the time of creation."""

    __slots__ = ("_before", "_owner", "_where", "names")

    def __init__(self, owner: Any, where: str) -> None:
        self._owner = owner
        self._where = where
        self.names = _vars(owner)
        self._before = dict(self.names)

    def changes(self) -> list[tuple[str, object]]:
        """Return the replaced names, each with its original value."""
        now, before = self.names, self._before
        try:
            if now == before:  # compares identical values, which nearly all are, in C
                return []
        except Exception:  # noqa: BLE001, S110 - what is compared may be anything
            pass
        return [
            (name, value)
            for name, value in before.items()
            if not is_same(value, now.get(name, _NOTHING)) and _counts(name, value, self._where)
        ]

    def put_back(self) -> list[str]:
        """Restore the replaced names and return their full names."""
        found = []
        for name, value in self.changes():
            found.append(f"{self._where}.{name}")
            _setattr(self._owner, name, value)
        return found

    def replaced(self) -> list[str]:
        """Return the full names that were replaced."""
        return [f"{self._where}.{name}" for name, _ in self.changes()]


class ModuleState:
    """The modules loaded before a file is imported, and those it brings in.

    Args:
        loaded: The modules already loaded.
    """

    def __init__(self, loaded: Mapping[str, ModuleType]) -> None:
        modules = {name: module for name, module in loaded.items() if _is_watched(name, module)}
        self._modules = modules
        self._loaded = [scope for name in modules for scope in _scopes(name, modules[name])]
        self._counts = DictCounts([scope.names for scope in self._loaded])
        self._fresh: dict[str, list[_Scope]] = {}
        self._replaced: list[str] = []
        self._depth = 0
        self._executed: list[str] = []
        self._folder = ""

    def begin(self, folder: str) -> None:
        """Start watching the import of a file; modules in its version's folder are its own."""
        self._folder = f"{folder}/"
        _Loaders.state = self

    def end(self) -> list[str]:
        """Stop watching. Return the replaced names and restore those of modules loaded before."""
        _Loaders.state = None
        found = self._replaced
        for scopes in self._fresh.values():
            for scope in scopes:
                found += scope.replaced()
        for at in self._counts.changed():
            found += self._loaded[at].put_back()
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                found.append(f"sys.modules[{name!r}]")
                sys.modules[name] = module
        return list(dict.fromkeys(found))

    # ── called by loaders ─────────────────────────────────────────────────────────────────

    def enter(self, path: str) -> bool:
        """Note that a module is executed next. Return whether ``leave`` must be called then."""
        if path.startswith(self._folder):
            return False
        if self._depth == 0 and self._fresh:
            # Replacements up to here were made by the file, later ones perhaps by this import.
            for scopes in self._fresh.values():
                for scope in scopes:
                    self._replaced += scope.replaced()
        self._depth += 1
        return True

    def leave(self, name: str) -> None:
        """Note that a module was executed."""
        self._depth -= 1
        self._executed.append(name)
        if self._depth == 0:
            packages = {executed.partition(".")[0] for executed in self._executed}
            self._executed.clear()
            self._take(packages)

    def _take(self, packages: set[str]) -> None:
        fresh: dict[str, list[_Scope]] = {package: [] for package in packages}
        for name, module in list(sys.modules.items()):
            package = name.partition(".")[0]
            is_new = package in packages and name not in self._modules
            if is_new and _is_watched(name, module):
                fresh[package] += _scopes(name, module)
        self._fresh |= fresh


class _Loaders:
    """The state to which the loaders of this process report the modules they execute."""

    state: ModuleState | None = None


def watch_loaders() -> None:
    """Patch the loaders of this process so that they report each execution of a module."""
    source = importlib.machinery.SourceFileLoader
    base = next(base for base in source.__mro__ if "exec_module" in _vars(base))
    for loader in (base, importlib.machinery.ExtensionFileLoader):
        _wrap(loader)


def _wrap(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(self: Any, module: ModuleType) -> None:
        state = _Loaders.state
        if state is None or not state.enter(getattr(self, "path", "") or ""):
            execute(self, module)
            return
        try:
            execute(self, module)
        finally:
            state.leave(module.__name__)

    loader.exec_module = exec_module


def _is_watched(name: str, module: object) -> bool:
    is_ours = name == _OURS or name.startswith(f"{_OURS}.")
    return isinstance(module, ModuleType) and not is_ours and name not in _FILLED_MODULES


def _scopes(name: str, module: ModuleType) -> Iterator[_Scope]:
    """Yield the module and its mutable classes."""
    yield _Scope(module, name)
    for value in _classes(_vars(module).values()):
        if value.__module__ == name:
            yield _Scope(value, f"{name}.{value.__qualname__}")


def _classes(values: Iterable[object]) -> Iterator[type[Any]]:
    for value in list(values):
        if isinstance(value, _type):
            flags = value.__flags__
            if flags & _HEAP_TYPE and not flags & _IMMUTABLE_TYPE:
                yield value


def _counts(name: str, value: object, where: str) -> bool:
    if name.startswith("_"):
        return isinstance(value, _CALLED)
    return f"{where}.{name}" not in _FILLED
