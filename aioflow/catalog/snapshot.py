"""Versions: the hash of a file and its imports, the folder with their code, and an hourly quota."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.filesystem import make_folder, sync_folder

__all__ = ("VERSIONS_AN_HOUR", "Snapshots", "VersionQuota", "version_of", "write_snapshot")

_GONE = ".gone"
_PART = ".part"

_logger = logging.getLogger(__name__)


class Snapshots:
    """The folder of versions, shared by code that stores versions and code that deletes them.

    A version that is being stored, or is the newest version of a file, is never deleted. If the
    engine has not processed it yet, no row in the database shows that the version is needed.

    Args:
        folder: Contains one folder for each version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._newest: dict[str, str] = {}
        # These threads wait for the disk, which can handle several writes at the same time.
        self._threads = anyio.CapacityLimiter(4)

    async def keep(self, file: str, version: str, sources: Mapping[str, bytes]) -> None:
        """Store the code of the newest version of a file durably."""
        self._newest[file] = version
        await self.restore(version, sources)

    def forget_newest(self, file: str) -> None:
        """Record that a file has no newest version any more."""
        self._newest.pop(file, None)

    async def restore(self, version: str, sources: Mapping[str, bytes]) -> bool:
        """Store the code of a version if any of it is missing. Return whether any was missing."""
        write = partial(write_snapshot, self.folder, version, sources)
        return await in_thread(write, limiter=self._threads)

    async def list_old(self, *, before_seconds: float) -> list[str]:
        """Return the versions whose folders were created before this wall clock time."""
        old = partial(_old_folders, self.folder, before_seconds)
        return await in_thread(old, limiter=self._threads)

    async def discard(self, versions: Sequence[str], is_needed: Callable[[str], bool]) -> int:
        """Delete the code of versions. Return the number of deleted versions.

        If a version cannot be deleted now, this is logged, and the next call may delete it.
        """
        count = 0
        for version in versions:
            try:
                count += await self._discard(version, is_needed)
            except OSError as exc:
                _logger.error("cannot delete the code of %s now: %s", version, exc)  # noqa: TRY400
        return count

    async def _discard(self, version: str, is_needed: Callable[[str], bool]) -> bool:
        """Delete the code of a version. Return whether it was deleted.

        First the folder is renamed, then the use of the version is checked again. If the version
        has come into use in the meantime, the folder is renamed back, unless the version has been
        written again.
        """
        if self._is_newest(version) or is_needed(version):
            return False
        aside = self.folder / f".{version}{_GONE}"
        put_aside = partial((self.folder / version).rename, aside)
        await in_thread(put_aside, limiter=self._threads)
        if self._is_newest(version) or is_needed(version):
            restore = partial(_restore_folder, aside, self.folder / version)
            await in_thread(restore, limiter=self._threads)
            return False
        await in_thread(partial(shutil.rmtree, aside), limiter=self._threads)
        return True

    def _is_newest(self, version: str) -> bool:
        return version in self._newest.values()


def _old_folders(code: Path, before_seconds: float) -> list[str]:
    """Return the old folders. Delete those that a dead daemon left renamed or half written."""
    found = []
    for entry in os.scandir(code):
        if entry.name.endswith(_GONE):
            shutil.rmtree(entry.path, ignore_errors=True)
            continue
        try:
            is_old = entry.stat().st_mtime < before_seconds
        except FileNotFoundError:
            continue  # it was being written, and has been renamed in the meantime
        if entry.name.endswith(_PART):
            if is_old:  # otherwise it may still be being written
                shutil.rmtree(entry.path, ignore_errors=True)
        elif is_old and not entry.name.startswith("."):
            found.append(entry.name)
    return sorted(found)


def _restore_folder(aside: Path, place: Path) -> None:
    try:
        aside.rename(place)
    except OSError:
        if not place.exists():  # otherwise the version was written again
            raise
        shutil.rmtree(aside)


def version_of(file: str, sources: Mapping[str, bytes], told: str = "") -> str:
    """Return the version of a DAG file with the local modules that it imports.

    Args:
        told: Non-default settings on which the description of the file depends. A run uses them as
            long as it uses the version.
    """
    digest = hashlib.sha256()
    parts = [file.encode(), *([told.encode()] if told else [])]
    for name in sorted(sources):
        parts += [name.encode(), sources[name]]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # unambiguous: prefixed by length
        digest.update(part)
    return digest.hexdigest()


def write_snapshot(code: Path, version: str, sources: Mapping[str, bytes]) -> bool:
    """Write ``<code>/<version>/`` durably and atomically. A complete folder is not changed.

    If a file is missing in the folder, the folder is replaced once its replacement is complete.

    Returns:
        Whether anything was written.
    """
    target = code / version
    if _is_whole(target, sources):
        return False
    make_folder(code)
    temporary = code / f".{version}.{secrets.token_hex(4)}{_PART}"
    try:
        for name, content in sources.items():
            _write_file(temporary / name, content)
        for place, _, _ in os.walk(temporary):
            sync_folder(Path(place))
        _replace(temporary, target, sources)
        sync_folder(code)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _is_whole(target: Path, sources: Mapping[str, bytes]) -> bool:
    return target.exists() and all((target / name).exists() for name in sources)


def _replace(temporary: Path, target: Path, sources: Mapping[str, bytes]) -> None:
    """Rename a new folder into place. Replace an incomplete folder, but not a complete one."""
    aside = temporary.with_suffix(_GONE)
    if target.exists() and not _is_whole(target, sources):
        with contextlib.suppress(FileNotFoundError):  # another call set it aside
            target.rename(aside)
    try:
        temporary.rename(target)
    except OSError:
        if not target.exists():  # otherwise that folder is equally good
            raise
    shutil.rmtree(aside, ignore_errors=True)


def _write_file(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


VERSIONS_AN_HOUR = 20
_HOUR_US = 3_600_000_000


class VersionQuota:
    """Limits how many versions per hour a DAG file gets from changes to unnamed data files.

    A program may write to such a file all the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._saved: dict[str, deque[int]] = {}
        self._reported: set[str] = set()

    def take(self, file: str) -> bool:
        """Return whether a DAG file may get another version now. If so, count that version."""
        now, saved = self._clock.monotonic_us(), self._saved.setdefault(file, deque())
        while saved and saved[0] <= now - _HOUR_US:
            saved.popleft()
        if len(saved) < VERSIONS_AN_HOUR:
            saved.append(now)
            self._reported.discard(file)
            return True
        if file not in self._reported:
            self._reported.add(file)
            _logger.warning(
                "%s had %d versions within an hour because of files beside it that it does not "
                "name: the next comes later; leave out what is written there in .aioflowignore",
                file,
                VERSIONS_AN_HOUR,
            )
        return False
