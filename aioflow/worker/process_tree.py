"""The processes below this one: how many there are, and the killing of them all."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from aioflow.worker import processes

__all__ = ("count", "kill_all", "tasks_of_machine")

PATIENCE_SECONDS = 0.1
"""What is about to end by itself, as helpers do whose parent has gone, may do so."""

DEATH_SECONDS = 5.0
"""One that takes longer hangs in the kernel; who started this process looks for it again."""

_PROC = Path("/proc")
_LOOK_SECONDS = 0.002


def count() -> int:
    """Return how many living processes there are below this one."""
    return len(_living())


def tasks_of_machine() -> int:
    """Return how many threads there are in all; -1 where the kernel does not say.

    One look, where ``count`` takes one for each process.
    """
    try:
        return int((_PROC / "loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, IndexError, ValueError):
        return -1


def kill_all() -> int:
    """Kill all that is below this process, and reap it; return how many had to be killed.

    This process has to be the one that adopts orphans: then nothing is missed.
    """
    killed: set[int] = set()
    until = time.monotonic() + DEATH_SECONDS
    is_over = _wait_for_end(PATIENCE_SECONDS)
    while not is_over and time.monotonic() < until:
        found = _living()
        # First stopped, all of them: what runs may start others faster than they are killed.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                # One that has become another user's is not ours to kill; the others are.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        killed.update(found)
        is_over = _wait_for_end(_LOOK_SECONDS)
    return len(killed)


def _wait_for_end(seconds: float) -> bool:
    """Reap what has ended, for some time at most; return whether there is nothing left."""
    until = time.monotonic() + seconds
    while _reap():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _reap() -> bool:
    """Reap what has ended; return whether there is more."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _living() -> set[int]:
    """Return all below this process that are no zombies; their parents may be."""
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
