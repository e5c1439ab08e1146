"""Load of a shared host, as the daemon knows it."""

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
    """The shared pollers of one trigger class in a host."""

    class_path: str
    how_many: int
    next_check_at: Timestamp | None


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Load of one shared host.

    Attributes:
        name: Its role.
        pid: ``None`` while there is no process.
        lag_seconds: Greatest lag of its event loop in the last 30 pings (half a minute).
        evicted: Suspended coroutines it has evicted for lack of memory since the daemon started.
        triggers: Number of triggers it has.
        waiting: Number of triggers that wait for capacity.
        capacity: Maximum number of triggers; 0 if it hosts none.
        watches: Pollers that its triggers share; ``None`` until it has reported them.
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
    """Return the resident memory of a process; 0 if there is no process."""
    if pid is None:
        return 0
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0  # it has just ended, or this machine has no /proc
