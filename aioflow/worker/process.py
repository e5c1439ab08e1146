"""What a child owes the machine.

It dies with its parent, before it where memory runs out, leaves no core and knows its limits.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
from pathlib import Path

__all__ = (
    "PARSER_CPU_SECONDS",
    "adopt_orphans",
    "die_before_parent",
    "die_with_parent",
    "limit_parser",
    "stand_back",
    "take_socket",
)

PARSER_CPU_SECONDS = 60
"""Processor time of a parser. Its parent's wall clock normally strikes long before."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_NICE = 5

_OOM_SCORES = {"async": 300, "triggers": 300, "quarantine": 400, "slot": 400, "callbacks": 400}
_SPARE_OOM_SCORE = 500
"""Of a parser, whose death costs nobody a try."""

_HIGHEST_OOM_SCORE = 1_000


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies.

    A parent that died before this call is noticed too: the link is closed then. The kernel
    means the *thread* that started this process: a daemon that starts children from a thread
    of a pool loses them with that thread.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of whatever a child of this process leaves, at any remove.

    Nothing below this process gets away from it then, whatever session it makes for itself.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_before_parent(role: str) -> None:
    """Have the kernel take this process before the daemon where memory runs out.

    It takes the largest, and just after it has killed one whose memory is not back yet, the
    next; without this that may be the daemon, and all wait. The share of memory of this
    process, and of all it starts, counts as some tenths larger than it is: least in a host,
    whose death interrupts many, most in a parser. What was given to the daemon is added to.
    See ``proc_pid_oom_score_adj(5)``.
    """
    scores = Path("/proc/self/oom_score_adj")
    # Where the kernel has no such file it chooses by itself.
    with contextlib.suppress(OSError):
        score = int(scores.read_text()) + _OOM_SCORES.get(role, _SPARE_OOM_SCORE)
        scores.write_text(str(min(score, _HIGHEST_OOM_SCORE)))


def stand_back() -> None:
    """Leave the processor to others where it is short."""
    os.nice(_NICE)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def limit_parser(memory_bytes: int) -> None:
    """Bound what importing one DAG file may cost this machine.

    Args:
        memory_bytes: Address space it may fill.
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
    """Return the socket whose number the environment holds, out of reach of grandchildren.

    The variable is removed: user code and what it starts have no business with it.
    """
    number = int(os.environ.pop(name))
    os.set_inheritable(number, False)
    sock = socket.socket(fileno=number)
    sock.setblocking(True)  # the flag is shared with whoever made the socket
    return sock
