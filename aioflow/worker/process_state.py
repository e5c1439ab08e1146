"""Detects changes to process-wide state other than modules, which all code in a process shares.

The environment, the working directory, the umask, limits, signal handlers, and defaults of the
standard library: timeouts, the recursion limit, decimal contexts and the like.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # its functions make no enums: 50 times as fast
import _socket
import contextlib
import decimal
import gc
import logging
import os
import resource
import sys
import threading
import warnings
from asyncio import events
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ("ProcessState",)

_LIMITS = tuple(
    getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_")
)
_SIGNALS = tuple(sorted(map(int, _signal.valid_signals())))
_TIMERS = (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)
_OWN_POLICIES = "asyncio."


class ProcessState:
    """The state of this process at the time of creation.

    Args:
        folder: Folder of the version, which its loader has put on ``sys.path``.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._environment = dict(os.environ)
        self._path = self._search_path()
        self._decimal = _context(decimal.DefaultContext)
        self._values = {name: read() for name, read in _PROBES.items()}

    def changes(self) -> list[str]:
        """Return the changes since creation, as texts that follow "importing the file"."""
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

        Only changes to its existing part count: appended entries are searched last and hide no
        module.
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
        default = _context(decimal.DefaultContext)
        return default != self._decimal or _context(decimal.getcontext()) != default


def _variables(verb: str, names: list[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{verb} {', '.join(f'os.environ[{name!r}]' for name in shown)}{more}" if names else ""


def _context(context: decimal.Context) -> tuple[object, ...]:
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
    """Return the umask; reading it requires setting it, here briefly to a strict mask."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _raised_warnings() -> list[object]:
    """Return the filters that turn warnings into errors; other filters affect no other code."""
    return [rule for rule in warnings.filters if rule[0] == "error"]


def _root_logger() -> tuple[object, ...]:
    root = logging.root
    handlers = [id(handler) for handler in root.handlers]
    return root.level, root.disabled, root.manager.disable, handlers, list(map(id, root.filters))


def _loop_policy() -> int:
    """Identify a custom event loop policy; 0 for asyncio's own, which is created on first use."""
    policy = getattr(events, "_event_loop_policy", None)
    is_usual = policy is None or type(policy).__module__.startswith(_OWN_POLICIES)
    return 0 if is_usual else id(policy)


_SHOWN = 5

_PROBES: Mapping[str, Callable[[], object]] = {
    "the working folder": _working_folder,
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
        _context(context) for context in (decimal.BasicContext, decimal.ExtendedContext)
    ],
}
"""Reads the current value of each kind of state, by its name in the reasons."""
