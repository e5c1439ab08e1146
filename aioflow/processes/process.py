"""A child process: its link, its output, its lifetime, and its exit status as a failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import anyio
import msgspec
import psutil

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.filesystem import write_file
from aioflow.model.states import Failure
from aioflow.processes.memory import cgroup_files, resident_bytes
from aioflow.processes.orphans import Record, kill_marked, read_start_ticks, reap_marked
from aioflow.protocol.reports import Report
from aioflow.worker.link import Link, daemon_link

__all__ = (
    "Child",
    "CommandBuffer",
    "Footprint",
    "OomCounter",
    "Plumbing",
    "describe_exit",
    "own_words",
)

MESSAGE_LIMIT = 500

_FAULT_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_WORKER_FOLDER = "/aioflow/worker/"
_CALLS_SHOWN = 4


class OomCounter:
    """Counter of the kernel's out-of-memory kills in a memory cgroup.

    Attributes:
        path: ``memory.events`` (version 2) or ``memory.oom_control`` (version 1). ``None`` if there
            is neither. No death is attributed to memory then.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._seen = self._read()

    @classmethod
    def of_this_process(cls, root: Path = Path("/sys/fs/cgroup")) -> OomCounter:
        """Return the counter of the cgroup that contains this process and its children."""
        names = "memory.events", "memory.oom_control"
        return cls(next((path for path in cgroup_files(*names, root) if path.exists()), None))

    def claim(self) -> bool:
        """Claim one of the counted kills. Return whether there was an unclaimed kill."""
        if self._read() <= self._seen:
            return False
        self._seen += 1
        return True

    def _read(self) -> int:
        if self.path is None:
            return 0
        try:
            lines = self.path.read_text().splitlines()
        except OSError:
            return 0  # the cgroup file system was unmounted: attribute no death to memory
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def describe_exit(returncode: int, *, out_of_memory: bool, last_words: bytes = b"") -> Failure:
    """Return the failure that describes the end of a process.

    Args:
        returncode: Return code as in ``subprocess``: negative for a signal.
        out_of_memory: Whether the kernel has just killed a process for lack of memory.
        last_words: End of the output, quoted if the process ended or crashed by itself.
    """
    if returncode >= 0:
        return Failure(
            type="Exited",
            message=_with_output(f"the process ended with exit status {returncode}", last_words),
            reason="exit",
        )
    name = _signal_name(-returncode)
    if -returncode != signal.SIGKILL:
        message = _with_output(f"the process died of {name}", last_words)
        return Failure(type="Crashed", message=message, reason="crashed")
    if out_of_memory:
        message = "the kernel killed the process because memory ran out"
        return Failure(type="OutOfMemory", message=message, reason="oom")
    return Failure(type="Killed", message="the process was killed from outside", reason="killed")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # real-time signals have no name


def _with_output(what: str, last_words: bytes) -> str:
    """Return one line with the end of the output. The log of the try has all of the output."""
    text = last_words.decode(errors="replace")
    words = _where_it_died(text) or " ".join(text.split())
    return f"{what}: {words}"[:MESSAGE_LIMIT] if words else what


def _where_it_died(text: str) -> str:
    """Return the fault handler's traceback, innermost call first, without aioflow's frames."""
    _, is_fatal, dump = text.partition("Fatal Python error: ")
    _, has_thread, thread = dump.partition("Current thread ")
    if not is_fatal or not has_thread:
        return ""
    calls = []
    for file, line, function in _FAULT_FRAME.findall(thread.partition("\n\n")[0]):
        if _WORKER_FOLDER in file:
            break
        calls.append(f"{function} ({Path(file).name}:{line})")
    return f"{dump.splitlines()[0]} in {' <- '.join(calls[:_CALLS_SHOWN])}" if calls else ""


def own_words(output: bytes) -> bytes:
    """Return the output after aioflow's last mark, without lines of the watchdog."""
    return _MARKER.split(_BLOCKED.sub(b"", output))[-1]


NO_OWNER = -1
LINK_GRACE_SECONDS = 1.0
"""Grace period in which a child may exit by itself once its link has closed."""

SWEEPS = 30
SWEEP_AGAIN_SECONDS = 1.0
"""Delay before the next search for orphans of a dead child, after a search has failed."""

LAST_WORDS = 2_048
_CHUNK = 64 * 1024
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
    """The data by which a child can be found once it is dead.

    Attributes:
        record: The file of the child in ``HOME/run/children``.
        mark: The mark of the child and of everything it starts.
    """

    record: Path
    mark: str


