"""A lock on a SQLite file that allows only one daemon to use it, whatever path it is opened by.

The lock is ``flock(2)`` on the inode. So it works through symbolic and hard links, and is released
when the process ends in any way. It is independent of SQLite's own POSIX locks, with one trap:
**closing any handle of a file drops all POSIX locks that this process has on the file.** So the
handle is opened before SQLite opens the file and closed after SQLite has closed it. A file that
this process has locked is not opened a second time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from pathlib import Path
from typing import TypeAlias

from aioflow.errors import HomeBusy, StoreUnavailable, StrangeDatabase

__all__ = ("FileLock",)

_Inode: TypeAlias = tuple[int, int]

_held: set[_Inode] = set()
_held_guard = threading.Lock()


class FileLock:
    """The lock on a database file, from ``take`` to ``release``."""

    def __init__(self, path: Path, handle: int, inode: _Inode) -> None:
        self.path = path
        self._handle = handle
        self._inode = inode
        self._size = 0

    @classmethod
    def take(cls, path: Path) -> FileLock:
        """Lock the file without waiting. Create an empty file if there is none.

        Raises:
            HomeBusy: If another daemon has locked the file.
            StoreUnavailable: If the file cannot be opened for reading and writing.
        """
        with _held_guard:
            try:
                if path.exists() and _inode(path.stat()) in _held:
                    raise HomeBusy(str(path), f"process {os.getpid()}, this one")
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as exc:
                raise StoreUnavailable(f"cannot open {path}: {exc.strerror}") from exc
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as exc:
                holder = _owner(os.fstat(handle))
                os.close(handle)
                if isinstance(exc, BlockingIOError):
                    raise HomeBusy(str(path), holder) from exc
                raise StoreUnavailable(f"cannot lock {path}: {exc.strerror}") from exc
            inode = _inode(os.fstat(handle))
            _held.add(inode)
        lock = cls(path, handle, inode)
        try:
            lock.verify()
        except StrangeDatabase:
            lock.release()
            raise
        return lock

    def release(self) -> None:
        """Release the lock. Call this only after SQLite has closed the file."""
        with _held_guard:
            os.close(self._handle)
            _held.discard(self._inode)

    def head(self, size: int) -> bytes:
        """Return the first bytes of the file without opening it again."""
        return os.pread(self._handle, size, 0)

    def verify(self) -> None:
        """Check that the path still leads to the locked file, and that it was not truncated.

        Costs one ``stat``. Several threads may call this at once.

        Raises:
            StrangeDatabase: If the file was deleted, renamed, replaced or truncated.
        """
        least = self._size  # read before ``stat``, because another thread may raise it
        try:
            status = self.path.stat()
        except OSError as exc:
            raise StrangeDatabase(f"the database file {self.path} is gone: {exc.strerror}") from exc
        if _inode(status) != self._inode:
            raise StrangeDatabase(f"the database file {self.path} was replaced by another one")
        if status.st_size < least:  # SQLite never shrinks the files of aioflow
            self.detach()
            raise StrangeDatabase(f"the database file {self.path} was cut")
        self._size = max(self._size, status.st_size)

    def detach(self) -> None:
        """Detach SQLite from the database file.

        Otherwise SQLite would copy its log into the file when it closes the file.

        SQLite's descriptors are redirected to ``/dev/null``, opened read-only, so that its writes
        fail.
        """
        log = Path(f"{self.path.resolve()}-wal")
        files = {self._inode} | ({_inode(log.stat())} if log.exists() else set())
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for name in [entry.name for entry in Path("/proc/self/fd").iterdir()]:
                with contextlib.suppress(OSError):  # the descriptor has just been closed
                    if int(name) != self._handle and _inode(os.fstat(int(name))) in files:
                        os.dup2(nothing, int(name), inheritable=False)
        finally:
            os.close(nothing)


def _inode(status: os.stat_result) -> _Inode:
    return status.st_dev, status.st_ino


def _owner(status: os.stat_result) -> str:
    """Return the process that holds the lock, if the kernel reports it."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    place = f"{device}:{status.st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return "process unknown"
    for line in lines:
        fields = line.split()
        # Line format: "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF". A waiting process has "->"
        # before FLOCK.
        if fields[1] == "FLOCK" and fields[5] == place:
            return f"process {fields[4]}"
    return "process unknown"
