"""The processes of this machine, as reported by the kernel. Blocks for some milliseconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ("Stat", "has_children", "numbers", "own_children", "stat")

_PROC = Path("/proc")
_THREADS = "/proc/self/task"


class Stat(NamedTuple):
    """One process.

    Attributes:
        is_zombie: It has ended, but its parent has not reaped it.
        start_ticks: Start time, in the kernel's clock ticks since boot.
        processor_ticks: CPU time of its threads, in the same ticks.
    """

    is_zombie: bool
    parent: int
    group: int
    session: int
    start_ticks: int
    processor_ticks: int


def numbers() -> Iterator[int]:
    """Yield the ids of all processes."""
    for name in os.listdir(_PROC):  # noqa: PTH208 - thousands of Path objects for a name each
        if name.isdigit():
            yield int(name)


def has_children() -> bool:
    """Return whether this process has children, including zombies. Takes about a microsecond."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def own_children() -> set[int]:
    """Return the process ids of the children of this process, including zombies."""
    try:
        # One list per thread; adopted processes are in the list of the first thread.
        return {pid for thread in os.listdir(_THREADS) for pid in _children_of(thread)}  # noqa: PTH208
    except FileNotFoundError:  # kernel without CONFIG_PROC_CHILDREN, or a thread ended
        me = os.getpid()
        known = ((pid, stat(pid)) for pid in numbers())
        return {pid for pid, found in known if found is not None and found.parent == me}


def _children_of(thread: str) -> list[int]:
    with open(f"{_THREADS}/{thread}/children", "rb") as file:  # noqa: PTH123 - as above
        return [int(pid) for pid in file.read().split()]


def stat(pid: int) -> Stat | None:
    """Return the status of a process; ``None`` if it does not exist."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name is in parentheses and may itself contain blanks and parentheses.
    fields = text[text.rindex(")") + 2 :].split(maxsplit=20)
    return Stat(
        is_zombie=fields[0] in {"X", "Z"},
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        processor_ticks=int(fields[11]) + int(fields[12]),
    )