class Child:
    """A running child. ``Children.child`` creates and ends it."""

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
        """Process id of the child, which is also the id of its group and session."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Whether ``send`` can still reach the child."""
        return self._link is not None and self._link.is_open

    def send(self, messages: Sequence[object]) -> None:
        """Send one frame of commands. Do nothing if the link has closed."""
        if self._link is not None:
            self._link.send(messages)

    def kill(self) -> None:
        """Kill the child's whole group at once. Do nothing if the child is dead."""
        self._signal(signal.SIGKILL)

    def dismiss(self) -> None:
        """Close the link, so that the child exits by itself. Kill it after a second."""
        if self._link is not None:
            self._link.close()

    async def stop(self, grace_seconds: float) -> None:
        """Send ``SIGTERM`` to the child's whole group. Kill the group after ``grace_seconds``."""
        self._signal(signal.SIGTERM)
        with anyio.move_on_after(grace_seconds):
            await self.ended()
        self.kill()

    async def ended(self) -> Failure:
        """Wait until the child and all it started are dead, and its last report was passed on.

        Return how the child ended.
        """
        await self._over.wait()
        assert self._failure is not None  # noqa: S101 - set before the event
        return self._failure

    def culprit(self) -> int:
        """Return the owner of the code that is running, from the crash recorder; -1 if none is."""
        if self._plumbing.black_box is None:
            return NO_OWNER
        data = os.pread(self._plumbing.black_box, _WORD.size, 0)
        number: int = _WORD.unpack(data)[0] if len(data) == _WORD.size else NO_OWNER
        return number if number > 0 else NO_OWNER

    def loop_seconds(self) -> float:
        """Return the processor time of the child's first thread; 0 once the child has ended."""
        try:
            return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def processor_seconds(self) -> float:
        """Return the processor time of all threads of the child; 0 once the child has ended."""
        try:
            used = psutil.Process(self.pid).cpu_times()
        except (OSError, psutil.Error):
            return 0.0
        return used.user + used.system

    def memory_bytes(self) -> int:
        """Return the resident memory of the child; 0 once the child has ended."""
        return resident_bytes(self.pid)

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
        """Wait until the child is dead, then clean up. May be called again after a cancellation."""
        if self._over.is_set():
            return
        await anyio.wait_readable(self._handle)
        if self._process.returncode is None:
            # The child is not reaped yet, so its process id cannot have been reused.
            self.kill()
            self._out_of_memory = self._died_of_kill() and self._oom.claim()
            self._process.wait()
        if self._grace is not None:
            self._grace.cancel()
        if strays := await self._kill_strays(limiter):
            _logger.warning("%s %d left %d processes; killed", self.role, self.pid, strays)
        # Reports that the child sent may still be on their way through the event loop.
        with anyio.move_on_after(LINK_GRACE_SECONDS):
            await self._link_over.wait()
            await self._output_over.wait()
        self._failure = describe_exit(
            self._process.returncode,
            out_of_memory=self._out_of_memory,
            last_words=own_words(self._last_words),
        )
        self._footprint.record.unlink(missing_ok=True)
        self._over.set()

    async def _kill_strays(self, limiter: anyio.CapacityLimiter) -> int:
        """Kill the processes that the child left behind, before another child may replace it.

        Raises:
            OSError: If the search fails ``SWEEPS`` times, a second apart. The daemon then searches
                again when it ends.
        """
        for sweep in range(1, SWEEPS + 1):
            try:
                return await in_thread(self._kill_marked, limiter=limiter)
            except OSError as exc:
                if sweep == SWEEPS:
                    raise
                if sweep == 1:
                    _logger.warning("cannot search for processes that %s left: %s", self.role, exc)
            await self._clock.sleep(SWEEP_AGAIN_SECONDS)
        return 0

    def _kill_marked(self) -> int:
        killed = kill_marked(self._footprint.mark)
        reap_marked(self._footprint.mark)
        return killed

    async def pump(self, on_output: Callable[[bytes], Awaitable[None]]) -> None:
        """Pass on the child's output until the pipe ends. Read it no faster than it is consumed."""
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
        """Wait until all of the child's output was passed on."""
        await self._output_over.wait()

    def abandon(self) -> None:
        """Kill the child without waiting for its last reports and output."""
        self.kill()
        self._link_over.set()
        self._output_over.set()

    def release(self) -> None:
        """Close the daemon's ends of the connections to the child."""
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
    """Record a child in a file, so that the next daemon finds it if this daemon is killed."""
    path = folder / str(pid)
    record = Record(pid, read_start_ticks(pid) or 0, boot, role)
    write_file(path, msgspec.json.encode(record))
    return path


class Receiver(Protocol):
    """A receiver of commands: a child, or a worker on another machine."""

    def send(self, messages: Sequence[object]) -> None:
        """Send one frame of commands."""


class CommandBuffer:
    """Commands to send to one child. Commands of the same event loop iteration share a frame."""

    __slots__ = ("_child", "_messages")

    def __init__(self, child: Receiver) -> None:
        self._child = child
        self._messages: list[object] = []

    def put(self, message: object) -> None:
        """Send a command with the next frame."""
        if not self._messages:
            asyncio.get_running_loop().call_soon(self._flush)
        self._messages.append(message)

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        self._child.send(messages)
