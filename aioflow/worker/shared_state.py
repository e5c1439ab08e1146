"""Detects whether a DAG file has changed state that all code of a process shares.

A DAG file that replaces ``json.dumps`` or ``time.sleep`` does so for every DAG that runs in the
same process. This is detected in the parser, where it does no harm, and the file is rejected.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from aioflow.worker.dict_counts import DictCounts

__all__ = ("SharedState", "is_same", "shown")

_WATCHED = (
    "asyncio",
    "asyncio.events",
    "asyncio.locks",
    "asyncio.tasks",
    "builtins",
    "datetime",
    "json",
    "json.decoder",
    "json.encoder",
    "os",
    "random",
    "threading",
    "time",
)
_INNER = frozenset({"__build_class__", "__import__"})
"""Names of Python's modules with an underscore that are watched; Python itself changes others in
a fork."""

_HOOK = "excepthook"
"""Name in ``threading`` that is meant to be replaced."""

_OURS = "aioflow"
_NOTHING = object()
_SHOWN = 5

# References from before any DAG file is imported, which could replace the originals.
_setattr, _type = setattr, type

_PLAIN = frozenset({bool, bytes, float, int, str, tuple})
"""Types whose equal values count as unchanged: ``time.tzset()`` creates them again."""


class SharedState:
    """The names of some modules of Python and of all of aioflow at the time of creation.

    Names added to a module harm no other code, so only existing names are compared.
    """

    def __init__(self) -> None:
        modules = {name: sys.modules[name] for name in sys.modules if _is_watched(name)}
        self._modules = modules
        self._table = sys.modules
        self._originals = [
            (owner, vars(owner), where, counted)
            for owner, where in _owners(modules)
            if (counted := _counted(vars(owner), where))
        ]
        self._counts = DictCounts([scope for _, scope, _, _ in self._originals])

    def put_back(self) -> list[str]:
        """Restore everything that was changed; return the changed names."""
        changed = []
        for at in self._counts.changed():
            owner, scope, where, counted = self._originals[at]
            for name, value in counted:
                if not is_same(value, scope.get(name, _NOTHING)):
                    changed += [where + "." + name]
                    _setattr(owner, name, value)
        for name, module in self._modules.items():
            if self._table.get(name) is not module:
                changed += [name]
                self._table[name] = module
        return changed


def shown(changed: list[str]) -> str:
    """Return the first few of these names as text."""
    more = len(changed) - _SHOWN
    return ", ".join(changed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def is_same(value: object, now: object) -> bool:
    """Return whether a name is unchanged; for texts and numbers an equal value suffices."""
    if value is now:
        return True
    kind = _type(value)
    return kind in _PLAIN and _type(now) is kind and value == now


def _is_watched(name: str) -> bool:
    return name in _WATCHED or name == _OURS or name.startswith(f"{_OURS}.")


def _counted(scope: Mapping[str, object], where: str) -> list[tuple[str, object]]:
    return [(name, value) for name, value in scope.items() if _counts(name, value, where)]


def _counts(name: str, value: object, where: str) -> bool:
    """Return whether a name is watched: each one costs time for every file.

    In Python's modules those are the public names, in aioflow's everything they define.
    """
    if name == _HOOK:
        return False
    if where == _OURS or not where.startswith(_OURS):
        return not name.startswith("_") or name in _INNER
    if isinstance(value, FunctionType | type):
        return where.startswith(value.__module__)  # imported names are watched elsewhere
    return isinstance(value, classmethod | staticmethod | property)


def _owners(modules: dict[str, ModuleType]) -> Iterator[tuple[Any, str]]:
    """Yield the modules, and the classes that aioflow's modules define."""
    for name, module in modules.items():
        yield module, name
        if not name.startswith(_OURS):
            continue
        for value in list(vars(module).values()):
            if isinstance(value, _type) and value.__module__ == name:
                yield value, f"{name}.{value.__qualname__}"
