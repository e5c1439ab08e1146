"""How a shared host fares, as the daemon knows it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from aioflow.model.timestamps import Timestamp

__all__ = ("HostLoad", "WatchLoad", "resident_bytes")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class WatchLoad(NamedTuple):
    """The watches of a host that triggers of a class share."""

    class_path: str
    how_many: int
    next_check_at: Timestamp | None


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One shared host.

    Attributes:
        name: Its role.
        pid: ``None`` while there is no process.
        lag_seconds: How late its loop was to answer, the worst of the last half a minute.
        evicted: Parked coroutines it has let go of for want of memory since the daemon began.
        triggers: How many it has.
        waiting: How many it has no room for.
        capacity: How many it may have; 0 if it hosts none.
        watches: Those its triggers share; ``None`` while it has not told.
    """

    name: str
    pid: int | None
    lag_seconds: float
    evicted: int = 0
    triggers: int = 0
    waiting: int = 0
    capacity: int = 0
    watches: Sequence[WatchLoad] | None = None


def resident_bytes(pid: int | None) -> int:
    """Return what a process has in memory; 0 if there is none."""
    if pid is None:
        return 0
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0  # it has just ended, or this machine has no /proc
