"""What became of a process: its exit status, told as a failure."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from aioflow.model.states import Failure
from aioflow.processes.memory_limit import cgroup_files

__all__ = ("OomCounter", "describe_ending")

MESSAGE_LIMIT = 500

_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')
_OURS = "/aioflow/worker/"
_CALLS_SHOWN = 4


class OomCounter:
    """How often the kernel has killed for memory in a memory cgroup.

    Attributes:
        path: ``memory.events`` (version 2) or ``memory.oom_control`` (version 1); ``None``
            where there is neither, and then no death is ever blamed on memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._seen = self._read()

    @classmethod
    def of_this_process(cls, root: Path = Path("/sys/fs/cgroup")) -> OomCounter:
        """Return the counter of the cgroup this process, and so its children, lives in."""
        names = "memory.events", "memory.oom_control"
        return cls(next((path for path in cgroup_files(*names, root) if path.exists()), None))

    def claim(self) -> bool:
        """Say whether it rose; each kill is blamed on one death only."""
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
            return 0  # the cgroup file system was taken away: nothing to blame
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def describe_ending(returncode: int, *, out_of_memory: bool, last_words: bytes = b"") -> Failure:
    """Return the failure that stands for the end of a process.

    Args:
        returncode: As of ``subprocess``: negative for a signal.
        out_of_memory: Whether the kernel killed for memory just before.
        last_words: The end of its output, quoted where the process died by its own doing.
    """
    if returncode >= 0:
        return Failure(
            type="Exited",
            message=_told(f"the process ended with exit status {returncode}", last_words),
            reason="exit",
        )
    name = _signal_name(-returncode)
    if -returncode != signal.SIGKILL:
        message = _told(f"the process died of {name}", last_words)
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


def _told(what: str, last_words: bytes) -> str:
    """One line: the whole of it is in the try's log."""
    text = last_words.decode(errors="replace")
    words = _where_it_died(text) or " ".join(text.split())
    return f"{what}: {words}"[:MESSAGE_LIMIT] if words else what


def _where_it_died(text: str) -> str:
    """Return what Python's fault handler said, innermost call first, without our own frames."""
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
