"""A child process: its link, its output, its lifetime and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import resource
import signal
import socket
import struct
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import msgspec

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.filesystem import write_file
from aioflow.model.states import Failure
from aioflow.processes.exit_status import OomCounter, describe_exit
from aioflow.processes.orphans import Record, kill_marked, read_start_ticks, reap_marked
from aioflow.protocol.reports import Report
from aioflow.worker import processes
from aioflow.worker.link import Link, daemon_link

__all__ = ("Child", "Footprint", "Plumbing")

NO_OWNER = -1
LINK_GRACE_SECONDS = 1.0
"""Grace period for a child to exit by itself once its link has closed."""

SWEEPS = 30
SWEEP_AGAIN_SECONDS = 1.0
"""Delay before the next search for orphans of a dead child, if no descriptor was free."""

LAST_WORDS = 2_048
_CHUNK = 64 * 1024
_TICKS = os.sysconf("SC_CLK_TCK")
_WORD = struct.Struct("=q")
_MARKER = re.compile(rb"\x1e[0-9a-f]{16} \d+ \d+\n")
_BLOCKED = re.compile(rb"\x1e[0-9a-f]{16} stall [^\n]*\n")

_logger = logging.getLogger(__name__)


class Plumbing(msgspec.Struct, frozen=True):
    """The daemon's ends of the connections to one child."""

    link: socket.socket
    output: int
    black_box: int | None


class Footprint(msgspec.Struct, frozen=True):
    """How a child can be found once it is dead.

    Attributes:
        record: Its file in ``HOME/run/children``.
        mark: Carried by the child and by everything it starts.
    """

    record: Path
    mark: str


