"""The role ``parser``: forks a process per file, supervises it, and reports the outcome.

It has imported what every DAG file needs and never runs user code. So each file gets a fresh
process for the price of a fork instead of a start. The effects of a file are confined to its own
process, and all processes it starts are killed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NoReturn

import msgspec

from aioflow.errors import LinkClosed
from aioflow.protocol.commands import Inspect, Order, Parse, ParserLimits
from aioflow.protocol.parse_results import NO_ROOM, DagFailure, Inspected, Named, Parsed, ParserDied
from aioflow.worker import process_tree
from aioflow.worker.failures import print_traceback
from aioflow.worker.frames import BlockingLink, complete_frames
from aioflow.worker.module_names import ModuleState, watch_loaders
from aioflow.worker.parse import handle
from aioflow.worker.process import adopt_orphans, die_with_parent, limit_parser, stand_back
from aioflow.worker.shared_state import SharedState
from aioflow.worker.stdio import configure_logging, line_by_line

__all__ = ("Forking",)

POLL_SECONDS = 0.1
"""How often the number of processes is checked."""

_FAULT = 70
_CLOSED = 113
"""Exit status of a fork whose link was closed by the file."""
_decoder = msgspec.msgpack.Decoder(list[Parsed | Inspected | Named])
_LAST_WORDS = 2_048
_CHUNK = 64 * 1024


class Forking:
    """The parser.

    Args:
        sock: The socket of the link.
    """

    def __init__(self, link: BlockingLink, sock: socket.socket) -> None:
        self._link = link
        self._sock = sock
        line_by_line()
        stand_back()
        adopt_orphans()
        configure_logging()  # as in a shared child, where changes to logging would matter
        watch_loaders()
        self._shared = SharedState()
        self._modules = ModuleState(sys.modules)
        gc.collect()
        gc.freeze()  # pages that are never written are not copied after a fork

    def run(self, first: Sequence[Order] = ()) -> None:
        """Process one file after the other until the link closes."""
        commands = list(first)
        while True:
            for command in commands:
                if not isinstance(command, Parse | Inspect):
                    raise LinkClosed(f"a parser was ordered {type(command).__name__}")
                self._link.send([self._look(command)])
            commands = self._link.receive()

    def _look(self, command: Parse | Inspect) -> Parsed | Inspected | ParserDied:
        with ExitStack() as ours:
            with ExitStack() as theirs:
                try:
                    pid, sock, output = self._fork(command, ours, theirs)
                except OSError as exc:
                    return ParserDied(exc.errno or 0, b"", NO_ROOM, exc.strerror or "")
            return _Watch(pid, sock, output, command.limits).result()

    def _fork(
        self, command: Parse | Inspect, ours: ExitStack, theirs: ExitStack
    ) -> tuple[int, socket.socket, int]:
        """Fork a process. Return its pid and our ends of its link and its output."""
        sock, sock_end = socket.socketpair()
        ours.callback(sock.close)
        theirs.callback(sock_end.close)
        output, output_end = os.pipe()
        ours.callback(os.close, output)
        theirs.callback(os.close, output_end)
        pid = os.fork()
        if pid == 0:
            sock.close()
            os.close(output)
            self._be_forked(command, sock_end, output_end)
        return pid, sock, output

    def _be_forked(self, command: Parse | Inspect, sock: socket.socket, output: int) -> NoReturn:
        """Run as the forked process that imports the file. Never returns."""
        try:
            os.setsid()
            die_with_parent()
            self._sock.close()
            for number in (1, 2):
                os.dup2(output, number)
            os.close(output)
            limit_parser(command.limits.memory_bytes)
            handle(command, _LinkOfFork(sock), self._shared, self._modules)
            # Skip threads and exit handlers of the file.
            os._exit(0)
        except BaseException as exc:  # noqa: BLE001 - nothing may lead back into the fork's parent
            print_traceback(exc)
        finally:
            os._exit(_FAULT)


class _LinkOfFork(BlockingLink):
    """A link that exits the process if the imported file has closed it.

    Another file may have the same descriptor number by then, so the inode is compared.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._number = sock.fileno()
        self._inode = os.fstat(self._number).st_ino

    def send(self, messages: Sequence[object]) -> None:
        """See ``BlockingLink``."""
        try:
            is_ours = os.fstat(self._number).st_ino == self._inode
        except OSError:
            is_ours = False
        if not is_ours:
            os._exit(_CLOSED)
        super().send(messages)


