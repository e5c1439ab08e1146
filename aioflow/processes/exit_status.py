"""The exit status of a process, described as a failure."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from aioflow.model.states import Failure
from aioflow.processes.memory_limit import cgroup_files

__all__ = ("OomCounter", "describe_exit")

MESSAGE_LIMIT = 500

_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_OURS = "/aioflow/worker/"
_CALLS_SHOWN = 4


class OomCounter:
    """Counter of the kernel's out-of-memory kills in a memory cgroup.

    Attributes:
        path: ``memory.events`` (version 2) or ``memory.oom_control`` (version 1); ``None`` if there
            is neither, and then no death is ever attributed to memory.
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
        """Return whether the count rose. Each kill is attributed to one death only."""
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
            return 0  # the cgroup file system was unmounted: nothing to attribute
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def describe_exit(returncode: int, *, out_of_memory: bool, last_words: bytes = b"") -> Failure:
    """Return the failure that describes the end of a process.

    Args:
        returncode: As of ``subprocess``: negative for a signal.
        out_of_memory: Whether the kernel killed for memory just before.
        last_words: End of its output, quoted if the process ended or crashed by itself.
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
    """Return one line with the end of the output; all of the output is in the try's log."""
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
    for file, line, function in _FRAME.findall(thread.partition("\n\n")[0]):
        if _OURS in file:
            break
        calls.append(f"{function} ({Path(file).name}:{line})")
    return f"{dump.splitlines()[0]} in {' <- '.join(calls[:_CALLS_SHOWN])}" if calls else ""
