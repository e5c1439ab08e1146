"""The memory limit of this machine's processes, from its size and the cgroup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ("cgroup_files", "memory_limit_bytes")

CGROUPS = Path("/sys/fs/cgroup")


def memory_limit_bytes(root: Path = CGROUPS) -> int:
    """Return the memory of the machine, or the limit of this process's cgroup if that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in cgroup_files("memory.max", "memory.limit_in_bytes", root):
        try:
            text = path.read_text().strip()
        except OSError:
            continue  # another version of cgroups, or another place in the hierarchy
        if text.isdigit():  # it is "max" if there is no limit
            limits.append(int(text))
    return min(limits)


def cgroup_files(version_2: str, version_1: str, root: Path = CGROUPS) -> Iterator[Path]:
    """Yield possible paths of a file of this process's memory cgroup, by its name per version.

    Inside a container the path in ``/proc`` is often that of the host.
    """
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        inside = path.lstrip("/")
        if "memory" in controllers.split(","):
            yield root / "memory" / inside / version_1
            yield root / "memory" / version_1
        elif not controllers:
            yield root / inside / version_2
            yield root / version_2
