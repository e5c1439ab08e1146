"""Orphans, the processes that an earlier daemon or a dead child left: finding and killing them.

A process can be found by its group and session, whose id is their leader's process id, and by its
mark, which everything that a child starts inherits. A process id alone proves nothing, because ids
are reused. A recorded process is recognized only together with its start time and boot id. All
functions that search block for some milliseconds and are called in a thread.

Each child has its own mark, ``<home id>:<nonce>``. The prefix ``<home id>:`` matches every child of
the home. Descendants inherit the mark in two places:

- The environment variable ``AIOFLOW_CHILD_OF``. It is readable for people, but a program that
  clears its environment loses it.
- The resource limit ``RLIMIT_RTTIME``, which survives ``fork``, ``exec``, ``setsid``, re-parenting
  and a change of user. The hard limit encodes the home, and the soft limit the nonce. Both exceed
  70,000 years of uninterrupted real-time computation, so the limit itself has no effect.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import select
import signal
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from aioflow.processes.environment import MARK
from aioflow.worker import process_tree

__all__ = (
    "Record",
    "boot_id",
    "carries_mark",
    "home_mark",
    "kill_marked",
    "mark_limits",
    "mark_process",
    "read_start_ticks",
    "reap_marked",
    "sweep",
)

_MARK_LIMIT = resource.RLIMIT_RTTIME
_MARK_BITS = (1 << 60) - 1
_NONCE_BIT = 1 << 61
_HOME_BIT = 1 << 62
"""Bit that is set in every hard limit.

It makes the hard limit larger than any soft limit, as required.
"""


def mark_process(pid: int, mark: str) -> None:
    """Set the mark in the limit of a process. Processes that it starts later inherit the mark.

    If the daemon itself runs under such a limit, the limit is not changed. Only the environment
    then carries the mark.

    Raises:
        ProcessLookupError: If the process has ended.
    """
    for kind, soft, hard in mark_limits(mark):
        resource.prlimit(pid, kind, (soft, hard))


def mark_limits(mark: str) -> tuple[tuple[int, int, int], ...]:
    """Return the limits ``(resource.RLIMIT_*, soft, hard)`` that mark a process.

    Return no limits if this process itself runs under such a limit, see ``mark_process``.
    """
    if resource.getrlimit(_MARK_LIMIT)[1] != resource.RLIM_INFINITY:
        return ()
    return ((_MARK_LIMIT, _soft_limit(mark), _hard_limit(mark)),)


def carries_mark(mark: str) -> Callable[[int], bool]:
    """Return a predicate for processes whose mark is ``mark`` or begins with it.

    Zombies keep the limit, but not the environment.
    """
    home, nonce = _hard_limit(mark), None if mark.endswith(":") else _soft_limit(mark)
    variable = f"{MARK}={mark}".encode()

    def carries(pid: int) -> bool:
        return _limit_carries(pid, home, nonce) or _environment_carries(pid, variable)

    return carries


def _limit_carries(pid: int, home: int, nonce: int | None) -> bool:
    try:
        soft, hard = resource.prlimit(pid, _MARK_LIMIT)
    except OSError:
        return False  # the process has ended, or belongs to another user
    return hard == home and nonce in {None, soft}


def _environment_carries(pid: int, variable: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # the process has ended, or belongs to another user
    return any(entry.startswith(variable) for entry in environment.split(b"\0"))


def _soft_limit(mark: str) -> int:
    return _NONCE_BIT | int(mark.partition(":")[2], 16) & _MARK_BITS


def _hard_limit(mark: str) -> int:
    home = mark.partition(":")[0]
    return (
        _HOME_BIT | int.from_bytes(hashlib.sha256(home.encode()).digest()[:8], "big") & _MARK_BITS
    )


KILL_ROUNDS = 50
DEATH_MS = 2_000
"""How long to wait for a killed process to die. In uninterruptible sleep, it does not die."""


class Record(msgspec.Struct, frozen=True):
    """A child, as recorded in ``HOME/run/children/<pid>``.

    Attributes:
        start_ticks: Start time of the process, in the kernel's clock ticks since boot.
    """

    pid: int
    start_ticks: int
    boot_id: str
    role: str


def boot_id() -> str:
    """Return the id of the current boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def home_mark(home: Path) -> str:
    """Return the home id, with which the marks of all children of a home begin.

    A copy of the home folder has another id.
    """
    status = home.stat()
    return f"{status.st_dev:x}-{status.st_ino:x}"


def read_start_ticks(pid: int) -> int | None:
    """Return the start time of a living process; ``None`` if no process has this id."""
    stat = process_tree.process_stat(pid)
    return None if stat is None or stat.is_zombie else stat.start_ticks


def kill_marked(mark: str) -> int:
    """Kill every process whose mark begins with ``mark``. Return the number of processes."""
    carries = carries_mark(mark)
    return _kill_all(lambda pid: carries(pid) and not _is_zombie(pid))


def reap_marked(mark: str, besides: Collection[int] = ()) -> None:
    """Reap zombies with this mark that were re-parented to this process.

    The kernel re-parents orphans to the first process of a container, for example. Children of
    other owners in this process, such as ``asyncio``, carry no mark and are left alone.

    Args:
        besides: Children with this mark whose exit status is still awaited.
    """
    carries = carries_mark(mark)
    for pid in process_tree.own_children().difference(besides):
        if _is_zombie(pid) and carries(pid):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def sweep(records: Path, mark: str) -> int:
    """Kill all processes that an earlier daemon of this home left.

    Return the number of processes.
    """
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
        return None  # the daemon died while it wrote the record; the mark still finds the child


def _kill_session(record: Record) -> int:
    if read_start_ticks(record.pid) != record.start_ticks:
        return 0  # the child is dead, or its id was reused: the mark finds its remaining processes

    def belongs(pid: int) -> bool:
        stat = process_tree.process_stat(pid)
        return (
            stat is not None
            and not stat.is_zombie
            and record.pid in {stat.group, stat.session}
            and stat.start_ticks >= record.start_ticks
        )

    return _kill_all(belongs)


def _kill_all(is_ours: Callable[[int], bool]) -> int:
    killed: set[int] = set()
    for _ in range(KILL_ROUNDS):  # several times: processes may fork while others are killed
        found = [pid for pid in process_tree.process_ids() if pid != os.getpid() and is_ours(pid)]
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
            # Check again with the handle open, because only the handle surely refers to the same
            # process.
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
    stat = process_tree.process_stat(pid)
    return stat is None or stat.is_zombie