class _Watch:
    """Supervises one forked process until it and all processes it started have ended."""

    def __init__(self, pid: int, sock: socket.socket, output: int, limits: ParserLimits) -> None:
        self._pid = pid
        self._sock = sock
        self._output = output
        self._limits = limits
        self._until = time.monotonic() + limits.wall_seconds
        self._buffer = bytearray()
        self._tasks = process_tree.tasks_of_machine()
        self._printed = 0
        self._last_words = b""
        self._named = Named()
        self._answer: Parsed | Inspected | None = None
        self._went_beyond = ("", "")

    def result(self) -> Parsed | Inspected | ParserDied:
        """Return its report, or how it ended."""
        handle = os.pidfd_open(self._pid)
        try:
            self._listen(handle)
            self._kill()
            status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        finally:
            os.close(handle)
        self._take_rest()
        left = process_tree.kill_all()
        if status == _CLOSED and not self._went_beyond[0]:
            message = "importing the file closed descriptors that it had not opened"
            self._went_beyond = ("descriptors", message)
        if self._answer is None:
            return ParserDied(status, self._last_words, *self._went_beyond, self._named)
        return _with_left(self._answer, left)

    def _listen(self, handle: int) -> None:
        poll = select.poll()
        for descriptor in (self._sock.fileno(), self._output, handle):
            poll.register(descriptor, select.POLLIN)
        look_at = time.monotonic() + POLL_SECONDS
        while self._answer is None and not self._went_beyond[0]:
            ready = {descriptor for descriptor, _ in poll.poll(POLL_SECONDS * 1e3)}
            if self._output in ready and not self._take_output():
                poll.unregister(self._output)
            if self._sock.fileno() in ready and not self._take_reports():
                poll.unregister(self._sock)
            if handle in ready:
                return
            if time.monotonic() >= look_at:  # also while it prints without a pause
                self._count_processes()
                look_at = time.monotonic() + POLL_SECONDS
            if time.monotonic() > self._until:
                seconds = self._limits.wall_seconds
                self._went_beyond = ("timeout", f"parsing took longer than {seconds:g} s")

    def _take_rest(self) -> None:
        """Read what it had sent when it died, including the end of its output."""
        self._take_output()
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while poll.poll(0) and self._take_reports():
            pass

    def _take_output(self) -> bool:
        """Read and count its output. Return whether there may be more."""
        os.set_blocking(self._output, False)
        try:
            data = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return True
        self._last_words = (self._last_words + data)[-_LAST_WORDS:]
        self._printed += len(data)
        if self._printed > self._limits.output_bytes and not self._went_beyond[0]:
            limit = self._limits.output_bytes // 1024
            message = f"importing the file printed more than {limit} KiB"
            self._went_beyond = ("output", message)
        return bool(data)

    def _take_reports(self) -> bool:
        """Read its reports, ignoring those after its answer. Return whether there may be more."""
        try:
            data = self._sock.recv(_CHUNK * 16, socket.MSG_DONTWAIT)
            self._buffer += data
            for frame in complete_frames(self._buffer):
                for report in _decoder.decode(frame):
                    self._take(report)
        except BlockingIOError:
            return True
        except (OSError, LinkClosed, msgspec.DecodeError):
            return False  # the file wrote to a descriptor that is not its own
        return bool(data)

    def _take(self, report: Parsed | Inspected | Named) -> None:
        if isinstance(report, Named):
            self._named = report
        elif self._answer is None:
            self._answer = report

    def _count_processes(self) -> None:
        limit = self._limits.processes
        tasks = process_tree.tasks_of_machine()
        if 0 <= tasks < self._tasks + limit:
            return
        if process_tree.count() > limit:
            message = f"importing the file started more than {limit} processes"
            self._went_beyond = ("processes", message)

    def _kill(self) -> None:
        """Kill it; if it exceeded a limit, kill its whole session at once, before it multiplies."""
        for kill in (os.kill,) if self._answer is not None else (os.killpg, os.kill):
            # It may not have created its session yet. Until it is waited for, it is at least a
            # zombie. A process that now belongs to another user cannot be killed.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)


def _with_left(answer: Parsed | Inspected, left: int) -> Parsed | Inspected:
    if not left or isinstance(answer, Inspected):
        return answer
    message = f"importing the file left {left} processes behind, which were killed"
    failures = (*answer.failures, DagFailure("processes", message))
    return msgspec.structs.replace(answer, failures=failures)
