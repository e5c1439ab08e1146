"""What a child owes the machine: it dies with its parent, leaves no core and knows its limits."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket

__all__ = (
    "PARSER_CPU_SECONDS",
    "PARSER_MEMORY_BYTES",
    "die_with_parent",
    "limit_parser",
    "take_socket",
)

PARSER_MEMORY_BYTES = 1536 * 1024 * 1024
"""Address space a DAG file may fill while it is imported."""

PARSER_CPU_SECONDS = 60
"""Processor time of a parser. Its parent's wall clock normally strikes long before."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies.

    A parent that died before this call is noticed too: the link is closed then. The kernel
    means the *thread* that started this process: a daemon that starts children from a thread
    of a pool loses them with that thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def limit_parser() -> None:
    """Bound what importing one DAG file may cost this machine."""
    _lower(resource.RLIMIT_AS, PARSER_MEMORY_BYTES)
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
