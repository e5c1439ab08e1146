"""Detection of changes by a DAG file to state that all code of a process shares.

A DAG file that replaces ``json.dumps`` or ``time.sleep`` does so for every DAG that runs in the
same process. The parser detects this, because there it does no harm. A file that changes certain
modules of Python, or any module of aioflow, is rejected. A file that changes other modules, or the
state of the process, gets separate worker processes. The state consists of environment, working
directory, umask, limits, signal handlers, and defaults of the standard library.

Modules loaded before the file are compared with their earlier state. A module first imported by the
file is compared with its state after its import, which the loaders of this process report. A
package may still rebind its own names while it is imported, so its state is recorded when the
outermost import has finished. Names added to a module affect no other code and are ignored. A
private name counts only if it was a function or a class, because other private names are caches,
which fill by themselves.

A forked process copies each memory page that it writes to, and reading an object writes its
reference count. So comparing the values of some ten thousand names would be the most expensive part
of a parser's work. CPython up to 3.12 counts the changes of each dict (PEP 509). These counters
show which dicts may have changed, so the other dicts need not be read.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # its functions make no enums: 50 times as fast
import _socket
import contextlib
import ctypes
import decimal
import gc
import importlib.machinery
import logging
import os
import resource
import sys
import threading
import warnings
from array import array
from asyncio import events
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

__all__ = (
    "DictCounts",
    "ModuleState",
    "ProcessState",
    "SharedState",
    "is_same",
    "shown",
    "watch_loaders",
)

_COUNTER_OFFSET = 24
"""Offset of the change counter in a dict: after the reference count, the type and the length."""

# Saved before any DAG file is imported, because a DAG file could replace the originals.
_enumerate, _map, _range, _at_address = enumerate, map, range, ctypes.c_uint64.from_address
_setattr, _type, _vars = setattr, type, vars


def _counter_at(place: int) -> int:
    return _at_address(place).value


def _has_counts() -> bool:
    """Return whether the dicts of this Python have a change counter at the expected offset."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 13):
        return False
    tried = {"a": 1}
    place = id(tried) + _COUNTER_OFFSET
    before = _counter_at(place)
    tried["a"] = 2
    return _counter_at(place) != before


_HAS_COUNTS = _has_counts()


class DictCounts:
    """A snapshot of the change counters of dicts. The caller keeps the dicts alive.

    Args:
        scopes: Dicts, or views of the dicts of classes.
    """

    def __init__(self, scopes: Sequence[Mapping[str, Any]]) -> None:
        places = [_address(scope) + _COUNTER_OFFSET for scope in scopes] if _HAS_COUNTS else []
        self._size = len(scopes)
        self._places = array("Q", places)
        self._counts = array("Q", map(_counter_at, places))

    def changed(self) -> Iterable[int]:
        """Return the indexes of the dicts that may have changed.

        Without counters, return all indexes.
        """
        if not self._places:
            return _range(self._size)
        now = array("Q", _map(_counter_at, self._places))
        return [at for at, count in _enumerate(self._counts) if now[at] != count]


def _address(scope: Mapping[str, Any]) -> int:
    return id(scope if isinstance(scope, dict) else gc.get_referents(scope)[0])


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
"""Watched names in Python's modules that begin with an underscore.

Python itself changes other such names in a fork.
"""

_HOOK = "excepthook"
"""A name in ``threading`` that is not watched, because it is meant to be replaced."""

_OURS = "aioflow"
_NOTHING = object()
_SHOWN = 5

_PLAIN = frozenset({bool, bytes, float, int, str, tuple})
"""Types for which an equal value counts as unchanged: ``time.tzset()`` creates equal values."""


