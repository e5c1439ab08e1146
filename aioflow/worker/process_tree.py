"""The process tree below a child, as the kernel reports it: count it, kill it, kill orphans.

Reading the processes of the machine blocks for some milliseconds. If a process forks twice, the
grandchild gets another parent, so neither its parent nor its session leads to this process. The
grandchild still inherits the resource limit that marks this process (see ``processes.orphans``). A
process with this mark is an orphan unless a chain of living parents leads from it to this process.
So a pool, server or tracker that later tasks reuse survives, with its workers.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed has no stub for it
import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = (
    "Orphans",
    "ProcessStat",
    "descendant_count",
    "has_children",
    "kill_descendants",
    "machine_thread_count",
    "own_children",
    "process_ids",
    "process_stat",
)

_PROC = Path("/proc")
_THREADS = "/proc/self/task"


class ProcessStat(NamedTuple):
    """The status of one process.

    Attributes:
        is_zombie: Whether the process has ended but was not yet reaped by its parent.
        start_ticks: Start time, in the kernel's clock ticks since boot.
    """

    is_zombie: bool
    parent: int
    group: int
    session: int
    start_ticks: int


def process_ids() -> Iterator[int]:
    """Yield the ids of all processes."""
    for name in os.listdir(_PROC):  # noqa: PTH208 - would create thousands of Path objects
        if name.isdigit():
            yield int(name)


def has_children() -> bool:
    """Return whether this process has children, including zombies. Takes about a microsecond."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def own_children() -> set[int]:
    """Return the process ids of the children of this process, including zombies."""
    try:
        # There is one list per thread. Adopted processes are in the list of the first thread.
        return {pid for thread in os.listdir(_THREADS) for pid in _children_of(thread)}  # noqa: PTH208
    except FileNotFoundError:  # kernel without CONFIG_PROC_CHILDREN, or a thread ended
        me = os.getpid()
        known = ((pid, process_stat(pid)) for pid in process_ids())
        return {pid for pid, found in known if found is not None and found.parent == me}


def _children_of(thread: str) -> list[int]:
    with open(f"{_THREADS}/{thread}/children", "rb") as file:  # noqa: PTH123 - as above
        return [int(pid) for pid in file.read().split()]


def process_stat(pid: int) -> ProcessStat | None:
    """Return the status of a process; ``None`` if it does not exist."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name is in parentheses and may itself contain blanks and parentheses.
    fields = text[text.rindex(")") + 2 :].split(maxsplit=20)
    return ProcessStat(
        is_zombie=fields[0] in {"X", "Z"},
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
    )


PATIENCE_SECONDS = 0.1
"""Grace period for processes about to end, such as helpers whose parent has just died."""

DEATH_SECONDS = 5.0
"""Time limit for killing a process.

If it is exceeded, the process hangs in the kernel, and the parent of this process handles it.
"""

_POLL_SECONDS = 0.002


def descendant_count() -> int:
    """Return the number of living processes below this one."""
    return len(_living_descendants())


def machine_thread_count() -> int:
    """Return the number of threads on this machine; -1 if the kernel does not report it.

    This takes a single read, while ``descendant_count`` needs one per process.
    """
    try:
        return int((_PROC / "loadavg").read_text().split()[3].partition("/")[2])
    except (OSError, IndexError, ValueError):
        return -1


def kill_descendants() -> int:
    """Kill and reap all processes below this one. Return how many had to be killed.

    Call ``adopt_orphans`` first, so that no process is missed.
    """
    killed: set[int] = set()
    until = time.monotonic() + DEATH_SECONDS
    is_over = _wait_for_end(PATIENCE_SECONDS)
    while not is_over and time.monotonic() < until:
        found = _living_descendants()
        # Stop all of them first, because running processes may fork faster than they are killed.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                # Skip a process that now belongs to another user, which we cannot kill.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        killed.update(found)
        is_over = _wait_for_end(_POLL_SECONDS)
    return len(killed)


def _wait_for_end(seconds: float) -> bool:
    """Reap ended children until none is left or the time is up. Return whether none is left."""
    until = time.monotonic() + seconds
    while _reap_children():
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _reap_children() -> bool:
    """Reap ended children. Return whether children that have not ended remain."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _living_descendants() -> set[int]:
    """Return all processes below this one except zombies. Children of zombies are included."""
    children: dict[int, list[tuple[int, bool]]] = {}
    for pid in process_ids():
        known = process_stat(pid)
        if known is not None:
            children.setdefault(known.parent, []).append((pid, known.is_zombie))
    found, pending = set(), [os.getpid()]
    while pending:
        for pid, is_zombie in children.pop(pending.pop(), ()):
            pending.append(pid)
            if not is_zombie:
                found.add(pid)
    return found


_MARKED_LIMIT = resource.RLIMIT_RTTIME
_LOWEST_MARK = 1 << 62


class Orphans:
    """Finds and kills the orphans of this process. Create it before user code runs.

    If this process has no mark in its resource limit, no orphans are ever found.
    """

    def __init__(self) -> None:
        self._mark = resource.getrlimit(_MARKED_LIMIT)
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
            # Stop all of them first, because running processes may fork faster than they are
            # killed.
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in left:
                    self._signal(pid, number)
            killed |= left
            left = self._find_after(_POLL_SECONDS)
        self._hanging |= left
        return len(killed)

    def _may_exist(self) -> bool:
        """Return whether this process has a child, or had one since the last call.

        Only if so, there can be orphans: the former parent of an orphan was such a child, or a
        descendant of one. When a child has been waited for, its page faults have been added to the
        sum, unless SIGCHLD is ignored.
        """
        before, self._faults = self._faults, _faults_of_children()
        # `signal.getsignal` converts the handler into an enum, which takes longer than this whole
        # function.
        return (
            self._faults != before
            or has_children()
            or _signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
        )

    def _find_after(self, seconds: float) -> set[int]:
        """Wait until there are no orphans or the timeout expires. Return the remaining orphans."""
        until = time.monotonic() + seconds
        while (found := self._find()) and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        return found

    def _find(self) -> set[int]:
        marked = {pid for pid in process_ids() if self._is_ours(pid)}
        below = {os.getpid()}
        return {pid for pid in marked if self._is_orphan(pid, below)} - self._hanging

    def _is_ours(self, pid: int) -> bool:
        try:
            return resource.prlimit(pid, _MARKED_LIMIT) == self._mark
        except OSError:
            return False  # it has ended, or belongs to another user

    def _is_orphan(self, pid: int, below: set[int]) -> bool:
        """Return whether no chain of living parents leads from a process to a process in ``below``.

        If there is such a chain, add its processes to ``below``.
        """
        chain: set[int] = set()
        while pid and pid not in below:
            stat = process_stat(pid)
            if stat is None:
                return bool(chain)  # the parent has just ended: it is being re-parented
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
                # The process id may have been reused. Only the handle is sure to refer to this
                # process.
                if self._is_ours(pid):
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def _faults_of_children() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
