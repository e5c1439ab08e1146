"""Mark child processes so that all their descendants can be found.

A mark is ``<home id>:<nonce>``, one per child; the prefix ``<home id>:`` matches every child of the
home. Descendants inherit it in two places:

- The environment variable ``AIOFLOW_CHILD_OF``. People can read it, but a program that clears its
  environment loses it.
- The resource limit ``RLIMIT_RTTIME``, which survives ``fork``, ``exec``, ``setsid``, re-parenting
  and a change of user. The hard limit encodes the home and the soft limit the nonce. Both exceed
  70,000 years of uninterrupted real-time computation, so the limit itself has no effect.
"""

from __future__ import annotations

import hashlib
import resource
from collections.abc import Callable
from pathlib import Path

from aioflow.processes.environment import MARK

__all__ = ("carrier", "mark_limit")

_LIMIT = resource.RLIMIT_RTTIME
_BITS = (1 << 60) - 1
_NONCE = 1 << 61
_HOME = 1 << 62
"""Larger than any soft limit, which must not exceed the hard one."""


def mark_limit(pid: int, mark: str) -> None:
    """Set the mark in the limit of a process. Processes that it starts later inherit it.

    If the daemon runs under such a limit itself, keep that: only the environment carries the mark.

    Raises:
        ProcessLookupError: If the process has ended.
    """
    if resource.getrlimit(_LIMIT)[1] == resource.RLIM_INFINITY:
        resource.prlimit(pid, _LIMIT, (_soft(mark), _hard(mark)))


def carrier(mark: str) -> Callable[[int], bool]:
    """Return a predicate for processes that carry the mark, or one with that prefix.

    Zombies keep the limit, but not the environment.
    """
    home, nonce = _hard(mark), None if mark.endswith(":") else _soft(mark)
    variable = f"{MARK}={mark}".encode()

    def carries(pid: int) -> bool:
        return _limit_carries(pid, home, nonce) or _environment_carries(pid, variable)

    return carries


def _limit_carries(pid: int, home: int, nonce: int | None) -> bool:
    try:
        soft, hard = resource.prlimit(pid, _LIMIT)
    except OSError:
        return False  # it has ended, or belongs to another user
    return hard == home and nonce in {None, soft}


def _environment_carries(pid: int, variable: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # it has ended, or belongs to another user
    return any(entry.startswith(variable) for entry in environment.split(b"\0"))


def _soft(mark: str) -> int:
    return _NONCE | int(mark.partition(":")[2], 16) & _BITS


def _hard(mark: str) -> int:
    home = mark.partition(":")[0]
    return _HOME | int.from_bytes(hashlib.sha256(home.encode()).digest()[:8], "big") & _BITS
