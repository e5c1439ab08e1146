"""The supervisor of a worker on a machine without a daemon: starts the worker and ends all of it.

``python -P -m aioflow.worker.supervisor`` runs between an agent, such as the plug-in in a Dask
worker, and one program. The agent holds the other ends of the program's link and output, so the
messages between the two do not pass through the supervisor. The supervisor does what only a parent
can do: report how the program ended, and kill every descendant, even one in its own session.

The supervisor works without the agent. If the agent dies, or passes on no sign of life from the
daemon for ``contact_seconds``, the supervisor kills the program and ends. The reason may be that
the agent was stopped, or that the machine was cut off. The daemon waits for a longer time before it
starts the try elsewhere, so the two executions never run at the same time.

The control socket carries lines of JSON: to the supervisor a ``SupervisorOrder``, and back a
``ProgramStarted`` and a ``ProgramEnd``. After its order the agent sends single bytes: ``BEAT`` for
a sign of life of the daemon, ``KILL`` to end the program.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time

import msgspec

from aioflow.worker.process import adopt_orphans, die_with_parent, take_socket
from aioflow.worker.process_tree import kill_descendants

__all__ = (
    "BEAT",
    "KILL",
    "SUPERVISOR_FD",
    "ProgramEnd",
    "ProgramStarted",
    "SupervisorOrder",
    "main",
)

SUPERVISOR_FD = "AIOFLOW_SUPERVISOR_FD"
"""Name of the variable with the descriptor of the supervisor's control socket."""

BEAT = b"b"
"""Sent by the agent for each sign of life of the daemon."""

KILL = b"k"
"""Sent by the agent to end the program and everything that it has started."""

_POLL_MS = 500
"""Longest sleep.

After a suspension of the machine, the time without contact is checked this soon.
"""


class SupervisorOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The program to start, and its settings.

    Attributes:
        descriptors: Inherited descriptors that the program inherits, too.
        output: Inherited descriptor of the program's stdout and stderr.
        limits: Limits of the program: ``(resource.RLIMIT_*, soft, hard)``.
        contact_seconds: The program is killed after this time without a ``BEAT``.
    """

    program: tuple[str, ...]
    environment: dict[str, str]
    descriptors: tuple[int, ...]
    output: int
    limits: tuple[tuple[int, int, int], ...] = ()
    contact_seconds: float


class ProgramStarted(msgspec.Struct, frozen=True, tag=True):
    """The program is running."""

    pid: int


class ProgramEnd(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How the program ended. The program and everything it had started are dead.

    Attributes:
        returncode: As in ``subprocess``: negative for a signal. ``None`` if the program was not
            started.
        cause: Why the supervisor killed the program: ``order``, ``agent``, ``contact`` or
            ``signal``. Empty if it ended by itself or was killed by others.
        strays: Number of processes that the program left behind.
        error: Why the program was not started.
    """

    returncode: int | None
    cause: str = ""
    strays: int = 0
    error: str = ""


class _Control:
    """The control socket, and the time without contact."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._heard = _now()

    def receive_order(self) -> SupervisorOrder | None:
        """Return the order; ``None`` if the agent has died or has withdrawn the order."""
        data = b""
        while b"\n" not in data:
            piece = self._sock.recv(65536)
            if not piece:
                return None
            data += piece
        self._heard = _now()
        line, _, bytes_after = data.partition(b"\n")
        return None if KILL in bytes_after else msgspec.json.decode(line, type=SupervisorOrder)

    def fileno(self) -> int:
        return self._sock.fileno()

    def read(self) -> str:
        """Read signs of life. Return why to kill the program; empty if there is no reason."""
        try:
            data = self._sock.recv(4096)
        except OSError:
            return "agent"
        if KILL in data:
            return "order"
        self._heard = _now()
        return "" if data else "agent"

    def is_silent(self, seconds: float) -> bool:
        return _now() - self._heard > seconds

    def report(self, message: ProgramStarted | ProgramEnd) -> None:
        try:
            self._sock.sendall(msgspec.json.encode(message) + b"\n")
        except OSError:
            return  # the agent has died: the exit status is not needed


def _now() -> float:
    """Return the seconds since boot, including the time for which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def main() -> int:
    """Run one program until it and everything it started are dead."""
    adopt_orphans()
    wake = _catch_signals()
    # If the agent dies, the control socket stays open as long as a process that the agent forked
    # has it.
    die_with_parent(signal.SIGTERM)
    control = _Control(take_socket(SUPERVISOR_FD))
    order = control.receive_order()
    if order is None:
        return 0
    try:
        process = _start(order)
    except OSError as exc:
        control.report(ProgramEnd(returncode=None, error=str(exc)))
        return 0
    control.report(ProgramStarted(process.pid))
    cause = _watch(control, process, wake, order.contact_seconds)
    returncode = process.wait()
    strays = kill_descendants()
    control.report(ProgramEnd(returncode=returncode, cause=cause, strays=strays))
    return 0


def _catch_signals() -> socket.socket:
    """Turn termination signals into bytes on a socket. Return the socket."""
    wake, written = socket.socketpair()
    wake.setblocking(False)
    written.setblocking(False)
    signal.set_wakeup_fd(written.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return wake


def _start(order: SupervisorOrder) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        order.program,
        stdin=subprocess.DEVNULL,
        stdout=order.output,
        stderr=order.output,
        pass_fds=order.descriptors,
        start_new_session=True,
        env=order.environment,
    )
    for descriptor in (*order.descriptors, order.output):
        os.close(descriptor)  # their ends are seen only when no process has them any more
    for kind, soft, hard in order.limits:
        try:
            resource.prlimit(process.pid, kind, (soft, hard))
        except ProcessLookupError:
            break  # it has ended already
    return process


def _watch(
    control: _Control, process: subprocess.Popen[bytes], wake: socket.socket, contact: float
) -> str:
    """Wait for the end of the program. If there is a cause, kill its group. Return the cause."""
    ended = os.pidfd_open(process.pid)
    poll = select.poll()
    for source in (control, wake, ended):
        poll.register(source, select.POLLIN)
    cause = ""
    while True:
        ready = {number for number, _ in poll.poll(_POLL_MS)}
        if ended in ready:
            return cause
        found = control.read() if control.fileno() in ready else ""
        if found == "agent":
            poll.unregister(control)  # at its end it stays readable
        if wake.fileno() in ready:
            wake.recv(4096)
            found = found or "signal"
        if not found and control.is_silent(contact):
            found = "contact"
        cause = cause or found
        if cause:
            # The program is not reaped yet, so its process id cannot have been reused.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
