"""The operating system's settings of a child process, and its memory pressure.

A child dies with its parent. If memory runs out, it is killed before its parent. A parser also
limits its memory, CPU time and core dumps. A child that uses too much memory evicts coroutines.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path

__all__ = (
    "MEMORY_POLL_SECONDS",
    "PARSER_CPU_SECONDS",
    "MemoryPressure",
    "adopt_orphans",
    "die_before_parent",
    "die_with_parent",
    "limit_parser",
    "lower_priority",
    "own_memory",
    "take_socket",
)

PARSER_CPU_SECONDS = 60
"""CPU time limit of a parser. Normally its parent's wall clock limit applies long before."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NICE = 5

_OOM_SCORES = {"async": 300, "triggers": 300, "quarantine": 400, "slot": 400, "callbacks": 400}
_SPARE_OOM_SCORE = 500
"""OOM score of a parser. It is the highest, because the death of a parser interrupts no try."""

_HIGHEST_OOM_SCORE = 1_000


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent dies.

    If the parent died before this call, the closed link shows that. For the kernel, the parent is
    the *thread* that started this process. If a daemon starts children from a pool's thread, they
    die with that thread.
    """
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Make this process the parent of all orphaned descendants.

    No descendant can then escape from it, even in a new session.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_before_parent(role: str) -> None:
    """Have the kernel kill this process before the daemon if memory runs out.

    The kernel kills the largest process, and perhaps a second one before the memory of the first is
    freed. Without this setting, one of the two may be the daemon, which would stop all work. With
    it, the kernel counts this process and those it starts as larger than they are, by some tenths
    of the machine's memory. The addition is smallest in a shared child, whose death interrupts many
    tries, and largest in a parser. The value inherited from the daemon is added. See
    ``proc_pid_oom_score_adj(5)``.
    """
    scores = Path("/proc/self/oom_score_adj")
    # Without this file the kernel makes its default choice.
    with contextlib.suppress(OSError):
        score = int(scores.read_text()) + _OOM_SCORES.get(role, _SPARE_OOM_SCORE)
        scores.write_text(str(min(score, _HIGHEST_OOM_SCORE)))


def lower_priority() -> None:
    """Let other processes have the CPU first when it is busy."""
    os.nice(_NICE)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def limit_parser(memory_bytes: int) -> None:
    """Limit the resources that importing one DAG file may use.

    Args:
        memory_bytes: Address space limit.
    """
    _lower(resource.RLIMIT_AS, memory_bytes)
    _lower(resource.RLIMIT_CPU, PARSER_CPU_SECONDS)
    _lower(resource.RLIMIT_CORE, 0)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))


def take_socket(name: str) -> socket.socket:
    """Return the socket whose descriptor is in the environment, and make it non-inheritable.

    The variable is removed, so that user code and its subprocesses do not see it.
    """
    number = int(os.environ.pop(name))
    os.set_inheritable(number, False)
    sock = socket.socket(fileno=number)
    sock.setblocking(True)  # the flag is shared with the process that created the socket
    return sock


MEMORY_POLL_SECONDS = 1.0
"""Minimum seconds between two checks, because memory of evicted coroutines is not freed at once."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def own_memory() -> int:
    """Return the bytes of this process's resident memory that are not shared with files."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(shared)) * _PAGE_BYTES


class MemoryPressure:
    """Compares the memory in use with a limit.

    Args:
        limit_bytes: The limit; 0 for none.
        meter: Returns the bytes in use.
    """

    def __init__(self, limit_bytes: int, meter: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._meter = meter
        self._next_check = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether a check is due, which is the case every ``MEMORY_POLL_SECONDS``."""
        if not self._limit_bytes or now < self._next_check:
            return False
        self._next_check = now + MEMORY_POLL_SECONDS
        return True

    def excess(self, count: int) -> int:
        """Return how many of ``count`` equal items to evict, in proportion to the excess."""
        used = self._meter()
        if used <= self._limit_bytes:
            return 0
        return math.ceil(count * (used - self._limit_bytes) / used)
