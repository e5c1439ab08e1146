"""Children forked by a server of this pytest process, with the interface of ``Popen``."""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from tests import cpu_budget
from tests.worker import fork_server
from tests.worker.fork_server import Fork, Order, Reap

__all__ = ("ForkServer", "ForkedProcess", "fork")

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class ForkServer:
    """The server process, and the socket on which it accepts orders.

    Each case is charged for the children that it lets the server reap, but not for the imports.

    Args:
        environment: The environment of the server itself. Its children have the same locale.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(PATIENCE)
        with cpu_budget.uncharged(), theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", fork_server.__name__, str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            theirs.close()
            cpu_budget.measure(self.process.pid)
            self._answer()

    def execute(self, order: Order, descriptors: Sequence[int] = ()) -> int:
        """Send an order, with these descriptors. Return the reply."""
        with self._lock:
            try:
                socket.send_fds(self._sock, [msgspec.msgpack.encode(order)], descriptors)
                return self._answer()
            except (OSError, KeyboardInterrupt):
                self._sock.close()  # its answer would be taken for that of the next order
                raise

    def _answer(self) -> int:
        data = self._sock.recv(64)
        if not data:
            assert self.process.stdout is not None
            raise RuntimeError(f"the fork server has ended: {self.process.stdout.read()!r}")
        return msgspec.msgpack.decode(data, type=int)

    def close(self) -> int:
        """End the server and all of its children. Return its status."""
        self._sock.close()
        status = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status


class ForkedProcess:
    """A child of the server.

    Attributes:
        stdout: The stdout and stderr of the child.
        returncode: ``None`` until ``poll`` or ``wait`` finds that the child has ended.
    """

    def __init__(
        self, server: ForkServer, environment: dict[str, str], passed: Sequence[int]
    ) -> None:
        self._server = server
        self._lock = threading.Lock()
        reading, writing = os.pipe()
        self.stdout = os.fdopen(reading, "rb")
        self.returncode: int | None = None
        try:
            self.pid = server.execute(Fork(environment, str(Path.cwd())), [writing, *passed])
        finally:
            os.close(writing)
        self._end = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return the status of the child if it has ended, otherwise ``None``."""
        self._wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the child. Return its status.

        Raises:
            TimeoutExpired: If that takes longer.
        """
        self._wait(None if timeout is None else round(timeout * 1000))
        if self.returncode is None:
            raise subprocess.TimeoutExpired(fork_server.PROGRAM, timeout or 0.0)
        return self.returncode

    def _wait(self, milliseconds: int | None) -> None:
        if self.returncode is not None:
            return
        end = select.poll()
        end.register(self._end, select.POLLIN)
        if not end.poll(milliseconds):
            return
        with self._lock:
            if self.returncode is None:
                self.returncode = self._server.execute(Reap(self.pid))
                os.close(self._end)

    def kill(self) -> None:
        """Kill the child unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def fork(environment: dict[str, str], passed: Sequence[int]) -> ForkedProcess:
    """Fork a child from the server of this process, which the first call starts.

    Args:
        environment: The complete environment of the child.
        passed: Descriptors of its link and, if it has one, of its crash recorder.
    """
    path = environment.get("PYTHONPATH")
    return ForkedProcess(_server(path), environment, passed)


@cache
def _server(python_path: str | None) -> ForkServer:
    environment = {"PATH": os.environ["PATH"]}
    if python_path is not None:
        environment["PYTHONPATH"] = python_path
    server = ForkServer(environment)
    atexit.register(server.close)
    return server