class SharedState:
    """A snapshot of the values of names in some modules of Python and in all of aioflow.

    Names added to a module harm no other code, so only existing names are compared.
    """

    def __init__(self) -> None:
        modules = {name: sys.modules[name] for name in sys.modules if _is_shared_module(name)}
        self._modules = modules
        self._table = sys.modules
        self._originals = [
            (owner, vars(owner), where, counted)
            for owner, where in _owners(modules)
            if (counted := _shared_names(vars(owner), where))
        ]
        self._counts = DictCounts([scope for _, scope, _, _ in self._originals])

    def restore(self) -> list[str]:
        """Restore everything that has changed since the snapshot. Return the changed names."""
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
    """Return a text with the first few of the changed names and the number of the others."""
    more = len(changed) - _SHOWN
    return ", ".join(changed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def is_same(value: object, now: object) -> bool:
    """Return whether a name has its old value. For types in ``_PLAIN``, an equal value counts."""
    if value is now:
        return True
    kind = _type(value)
    return kind in _PLAIN and _type(now) is kind and value == now


def _is_shared_module(name: str) -> bool:
    return name in _WATCHED or name == _OURS or name.startswith(f"{_OURS}.")


def _shared_names(scope: Mapping[str, object], where: str) -> list[tuple[str, object]]:
    return [(name, value) for name, value in scope.items() if _is_shared_name(name, value, where)]


def _is_shared_name(name: str, value: object, where: str) -> bool:
    """Return whether a name is watched. Each watched name costs time for every file.

    In Python's modules and in ``aioflow`` itself, public names are watched. In aioflow's other
    modules, only the functions and classes defined there are watched, and the methods of these
    classes.
    """
    if name == _HOOK:
        return False
    if where == _OURS or not where.startswith(_OURS):
        return not name.startswith("_") or name in _INNER
    if isinstance(value, FunctionType | type):
        return where.startswith(value.__module__)  # imported names are watched elsewhere
    return isinstance(value, classmethod | staticmethod | property)


def _owners(modules: dict[str, ModuleType]) -> Iterator[tuple[Any, str]]:
    """Yield the modules, and the classes that aioflow's modules define, with their full names."""
    for name, module in modules.items():
        yield module, name
        if not name.startswith(_OURS):
            continue
        for value in list(vars(module).values()):
            if isinstance(value, _type) and value.__module__ == name:
                yield value, f"{name}.{value.__qualname__}"


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
"""Public names that Python itself fills on first use. It also fills all names of ``mimetypes``."""

_FILLED_MODULES = frozenset({"__main__", "mimetypes"})

_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8


class _Scope:
    """A snapshot of the names of one module or class."""

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
            if now == before:  # fast: C code finds that nearly all values are identical
                return []
        except Exception:  # noqa: BLE001, S110 - the __eq__ of a value may do anything
            pass
        return [
            (name, value)
            for name, value in before.items()
            if not is_same(value, now.get(name, _NOTHING))
            and _is_replacement(name, value, self._where)
        ]

    def restore(self) -> list[str]:
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
    """Detects names that the import of a file replaces, in modules loaded before it or by it.

    Args:
        loaded: The modules that are already loaded. A snapshot of them is taken.
    """

    def __init__(self, loaded: Mapping[str, ModuleType]) -> None:
        modules = {
            name: module for name, module in loaded.items() if _is_foreign_module(name, module)
        }
        self._modules = modules
        self._loaded = [scope for name in modules for scope in _scopes(name, modules[name])]
        self._counts = DictCounts([scope.names for scope in self._loaded])
        self._fresh: dict[str, list[_Scope]] = {}
        self._replaced: list[str] = []
        self._depth = 0
        self._executed: list[str] = []
        self._folder = ""

    def begin(self, folder: str) -> None:
        """Start watching the import of a file. Ignore modules in its version's ``folder``."""
        self._folder = f"{folder}/"
        _Loaders.state = self

    def end(self) -> list[str]:
        """Stop watching. Return the replaced names.

        Replaced names in modules that were loaded before the file are restored.
        """
        _Loaders.state = None
        found = self._replaced
        for scopes in self._fresh.values():
            for scope in scopes:
                found += scope.replaced()
        for at in self._counts.changed():
            found += self._loaded[at].restore()
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                found.append(f"sys.modules[{name!r}]")
                sys.modules[name] = module
        return list(dict.fromkeys(found))

    # ── called by loaders ─────────────────────────────────────────────────────────────────

    def begin_execution(self, path: str) -> bool:
        """Record that a module starts to run.

        Return whether to call ``end_execution`` afterwards.
        """
        if path.startswith(self._folder):
            return False
        if self._depth == 0 and self._fresh:
            # All replacements so far were made by the file itself. Record them before the module to
            # be imported makes others.
            for scopes in self._fresh.values():
                for scope in scopes:
                    self._replaced += scope.replaced()
        self._depth += 1
        return True

    def end_execution(self, name: str) -> None:
        """Record that a module has run, or has failed."""
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
            if is_new and _is_foreign_module(name, module):
                fresh[package] += _scopes(name, module)
        self._fresh |= fresh


class _Loaders:
    """The ``ModuleState`` to which the loaders of this process report the modules they execute."""

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
        if state is None or not state.begin_execution(getattr(self, "path", "") or ""):
            execute(self, module)
            return
        try:
            execute(self, module)
        finally:
            state.end_execution(module.__name__)

    loader.exec_module = exec_module


def _is_foreign_module(name: str, module: object) -> bool:
    is_ours = name == _OURS or name.startswith(f"{_OURS}.")
    return isinstance(module, ModuleType) and not is_ours and name not in _FILLED_MODULES


def _scopes(name: str, module: ModuleType) -> Iterator[_Scope]:
    """Yield snapshots of a module and of the mutable classes that it defines."""
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


def _is_replacement(name: str, value: object, where: str) -> bool:
    if name.startswith("_"):
        return isinstance(value, _CALLED)
    return f"{where}.{name}" not in _FILLED


_LIMITS = tuple(
    getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")
)
_SIGNALS = tuple(sorted(map(int, _signal.valid_signals())))
_TIMERS = (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)
_OWN_POLICIES = "asyncio."


class ProcessState:
    """A snapshot of the state of this process: its environment, limits, and other settings.

    Args:
        folder: Folder of the version, which its loader has put on ``sys.path``.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._environment = dict(os.environ)
        self._path = self._search_path()
        self._decimal = _decimal_settings(decimal.DefaultContext)
        self._values = {name: read() for name, read in _PROBES.items()}

    def changes(self) -> list[str]:
        """Return the changes since the snapshot, as texts that continue "importing the file"."""
        now, before = dict(os.environ), self._environment
        put = [name for name, value in now.items() if before.get(name) != value]
        gone = [name for name in before if name not in now]
        changed = [name for name, read in _PROBES.items() if read() != self._values[name]]
        if self._search_path()[: len(self._path)] != self._path:
            changed.append("sys.path")
        if self._has_other_decimals():
            changed.append("the decimal context")
        found = [_variables("sets", put), _variables("removes", gone)]
        return [text for text in found if text] + [f"changes {name}" for name in changed]

    def _search_path(self) -> list[object]:
        """Return ``sys.path`` without the version's folder.

        Only changes to its existing part count, because appended entries are searched last and hide
        no module.
        """
        path: list[object] = list(sys.path)
        with contextlib.suppress(ValueError):
            path.remove(self._folder)
        return path

    def _has_other_decimals(self) -> bool:
        """Return whether this thread's decimal context, or the default for new ones, has changed.

        This thread's context is a copy of the default, created on first use. It must not be used
        before the file is imported, since it would then miss a new default set by the file.
        """
        default = _decimal_settings(decimal.DefaultContext)
        return default != self._decimal or _decimal_settings(decimal.getcontext()) != default


def _variables(verb: str, names: list[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{verb} {', '.join(f'os.environ[{name!r}]' for name in shown)}{more}" if names else ""


def _decimal_settings(context: decimal.Context) -> tuple[object, ...]:
    """Return a decimal context's settings, without the flags that each computation changes."""
    return (
        context.prec,
        context.rounding,
        context.Emin,
        context.Emax,
        context.capitals,
        context.clamp,
        tuple(context.traps.values()),
    )


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _umask() -> int:
    """Return the umask. Reading it requires setting it, so it is briefly set to a strict mask."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _raised_warnings() -> list[object]:
    """Return the filters that turn warnings into errors. Other filters affect no other code."""
    return [rule for rule in warnings.filters if rule[0] == "error"]


def _root_logger() -> tuple[object, ...]:
    root = logging.root
    handlers = [id(handler) for handler in root.handlers]
    return root.level, root.disabled, root.manager.disable, handlers, list(map(id, root.filters))


def _loop_policy() -> int:
    """Return an id of a custom event loop policy; 0 for asyncio's, which is created lazily."""
    policy = getattr(events, "_event_loop_policy", None)
    is_usual = policy is None or type(policy).__module__.startswith(_OWN_POLICIES)
    return 0 if is_usual else id(policy)


_PROBES: Mapping[str, Callable[[], object]] = {
    "the working directory": _working_folder,
    "the umask": _umask,
    "the priority of the process": lambda: os.getpriority(os.PRIO_PROCESS, 0),
    "limits of the process": lambda: [resource.getrlimit(limit) for limit in _LIMITS],
    "signal handlers": lambda: [id(_signal.getsignal(number)) for number in _SIGNALS],
    "timers that send signals": lambda: [any(_signal.getitimer(timer)) for timer in _TIMERS],
    "the locale": lambda: _locale.setlocale(_locale.LC_ALL, None),
    "the default time-out of sockets": _socket.getdefaulttimeout,
    "the recursion limit": sys.getrecursionlimit,
    "the switch interval": sys.getswitchinterval,
    "the limit on digits of numbers": sys.get_int_max_str_digits,
    "the stack size of threads": threading.stack_size,
    "the trace function": lambda: (id(sys.gettrace()), id(sys.getprofile())),
    "garbage collection": lambda: (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
    "warnings that are raised": _raised_warnings,
    "the root logger": _root_logger,
    "the event loop policy": _loop_policy,
    "the basic decimal contexts": lambda: [
        _decimal_settings(context) for context in (decimal.BasicContext, decimal.ExtendedContext)
    ],
}
"""For each kind of state, its name in the reasons, and a function that reads its value."""
