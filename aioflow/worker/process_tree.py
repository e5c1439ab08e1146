"""The process tree below this process: counts its processes, and kills them all."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from aioflow.worker import processes

__all__ = ("count", "kill_all", "tasks_of_machine")

PATIENCE_SECONDS = 0.1
"""Grace period for processes about to end, such as helpers whose parent has just died."""

DEATH_SECONDS = 5.0
"""A killed process that takes longer hangs in the kernel; the parent of this process handles it."""

_PROC = Path("/proc")
_POLL_SECONDS = 0.002


def count() -> int:
    """Return the number of living processes below this one."""
    return len(_living())


def tasks_of_machine() -> int:
    """Return the number of threads on this machine; -1 if the kernel does not report it.

    A single read, where ``count`` needs one per process.
    """
    try:
        return int((_PROC / "loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, IndexError, ValueError):
        return -1


def kill_all() -> int:
    """Kill and reap all processes below this one; return how many had to be killed.

    Call ``adopt_orphans`` first: then no process is missed.
    """
    killed: set[int] = set()
    until = time.monotonic() + DEATH_SECONDS
    is_over = _wait_for_end(PATIENCE_SECONDS)
    while not is_over and time.monotonic() < until:
        found = _living()
        # Stop all of them first: running ones may fork faster than they are killed.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                # Skip a process that now belongs to another user, which we cannot kill.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        killed.update(found)
        is_over = _wait_for_end(_POLL_SECONDS)
    return len(killed)


def _wait_for_end(seconds: float) -> bool:
    """Reap ended processes until the timeout. Return whether none is left."""
    until = time.monotonic() + seconds
    while _reap():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _reap() -> bool:
    """Reap ended processes. Return whether there are others."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _living() -> set[int]:
    """Return all processes below this one except zombies, whose children count as well."""
    children: dict[int, list[tuple[int, bool]]] = {}
    for pid in processes.numbers():
        known = processes.stat(pid)
        if known is not None:
            children.setdefault(known.parent, []).append((pid, known.is_zombie))
    found, pending = set(), [os.getpid()]
    while pending:
        for pid, is_zombie in children.pop(pending.pop(), ()):
            pending.append(pid)
            if not is_zombie:
                found.add(pid)
    return found
