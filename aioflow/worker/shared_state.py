"""What all code of a process shares, and whether a DAG file has changed it.

A DAG file that replaces ``json.dumps`` or ``time.sleep`` does so for each DAG that is hosted in
the same process. It is found out while it is parsed, in a process where that does no harm, and
is not let in.
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
"""Of Python's names with an underscore only these; others it changes itself, in a fork."""

_HOOK = "excepthook"
"""Of ``threading``: it is there to be replaced."""

_OURS = "aioflow"
_NOTHING = object()
_SHOWN = 5

# As they are before any DAG file is imported.
_setattr, _type = setattr, type

_PLAIN = frozenset({bool, bytes, float, int, str, tuple})
"""Of these an equal one is as good: ``time.tzset()`` makes them anew."""


class SharedState:
    """The names of some modules of Python and of all of ours, as they are now.

    What a module gains is nobody's harm, so only names that are there already are looked at.
    """

    def __init__(self) -> None:
        modules = {name: sys.modules[name] for name in sys.modules if _is_watched(name)}
        self._modules = modules
        self._table = sys.modules
        self._kept = [
            (owner, vars(owner), where, counted)
            for owner, where in _owners(modules)
            if (counted := _counted(vars(owner), where))
        ]
        self._counts = DictCounts([scope for _, scope, _, _ in self._kept])

    def put_back(self) -> list[str]:
        """Undo what was changed; return the names of that."""
        changed = []
        for at in self._counts.changed():
            owner, scope, where, counted = self._kept[at]
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
    """Return some of these names as text."""
    more = len(changed) - _SHOWN
    return ", ".join(changed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def is_same(value: object, now: object) -> bool:
    """Whether a name has what it had; of text and numbers an equal one is as good."""
    if value is now:
        return True
    kind = _type(value)
    return kind in _PLAIN and _type(now) is kind and value == now


def _is_watched(name: str) -> bool:
    return name in _WATCHED or name == _OURS or name.startswith(f"{_OURS}.")


def _counted(scope: Mapping[str, object], where: str) -> list[tuple[str, object]]:
    return [(name, value) for name, value in scope.items() if _counts(name, value, where)]


def _counts(name: str, value: object, where: str) -> bool:
    """Whether a name is looked at: each one costs every file a glance.

    Of Python's modules that is what is public, of ours whatever they define.
    """
    if name == _HOOK:
        return False
    if where == _OURS or not where.startswith(_OURS):
        return not name.startswith("_") or name in _INNER
    if isinstance(value, FunctionType | type):
        return where.startswith(value.__module__)  # what it only imports is looked at elsewhere
    return isinstance(value, classmethod | staticmethod | property)


def _owners(modules: dict[str, ModuleType]) -> Iterator[tuple[Any, str]]:
    """Yield the modules, and the classes that ours define."""
    for name, module in modules.items():
        yield module, name
        if not name.startswith(_OURS):
            continue
        for value in list(vars(module).values()):
            if isinstance(value, _type) and value.__module__ == name:
                yield value, f"{name}.{value.__qualname__}"
