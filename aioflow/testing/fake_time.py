"""Virtual time for the wall clock of user code: ``datetime.now``, ``time.time``, ``sleep``.

``datetime`` is a C type: its methods are replaced in its own dictionary, so every name it was
imported by shows the same time. Functions imported from ``time`` by name keep real time, except in
modules passed to ``also_in``.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from types import ModuleType
from typing import Any

import anyio

from aioflow.model.timestamps import Timestamp
from aioflow.testing.loop import VirtualLoop, nap_here

__all__ = ("VirtualClock", "wall_clock")

_SECOND = 1_000_000
_REAL = {name: getattr(time, name) for name in ("time", "time_ns", "sleep", "localtime", "gmtime")}
_clocks: list[VirtualClock] = []
"""The active clocks; the last one counts."""


class VirtualClock:
    """See ``Clock``: monotonic time is that of a loop, and wall time advances with it."""

    def __init__(self, loop: VirtualLoop, begins_at: Timestamp) -> None:
        self._loop = loop
        self._begins_at = begins_at

    def now(self) -> Timestamp:
        """See ``Clock``."""
        return self._begins_at + self.monotonic_us()

    def monotonic_us(self) -> int:
        """See ``Clock``."""
        return round(self._loop.time() * _SECOND)

    async def sleep(self, seconds: float) -> None:
        """See ``Clock``."""
        await anyio.sleep(seconds)


@contextmanager
def wall_clock(clock: VirtualClock) -> Iterator[None]:
    """Replace the clock of this process. If several are active, the last one counts."""
    if not _clocks:
        _show()
    _clocks.append(clock)
    try:
        yield
    finally:
        _clocks.remove(clock)
        if not _clocks:
            _show_the_real_one()


@contextmanager
def also_in(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Replace functions of ``time`` that these modules have imported by name, too."""
    changed = []
    try:
        for module in modules:
            for name, value in list(vars(module).items()):
                for real, function in _REAL.items():
                    if value is function:
                        changed.append((module, name, value))
                        setattr(module, name, _VIRTUAL[real])
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def _time_ns() -> int:
    return _clocks[-1].now() * 1_000


def _time() -> float:
    return _clocks[-1].now() / _SECOND


def _localtime(seconds: float | None = None) -> time.struct_time:
    shown: time.struct_time = _REAL["localtime"](_time() if seconds is None else seconds)
    return shown


def _gmtime(seconds: float | None = None) -> time.struct_time:
    shown: time.struct_time = _REAL["gmtime"](_time() if seconds is None else seconds)
    return shown


def _sleep(seconds: float) -> None:
    """Sleep on virtual time in threads that work for a virtual loop, else in real time."""
    nap = nap_here() or _REAL["sleep"]
    nap(seconds)


_VIRTUAL: dict[str, Callable[..., Any]] = {
    "time": _time,
    "time_ns": _time_ns,
    "sleep": _sleep,
    "localtime": _localtime,
    "gmtime": _gmtime,
}


def _now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
    seconds, microseconds = divmod(_clocks[-1].now(), _SECOND)
    return cls.fromtimestamp(seconds, tz).replace(microsecond=microseconds)


def _utcnow(cls: type[datetime]) -> datetime:
    return _now(cls, UTC).replace(tzinfo=None)


_methods: dict[str, Any] = {}


def _show() -> None:
    vars(time).update(_VIRTUAL)
    inside = _inside(datetime)
    _methods.update({name: inside[name] for name in ("now", "utcnow")})
    _set_methods({"now": classmethod(_now), "utcnow": classmethod(_utcnow)})


def _show_the_real_one() -> None:
    vars(time).update(_REAL)
    _set_methods(_methods)


def _set_methods(methods: dict[str, Any]) -> None:
    _inside(datetime).update(methods)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))


def _inside(cls: type) -> dict[str, Any]:
    """Return the dictionary of a class, which Python exposes only through a read-only proxy."""
    found: dict[str, Any] = gc.get_referents(vars(cls))[0]
    return found