class Child:
    """A running child. Created by ``Children.child``, which also ends it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        plumbing: Plumbing,
        footprint: Footprint,
        oom: OomCounter,
        clock: Clock,
        *,
        role: str,
        log_nonce: str,
    ) -> None:
        self.role = role
        self.log_nonce = log_nonce
        self._process = process
        self._plumbing = plumbing
        self._footprint = footprint
        self._oom = oom
        self._clock = clock
        self._handle = os.pidfd_open(process.pid)
        self._link: Link[Report] | None = None
        self._link_over = asyncio.Event()
        self._output_over = asyncio.Event()
        self._over = asyncio.Event()
        self._failure: Failure | None = None
        self._out_of_memory = False
        self._last_words = b""
        self._grace: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """Process id, which is also that of its group and session."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """True while ``send`` can still reach the child."""
        return self._link is not None and self._link.is_open

    def send(self, messages: Sequence[object]) -> None:
        """Send one frame of commands. Does nothing if the link has closed."""
        if self._link is not None:
            self._link.send(messages)

    def kill(self) -> None:
        """Kill its whole group at once. Does nothing once the child is dead."""
        self._signal(signal.SIGKILL)

    def dismiss(self) -> None:
        """Close the link so that the child exits by itself; kill it after a second."""
        if self._link is not None:
            self._link.close()

    async def stop(self, grace_seconds: float) -> None:
        """Send ``SIGTERM`` to its whole group, and kill it after ``grace_seconds``."""
        self._signal(signal.SIGTERM)
        with anyio.move_on_after(grace_seconds):
            await self.ended()
        self.kill()

    async def ended(self) -> Failure:
        """Wait until it and all it started are dead and all its reports were passed on."""
        await self._over.wait()
        assert self._failure is not None  # noqa: S101 - set before the event
        return self._failure

    def culprit(self) -> int:
        """Return the owner of the code that runs, from the crash recorder; -1 if there is none."""
        if self._plumbing.black_box is None:
            return NO_OWNER
        data = os.pread(self._plumbing.black_box, _WORD.size, 0)
        number: int = _WORD.unpack(data)[0] if len(data) == _WORD.size else NO_OWNER
        return number if number > 0 else NO_OWNER

    def loop_seconds(self) -> float:
        """Return the processor time of its first thread; 0 once it has ended."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def processor_seconds(self) -> float:
        """Return the processor time of all its threads; 0 once it has ended."""
        found = processes.stat(self.pid)
        return 0.0 if found is None else found.processor_ticks / _TICKS

    def memory_bytes(self) -> int:
        """Return its resident memory; 0 once it has ended."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        except OSError:
            return 0
        return int(fields[1]) * resource.getpagesize()

    # ── for Children only ───────────────────────────────────────────────────────────────

    async def connect(self, on_reports: Callable[[list[Report]], None]) -> None:
        """Start to receive reports."""

        def on_closed(reason: str) -> None:
            self._link_over.set()
            if self._process.returncode is None:
                _logger.debug("link of %s %d closed: %s", self.role, self.pid, reason)
                loop = asyncio.get_running_loop()
                self._grace = loop.call_later(LINK_GRACE_SECONDS, self.kill)

        self._link = await daemon_link(self._plumbing.link, on_reports, on_closed)

    async def watch(self, limiter: anyio.CapacityLimiter) -> None:
        """Wait for its death, then clean up. May be called again after a cancellation."""
        if self._over.is_set():
            return
        await anyio.wait_readable(self._handle)
        if self._process.returncode is None:
            # Not reaped yet, so the process id cannot have been reused.
            self.kill()
            self._out_of_memory = self._died_of_kill() and self._oom.claim()
            self._process.wait()
        if self._grace is not None:
            self._grace.cancel()
        if strays := await self._kill_strays(limiter):
            _logger.warning("%s %d left %d processes; killed", self.role, self.pid, strays)
        # Reports sent before its death may still be on their way through the event loop.
        with anyio.move_on_after(LINK_GRACE_SECONDS):
            await self._link_over.wait()
            await self._output_over.wait()
        self._failure = describe_exit(
            self._process.returncode,
            out_of_memory=self._out_of_memory,
            last_words=_MARKER.split(_BLOCKED.sub(b"", self._last_words))[-1],
        )
        self._footprint.record.unlink(missing_ok=True)
        self._over.set()

    async def _kill_strays(self, limiter: anyio.CapacityLimiter) -> int:
        """Kill what the child started and left, before it may be replaced.

        Raises:
            OSError: If the search fails every time (``SWEEPS`` tries, a second apart). The daemon
                then sweeps at its end.
        """
        for sweep in range(1, SWEEPS + 1):
            try:
                return await in_thread(self._kill_marked, limiter=limiter)
            except OSError as exc:
                if sweep == SWEEPS:
                    raise
                if sweep == 1:
                    _logger.warning("cannot look for what %s left: %s", self.role, exc)
            await self._clock.sleep(SWEEP_AGAIN_SECONDS)
        return 0

    def _kill_marked(self) -> int:
        killed = kill_marked(self._footprint.mark)
        reap_marked(self._footprint.mark)
        return killed

    async def pump(self, on_output: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass on its output until the pipe ends, reading no faster than it is consumed."""
        try:
            while True:
                await anyio.wait_readable(self._plumbing.output)
                data = os.read(self._plumbing.output, _CHUNK)
                if not data:
                    return
                self._last_words = (self._last_words + data)[-LAST_WORDS:]
                await on_output(data)
        finally:
            self._output_over.set()

    async def output_over(self) -> None:
        """Wait until the last of its output was passed on."""
        await self._output_over.wait()

    def abandon(self) -> None:
        """Kill the child without waiting for its last reports and output."""
        self.kill()
        self._link_over.set()
        self._output_over.set()

    def release(self) -> None:
        """Close the daemon's ends."""
        if self._link is None:
            self._plumbing.link.close()
        else:
            self._link.close()
        for descriptor in (self._plumbing.output, self._handle, self._plumbing.black_box):
            if descriptor is not None:
                os.close(descriptor)

    def _died_of_kill(self) -> bool:
        status = os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOWAIT)
        return (
            status is not None
            and status.si_code == os.CLD_KILLED
            and status.si_status == signal.SIGKILL
        )

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def write_record(folder: Path, pid: int, boot: str, role: str) -> Path:
    """Record a child, so that the next daemon finds it if this one is killed."""
    path = folder / str(pid)
    record = Record(pid, read_start_ticks(pid) or 0, boot, role)
    write_file(path, msgspec.json.encode(record))
    return path
