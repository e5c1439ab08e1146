"""Memory for processes: the limit of the machine or cgroup, and headroom for another process.

If the machine cannot start another process, starts are retried at a limited rate.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import psutil

from aioflow.clock import Clock

__all__ = (
    "SPAWN_RETRY_SECONDS",
    "NoHeadroom",
    "ProcessHeadroom",
    "cgroup_files",
    "memory_limit_bytes",
    "resident_bytes",
)

CGROUPS = Path("/sys/fs/cgroup")


def memory_limit_bytes(root: Path = CGROUPS) -> int:
    """Return the memory of the machine, or the limit of this process's cgroup if it is lower."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in cgroup_files("memory.max", "memory.limit_in_bytes", root):
        try:
            text = path.read_text().strip()
        except OSError:
            continue  # the cgroup has another version, or another path in the hierarchy
        if text.isdigit():  # "max" if there is no limit
            limits.append(int(text))
    return min(limits)


def cgroup_files(version_2: str, version_1: str, root: Path = CGROUPS) -> Iterator[Path]:
    """Yield possible paths of a file in this process's memory cgroup.

    The file has a different name in each version of cgroups. In a container, ``/proc`` often
    contains the path on the host.
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


def resident_bytes(pid: int | None) -> int:
    """Return the resident memory of a process.

    Return 0 if the process does not exist, or if this process has no free descriptor to read it.
    """
    if pid is None:
        return 0
    try:
        resident: int = psutil.Process(pid).memory_info().rss
    except (OSError, psutil.Error):
        return 0
    return resident


SPAWN_RETRY_SECONDS = 1.0
"""Interval between attempts to start a process while starts fail, however many are wanted."""

_FIRST_SILENCE_US = 1_000_000
_LONGEST_SILENCE_US = 60_000_000

_logger = logging.getLogger(__name__)


class NoHeadroom(OSError):
    """Raised if no process could be started, which was logged.

    Retry after ``ProcessHeadroom.wait``.
    """


class ProcessHeadroom:
    """State shared by all code that starts processes, so that a failed start delays all others.

    A start within a second after a failed attempt is refused with the error of that attempt. The
    first failure is logged at once. Further log lines become rarer, from one a second to one a
    minute.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusal: OSError | None = None
        self._refused_since_us = 0
        self._again_us = 0
        self._attempts = 0
        self._silent_until_us = 0
        self._silence_us = _FIRST_SILENCE_US
        self._found = anyio.Event()

    @contextmanager
    def attempt(self, role: str) -> Iterator[None]:
        """Guard a block that starts a process.

        Raises:
            NoHeadroom: If the block raised ``OSError``, or if another start failed within the last
                second.
        """
        if self._refusal is not None and self._clock.monotonic_us() < self._again_us:
            raise _no_headroom(self._refusal) from self._refusal
        try:
            yield
        except OSError as exc:
            raise self.refused(role, exc) from exc
        self._grant()

    def refused(self, role: str, exc: OSError) -> NoHeadroom:
        """Record that a child could not start a process for a role. Return the error to raise."""
        self._refuse(role, exc)
        return _no_headroom(exc)

    async def wait(self) -> None:
        """Wait until a process was started, or another attempt is due."""
        if self._refusal is None:
            return
        found, left_us = self._found, self._again_us - self._clock.monotonic_us()
        async with anyio.create_task_group() as waiting:

            async def sleep() -> None:
                await self._clock.sleep(max(0, left_us) / 1e6)
                waiting.cancel_scope.cancel()

            waiting.start_soon(sleep)
            await found.wait()
            waiting.cancel_scope.cancel()

    def _refuse(self, role: str, exc: OSError) -> None:
        now = self._clock.monotonic_us()
        if self._refusal is None:
            self._refused_since_us, self._attempts = now, 0
        self._refusal = exc
        self._attempts += 1
        self._again_us = now + round(SPAWN_RETRY_SECONDS * 1e6)
        if now < self._silent_until_us:
            return
        self._silent_until_us = now + self._silence_us
        self._silence_us = min(2 * self._silence_us, _LONGEST_SILENCE_US)
        _logger.error(
            "no %s process can be started, retrying every %g s (attempt %d in %.0f s): %s",
            role,
            SPAWN_RETRY_SECONDS,
            self._attempts,
            (now - self._refused_since_us) / 1e6,
            exc,
        )

    def _grant(self) -> None:
        if self._refusal is None:
            return
        seconds = (self._clock.monotonic_us() - self._refused_since_us) / 1e6
        _logger.warning("processes start again, after %.1f s", seconds)
        self._refusal = None
        self._silence_us = _FIRST_SILENCE_US
        self._found.set()
        self._found = anyio.Event()


def _no_headroom(exc: OSError) -> NoHeadroom:
    return NoHeadroom(exc.errno, exc.strerror, exc.filename)
