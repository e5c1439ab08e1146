"""Tools that inject faults: strace, a preloaded clock, mounts, control groups, limits, signals."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from benchmarks.daemon import eventually

__all__ = (
    "ClockShim",
    "ControlGroup",
    "count_calls",
    "descriptors_limited",
    "fill",
    "injecting",
    "memory_disk",
    "needs",
    "read_only",
    "stopped",
    "traced",
    "write_locked",
)

_CALL = re.compile(r"^\s*(\d+) +(\w+)\(", re.MULTILINE)


def needs(*programs: str) -> None:
    """Fail if this machine lacks a program that injects faults: an untried fault proves nothing."""
    if os.geteuid() != 0:
        pytest.fail("faults are made by root")
    for program in programs:
        if shutil.which(program) is None:
            pytest.fail(f"no {program} on this machine: apt-get install {program}")


# ── strace ──────────────────────────────────────────────────────────────────────────────


def _strace(calls: str, inject: str | None, output: Path | str) -> list[str]:
    # Children are detached as soon as they execute another program.
    words = ["strace", "-f", "-b", "execve", "-qq", "-o", str(output), "-e", f"trace={calls}"]
    words += ["-e", "signal=none"]
    return words if inject is None else [*words, "-e", f"inject={calls}:{inject}"]


def traced(calls: str, inject: str | None, output: Path | str = "/dev/null") -> list[str]:
    """Return a command prefix that applies ``inject`` to the command, but not to its children.

    The started process is the command itself, because strace runs beside it.
    """
    return [*_strace(calls, inject, output), "-D", "--"]


@contextmanager
def injecting(
    pid: int, calls: str, inject: str | None, output: Path | str = "/dev/null"
) -> Iterator[subprocess.Popen[bytes]]:
    """Apply ``inject`` to a running process and all of its threads within the block."""
    tracer = subprocess.Popen(
        [*_strace(calls, inject, output), "-p", str(pid)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(lambda: tracer.poll() is not None or _is_traced(pid), 60.0)
        assert tracer.poll() is None, "strace could not attach"
        yield tracer
    finally:
        if tracer.poll() is None:
            tracer.terminate()  # detaches from the process
        tracer.wait(60.0)


def _is_traced(pid: int) -> bool:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return all("TracerPid:\t0\n" not in (thread / "status").read_text() for thread in threads)
    except FileNotFoundError:
        return not Path(f"/proc/{pid}").exists()  # a thread that has ended counts for nothing
    except OSError:
        return True


def count_calls(output: Path) -> Counter[str]:
    """Return how often each call was made by the thread that made it most often."""
    calls: dict[str, Counter[str]] = {}
    for thread, call in _CALL.findall(output.read_text(errors="replace")):
        calls.setdefault(call, Counter())[thread] += 1
    return Counter({call: max(threads.values()) for call, threads in calls.items()})


# ── the wall clock ──────────────────────────────────────────────────────────────────────

_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long long *offset;
__attribute__((constructor)) static void start(void) {
  int file = open(getenv("FAULTS_CLOCK"), O_RDONLY | O_CLOEXEC);
  offset = file < 0 ? 0 : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (file >= 0) close(file);
}
int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, id, now);
  int is_wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
  if (!failed && offset && is_wall) now->tv_sec += *offset;
  return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec fine;
  int failed = clock_gettime(CLOCK_REALTIME, &fine);
  now->tv_sec = fine.tv_sec; now->tv_usec = fine.tv_nsec / 1000;
  return failed;
}
time_t time(time_t *into) {
  struct timespec fine;
  clock_gettime(CLOCK_REALTIME, &fine);
  if (into) *into = fine.tv_sec;
  return fine.tv_sec;
}
"""


class ClockShim:
    """A wall clock that can be set, for processes started with ``environment``.

    The monotonic clock is unaffected, as when a real wall clock is set.
    """

    def __init__(self, folder: Path) -> None:
        needs("gcc")
        source, self._library = folder / "shim.c", folder / "shim.so"
        self._offset = folder / "offset"
        source.write_text(_SHIM)
        self.set(0)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O1", "-o", self._library, source, "-ldl"], check=True
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the daemon. Its children are given the same clock."""
        return {
            "LD_PRELOAD": str(self._library),
            "FAULTS_CLOCK": str(self._offset),
            "AIOFLOW_CHILD_ENV": "LD_PRELOAD,FAULTS_CLOCK",
        }

    def set(self, seconds: int) -> None:
        """Set the clock to this many seconds after the real time."""
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    def now(self, seconds: int) -> float:
        """Return the time that the clock shows with this offset."""
        return time.time() + seconds


# ── disks ───────────────────────────────────────────────────────────────────────────────


@contextmanager
def memory_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a small separate disk within the block."""
    needs("mount")
    folder.mkdir()
    options = f"size={mebibytes}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def read_only(folder: Path, shown_at: Path) -> Iterator[Path]:
    """Mount the folder read-only under another name within the block."""
    needs("mount")
    shown_at.mkdir()
    subprocess.run(["mount", "--bind", folder, shown_at], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", shown_at], check=True)
        yield shown_at
    finally:
        subprocess.run(["umount", "--lazy", shown_at], check=True)


def fill(folder: Path) -> Path:
    """Fill the disk that contains the folder. Return the file that fills it."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (2**20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return filler


@contextmanager
def write_locked(database: Path) -> Iterator[None]:
    """Lock the database within the block, as another program would."""
    connection = sqlite3.connect(database, isolation_level=None, timeout=30.0)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


# ── the machine ─────────────────────────────────────────────────────────────────────────


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop the processes within the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def descriptors_limited(pid: int, limit: int) -> Iterator[None]:
    """Limit the descriptors of a process within the block."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


class ControlGroup:
    """A control group, of version 1 or 2, in which processes can be started."""

    def __init__(self, controller: str, name: str) -> None:
        first = Path("/sys/fs/cgroup") / controller
        second = Path("/sys/fs/cgroup/cgroup.controllers")
        if first.is_dir():
            self._root, self._is_first = first, True
        elif second.exists() and controller in second.read_text().split():
            self._root, self._is_first = second.parent, False
        else:
            pytest.fail(f"no {controller} control group on this machine")
        self.path = self._root / name
        self._limit = {
            "pids": "pids.max",
            "memory": "memory.limit_in_bytes" if self._is_first else "memory.max",
        }[controller]

    def __enter__(self) -> Self:
        try:
            self.path.mkdir()
        except OSError as exc:
            pytest.fail(f"control groups cannot be made here: {exc}")
        return self

    def __exit__(self, *_: object) -> None:
        def removed() -> bool:
            with contextlib.suppress(OSError):
                self.path.rmdir()
            return not self.path.exists()

        eventually(removed, 60.0, lambda: (self.path / "cgroup.procs").read_text())

    @property
    def words(self) -> list[str]:
        """The words before a command that start it in the group."""
        script = f'echo $$ > {self.path}/cgroup.procs && exec "$@"'
        return ["sh", "-c", script, "sh"]

    def limit(self, value: int | str) -> None:
        """Set the limit of the group; ``max`` lifts it."""
        if value == "max" and self._is_first and "memory" in self._limit:
            value = -1
        (self.path / self._limit).write_text(str(value))

    @property
    def current(self) -> int:
        """The number of processes and threads in the group."""
        return int((self.path / "pids.current").read_text())
