"""Kills processes that a task started and left without a parent.

A process that forks twice is re-parented out of this process: neither its parent nor its session
leads here. It still inherits the resource limit that marks this process (see ``processes.marks``).
A process with this mark is an orphan unless a chain of living parents leads from it to this
process. So a pool, server or tracker that is reused by later tasks survives, with its workers.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time

from aioflow.worker import processes

__all__ = ("Orphans",)

PATIENCE_SECONDS = 0.1
"""Grace period for a process that is about to end, such as the ``tee`` of a shell script."""

DEATH_SECONDS = 5.0
"""A killed process that takes longer hangs in the kernel and is not waited for again."""

_POLL_SECONDS = 0.002
_LIMIT = resource.RLIMIT_RTTIME
_LOWEST_MARK = 1 << 62


class Orphans:
    """Orphans of this process. Create it before user code runs.

    Without a mark in its resource limit it never finds any.
    """

    def __init__(self) -> None:
        self._mark = resource.getrlimit(_LIMIT)
        self._is_marked = self._mark[1] >= _LOWEST_MARK
        self._faults = _faults_of_children()
        self._hanging: set[int] = set()

    def kill(self) -> int:
        """Kill all orphans and return their number. Takes 2 µs if no process was started."""
        if not self._is_marked or not self._may_exist():
            return 0
        left = self._find_after(PATIENCE_SECONDS)
        killed: set[int] = set()
        until = time.monotonic() + DEATH_SECONDS
        while left and time.monotonic() < until:
            # Stop all of them first: running ones may fork faster than they are killed.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in left:
                    self._signal(pid, number)
            killed |= left
            left = self._find_after(_POLL_SECONDS)
        self._hanging |= left
        return len(killed)

    def _may_exist(self) -> bool:
        """Return whether this process has a child, or had one since the last call.

        An orphan's parent was such a child, or a descendant of one. A child that was waited for
        has added its page faults to the sum, unless SIGCHLD is ignored.
        """
        before, self._faults = self._faults, _faults_of_children()
        return (
            self._faults != before
            or processes.has_children()
            or signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
        )

    def _find_after(self, seconds: float) -> set[int]:
        """Return an empty set once there are no orphans, else those left after the timeout."""
        until = time.monotonic() + seconds
        while (found := self._find()) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        return found

    def _find(self) -> set[int]:
        marked = {pid for pid in processes.numbers() if self._is_ours(pid)}
        below = {os.getpid()}
        return {pid for pid in marked if self._is_orphan(pid, below)} - self._hanging

    def _is_ours(self, pid: int) -> bool:
        try:
            return resource.prlimit(pid, _LIMIT) == self._mark
        except OSError:
            return False  # it has ended, or belongs to another user

    def _is_orphan(self, pid: int, below: set[int]) -> bool:
        """Return whether no chain of living parents leads to ``below``; extend it by a chain."""
        chain: set[int] = set()
        while pid and pid not in below:
            stat = processes.stat(pid)
            if stat is None:
                return bool(chain)  # its parent has just ended: it is being re-parented
            if stat.is_zombie and not chain:
                return False
            chain.add(pid)
            pid = stat.parent
        if not pid:
            return True
        below |= chain
        return False

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                # The number may have been reused: only the handle is sure to mean this process.
                if self._is_ours(pid):
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def _faults_of_children() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
