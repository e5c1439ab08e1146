"""State of a process besides its modules that all code in it shares, and which of it has changed.

The environment, the working folder, the umask, limits, signal handlers, and defaults of the
standard library: time-outs, the recursion limit, decimal contexts and the like.
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
    """The state of this process as it is now.

    Args:
        folder: Of the version, whose path its loader has put on ``sys.path``.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._environment = dict(os.environ)
        self._path = self._search_path()
        self._decimal = _context(decimal.DefaultContext)
        self._values = {name: read() for name, read in _PROBES.items()}

    def changes(self) -> list[str]:
        """Return what has changed since, as texts that follow "importing the file"."""
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
        """What is appended is looked at last, and takes no name from others; the rest may."""
        path: list[object] = list(sys.path)
        with contextlib.suppress(ValueError):
            path.remove(self._folder)
        return path

    def _has_other_decimals(self) -> bool:
        """Whether the context of this thread, or the default that new ones copy, is another.

        The one of this thread is a copy made when it is first asked for, which is not done before
        the file is imported: it would not see the default that the file sets.
        """
        default = _context(decimal.DefaultContext)
        return default != self._decimal or _context(decimal.getcontext()) != default


def _variables(verb: str, names: list[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{verb} {', '.join(f'os.environ[{name!r}]' for name in shown)}{more}" if names else ""


def _context(context: decimal.Context) -> tuple[object, ...]:
    """Return what a decimal context computes by; its flags change with each computation."""
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
    """Return it; it can only be read by setting it, here to one under which nothing is open."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _raised_warnings() -> list[object]:
    """Return the filters that make errors of warnings; ignored ones change nothing for others."""
    return [rule for rule in warnings.filters if rule[0] == "error"]


def _root_logger() -> tuple[object, ...]:
    root = logging.root
    handlers = [id(handler) for handler in root.handlers]
    return root.level, root.disabled, root.manager.disable, handlers, list(map(id, root.filters))


def _loop_policy() -> int:
    """Return which policy was set; Python makes its own when it is first needed."""
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
"""Of each kind of state, by the name that reasons have, what it is now."""
