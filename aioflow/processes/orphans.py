"""Orphans: finding and killing what an earlier daemon, or a dead child, left running.

A process can be found by its group and session, which are its leader's process id, and by the mark
that everything a child starts inherits, see ``marks``. A process id alone proves nothing, because
ids are reused: a recorded process counts only with its start time and the boot it was started in.
All functions block for some milliseconds and are called in a thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from aioflow.processes.marks import carrier
from aioflow.worker import processes

__all__ = (
    "Record",
    "boot_id",
    "home_mark",
    "kill_marked",
    "read_start_ticks",
    "reap_marked",
    "sweep",
)

ROUNDS = 50
DEATH_MS = 2_000
"""How long to wait for one killed process to die; in uninterruptible sleep it stays."""


class Record(msgspec.Struct, frozen=True):
    """A child, as recorded in ``HOME/run/children/<pid>``.

    Attributes:
        start_ticks: When it was started, in the kernel's clock ticks since boot.
    """

    pid: int
    start_ticks: int
    boot_id: str
    role: str


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def home_mark(home: Path) -> str:
    """Return the mark for the children of this home; a copy of the folder has another mark."""
    status = home.stat()
    return f"{status.st_dev:x}-{status.st_ino:x}"


def read_start_ticks(pid: int) -> int | None:
    """Return the start time of a living process, or ``None`` if there is none with this id."""
    stat = processes.stat(pid)
    return None if stat is None or stat.is_zombie else stat.start_ticks


def kill_marked(mark: str) -> int:
    """Kill every process whose mark begins with ``mark``; return how many there were."""
    carries = carrier(mark)
    return _kill_all(lambda pid: carries(pid) and not _is_zombie(pid))


def reap_marked(mark: str, besides: Collection[int] = ()) -> None:
    """Reap zombies with this mark that were re-parented to this process.

    The kernel re-parents orphans to the first process of a container, for example. Children of
    other owners in this process, such as ``asyncio``, carry no mark and are left alone.

    Args:
        besides: Children with this mark whose exit status is still awaited.
    """
    carries = carrier(mark)
    for pid in processes.own_children().difference(besides):
        if _is_zombie(pid) and carries(pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def sweep(records: Path, mark: str) -> int:
    """Kill what an earlier daemon of this home left; return how many processes there were."""
    killed = 0
    for path in sorted(records.glob("*")):
        record = _read_record(path)
        if record is not None and record.boot_id == boot_id():
            killed += _kill_session(record)
        path.unlink(missing_ok=True)
    return killed + kill_marked(mark)


def _read_record(path: Path) -> Record | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except msgspec.DecodeError:
        return None  # the daemon died while it wrote this; the mark still finds the child


def _kill_session(record: Record) -> int:
    if read_start_ticks(record.pid) != record.start_ticks:
        return 0  # dead, or the id was reused: anything it left is found by the mark

    def belongs(pid: int) -> bool:
        stat = processes.stat(pid)
        return (
            stat is not None
            and not stat.is_zombie
            and record.pid in {stat.group, stat.session}
            and stat.start_ticks >= record.start_ticks
        )

    return _kill_all(belongs)


def _kill_all(is_ours: Callable[[int], bool]) -> int:
    killed: set[int] = set()
    for _ in range(ROUNDS):  # again, because what is being killed may fork meanwhile
        found = [pid for pid in processes.numbers() if pid != os.getpid() and is_ours(pid)]
        if not found:
            break
        for pid in found:
            _kill(pid, is_ours)
        killed.update(found)
    return len(killed)


def _kill(pid: int, is_ours: Callable[[int], bool]) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            # Only the handle is sure to mean the process that was examined.
            if is_ours(pid):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                _await_death(handle)
        finally:
            os.close(handle)


def _await_death(handle: int) -> None:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll(DEATH_MS)


def _is_zombie(pid: int) -> bool:
    stat = processes.stat(pid)
    return stat is None or stat.is_zombie
