"""Child processes: spawning, watching, killing, and cleaning up after them.

A child lives no longer than the ``async with`` block that created it. However the block ends, the
child's whole process group is dead afterwards. So is everything that the child started, even a
process that forked twice and created its own session.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock, SystemClock
from aioflow.errors import InterpreterUnusable
from aioflow.filesystem import make_folder
from aioflow.processes.environment import MARK, child_environment, foreign_environment
from aioflow.processes.memory import NoHeadroom, ProcessHeadroom, memory_limit_bytes
from aioflow.processes.orphans import (
    boot_id,
    home_mark,
    kill_marked,
    mark_process,
    reap_marked,
    sweep,
)
from aioflow.processes.process import (
    Child,
    CommandBuffer,
    Footprint,
    OomCounter,
    Plumbing,
    describe_exit,
    write_record,
)
from aioflow.protocol.reports import Report

__all__ = (
    "PROGRAM",
    "Child",
    "Children",
    "CommandBuffer",
    "Launch",
    "NoHeadroom",
    "describe_exit",
    "memory_limit_bytes",
)

_ARGUMENTS = ("-P", "-m", "aioflow.worker")

PROGRAM = (sys.executable, *_ARGUMENTS)
"""Command line of a child. ``-P`` keeps files in the working directory from shadowing libraries."""

_NO_PROGRAM = frozenset(
    {
        errno.EACCES,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOEXEC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EINVAL,
    }
)
"""Errors on a start that are caused by the program, not by the machine."""

OUTPUT_GRACE_SECONDS = 5.0
REAP_SECONDS = 10.0
"""Interval for reaping zombies of grandchildren, if the kernel re-parents them to the daemon."""

_SWEEPERS = 2

_logger = logging.getLogger(__name__)


class Launch(msgspec.Struct, frozen=True):
    """How to start a child in an interpreter other than the daemon's own.

    Attributes:
        interpreter: Name of the interpreter in the settings.
        generation: Increases with each change of the interpreter; see ``interpreters``.
        path: Path of the interpreter.
        root: Root of its virtual environment; empty if it is not in one.
    """

    interpreter: str
    generation: int
    path: str
    root: str = ""

    @property
    def program(self) -> tuple[str, ...]:
        """Command line of a child."""
        return (self.path, *_ARGUMENTS)


class Children:
    """The child processes of one daemon. ``run`` must be started before anything is spawned.

    Args:
        home: Home directory. Its folder ``run/children`` contains a record of each child.
        program: Command line of a child. The child's role is sent over the link.
        environment: Variables from which children inherit some; by default the daemon's own.
        allowed: Names, or patterns of names, of further variables that children inherit.
        clock: Clock for waits, such as the wait before another attempt to start a process.
    """

    def __init__(
        self,
        home: Path,
        *,
        program: Sequence[str] = PROGRAM,
        environment: Mapping[str, str] | None = None,
        allowed: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._program = tuple(program)
        source = os.environ if environment is None else environment
        self._allowed = tuple(allowed)
        self._environment = child_environment(source, allowed)
        self._records = home / "run" / "children"
        make_folder(self._records)
        self._mark = home_mark(home)
        self._boot = boot_id()
        self._oom = OomCounter.of_this_process()
        # Use a separate limiter, so that slow disks do not delay waiting for the death of a
        # process.
        self._sweepers = anyio.CapacityLimiter(_SWEEPERS)
        self._clock = clock or SystemClock()
        self._headroom = ProcessHeadroom(self._clock)
        self._waited_for: set[int] = set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Kill all processes that an earlier daemon left.

        Signal ``task_status``. Sweep again at the end.
        """
        clear = partial(sweep, self._records, f"{self._mark}:")
        if killed := await in_thread(clear, limiter=self._sweepers):
            _logger.warning("killed %d orphaned processes of an earlier daemon", killed)
        task_status.started()
        try:
            while True:
                await self._clock.sleep(REAP_SECONDS)
                self._reap()
        finally:
            with anyio.CancelScope(shield=True):
                last = partial(kill_marked, f"{self._mark}:")
                await in_thread(last, limiter=self._sweepers)

    def _reap(self) -> None:
        """Reap zombies that were re-parented to this process.

        If no file descriptor is free, the next call reaps them.
        """
        try:
            # Run in this thread, because no child must be started between the search and the
            # reaping.
            reap_marked(f"{self._mark}:", self._waited_for)
        except OSError as exc:
            _logger.warning("cannot search for orphaned processes: %s", exc)

    @asynccontextmanager
    async def child(
        self,
        role: str,
        *,
        on_reports: Callable[[list[Report]], None],
        on_output: Callable[[bytes], Awaitable[None]],
        black_box: bool = False,
        limits: Mapping[int, int] | None = None,
        launch: Launch | None = None,
        arguments: Sequence[str] = (),
    ) -> AsyncIterator[Child]:
        """Start a child. When the block ends, the child and everything it started are dead.

        Args:
            role: Role of the child, for its record and the log.
            on_reports: Called with the reports of each frame, from the event loop.
            on_output: Awaited with each piece of output. No more output is read until it returns.
            black_box: Whether the child runs code of many owners, and records whose code is
                running.
            limits: Value of each limit, by ``resource.RLIMIT_*``.
            launch: The interpreter; ``None`` for the daemon's own.
            arguments: Arguments of the interpreter ``launch``, if it is to run another program than
                that of children.

        Raises:
            NoHeadroom: If the machine cannot start another process now.
            InterpreterUnusable: If there is no program at the path of ``launch``.
        """
        # There must be no await between the fork and ``try``. Otherwise a cancellation could leave
        # the child without an owner.
        child = self._start(role, launch, arguments, black_box=black_box, limits=limits or {})
        try:
            await child.connect(on_reports)
            async with anyio.create_task_group() as group:
                group.start_soon(child.watch, self._sweepers)
                group.start_soon(child.pump, on_output)
                yield child
                child.kill()
                await child.ended()
                with anyio.move_on_after(OUTPUT_GRACE_SECONDS):
                    await child.output_over()
                group.cancel_scope.cancel()
        finally:
            child.abandon()
            try:
                with anyio.CancelScope(shield=True):
                    await child.watch(self._sweepers)
            finally:
                self._waited_for.discard(child.pid)
                child.release()

    def refused(self, role: str, exc: OSError) -> NoHeadroom:
        """Record that a child could not start a process for a role. Return the error to raise."""
        return self._headroom.refused(role, exc)

    async def wait_for_headroom(self) -> None:
        """Wait, after ``NoHeadroom``, until a process was started or another attempt is due."""
        await self._headroom.wait()

    def _start(
        self,
        role: str,
        launch: Launch | None,
        arguments: Sequence[str],
        *,
        black_box: bool,
        limits: Mapping[int, int],
    ) -> Child:
        """Start a process. The errors are those of ``child``."""
        program, environment = self._program, self._environment
        if launch is not None:
            program = (launch.path, *arguments) if arguments else launch.program
            environment = foreign_environment(environment, launch.path, launch.root, self._allowed)
        found: Child | OSError
        with self._headroom.attempt(role):
            try:
                found = self._spawn(role, program, environment, black_box=black_box, limits=limits)
            except OSError as exc:
                if launch is None or exc.errno not in _NO_PROGRAM:
                    raise
                found = exc
        if isinstance(found, Child):
            return found
        assert launch is not None  # noqa: S101 - otherwise an error was raised
        raise InterpreterUnusable(launch.interpreter, launch.path, str(found.strerror))

    def _spawn(
        self,
        role: str,
        program: Sequence[str],
        environment: Mapping[str, str],
        *,
        black_box: bool,
        limits: Mapping[int, int],
    ) -> Child:
        mark = f"{self._mark}:{secrets.token_hex(8)}"
        log_nonce = secrets.token_hex(8)
        with ExitStack() as ours, ExitStack() as theirs:
            link, link_end = socket.socketpair()
            ours.callback(link.close)
            theirs.callback(link_end.close)
            output, output_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            ours.callback(os.close, output)
            theirs.callback(os.close, output_end)
            os.set_blocking(output_end, True)
            passed = {"AIOFLOW_LINK_FD": link_end.fileno()}
            box = None
            if black_box:
                box = passed["AIOFLOW_BLACKBOX_FD"] = os.memfd_create("aioflow-blackbox")
                ours.callback(os.close, box)
            process = subprocess.Popen(
                program,
                stdin=subprocess.DEVNULL,
                stdout=output_end,
                stderr=output_end,
                pass_fds=tuple(passed.values()),
                start_new_session=True,
                env={
                    **environment,
                    **{name: str(number) for name, number in passed.items()},
                    "AIOFLOW_LOG_NONCE": log_nonce,
                    MARK: mark,
                },
            )
            ours.callback(process.wait)
            ours.callback(process.kill)
            _limit(process.pid, {resource.RLIMIT_CORE: 0, **limits}, mark)
            record = write_record(self._records, process.pid, self._boot, role)
            child = Child(
                process,
                Plumbing(link, output, box),
                Footprint(record, mark),
                self._oom,
                self._clock,
                role=role,
                log_nonce=log_nonce,
            )
            self._waited_for.add(process.pid)
            ours.pop_all()
        return child


def _limit(pid: int, limits: Mapping[int, int], mark: str) -> None:
    """Set limits of a running child, as code between fork and exec is not safe with threads."""
    # A process that has ended has no limits. Its watcher reports the end.
    with contextlib.suppress(ProcessLookupError):
        mark_process(pid, mark)
        for kind, value in limits.items():
            resource.prlimit(pid, kind, (value, value))
