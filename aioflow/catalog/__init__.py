"""DAG files -> versions: finds files, has them parsed, keeps snapshots of their code.

The sweep, every few seconds, is the truth; inotify only makes it come sooner. A file is parsed
when it or a module it imported has changed; one that could not be imported, when anything has,
because what it lacked may have come.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from aioflow.catalog.parsing import DEFAULT_TRIES, Limits, Parser
from aioflow.catalog.scanning import NO_STAMP, Found, Seen, list_folders, read_sources, scan
from aioflow.catalog.snapshot import version_of, write_snapshot
from aioflow.catalog.watching import watch
from aioflow.children import Children, NoRoom
from aioflow.clock import Clock
from aioflow.findings import DagFailure, Parsed
from aioflow.inputs import FileBroken, FileGone, FileParsed, Input
from aioflow.rows import DagFileRow, VersionRow
from aioflow.threads import in_thread

__all__ = ("Catalog", "Limits")

SWEEP_SECONDS = 5.0
SETTLE_SECONDS = 0.05
"""Between a change being noticed and the sweep: editors and git write several files."""

PARSERS = 2

_logger = logging.getLogger(__name__)

ReportSink: TypeAlias = Callable[[Sequence[Input]], None]


class _Known(msgspec.Struct, frozen=True):
    """What came of parsing a file.

    Attributes:
        digests: Of the file and the modules it imported, as they were parsed.
        world: Digest of everything, where any change may mend the file; else empty.
    """

    digests: dict[str, bytes]
    world: bytes


class Catalog:
    """Keeps the engine's picture of the DAG folders true.

    Args:
        folders: Where DAG files lie, the first counting before the second.
        code: Folder of the version snapshots.
        known: The files the database knows: what is gone by now is reported so.
        limits: What parsing one file may take.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        code: Path,
        children: Children,
        report: ReportSink,
        clock: Clock,
        *,
        known: Iterable[DagFileRow] = (),
        limits: Limits | None = None,
    ) -> None:
        self.first_sweep_done = anyio.Event()
        self._folders = tuple(folder.absolute() for folder in folders)
        self._code = code
        self._report = report
        self._clock = clock
        limits = limits or Limits()
        self._parser = Parser(children, code, clock, limits)
        self._told_tries = limits.default_tries
        self._parsers = anyio.CapacityLimiter(PARSERS)
        self._threads = anyio.CapacityLimiter(2)
        self._changed = anyio.Event()
        self._files: dict[str, Seen] = {}
        self._causes: dict[str, Path] = {}
        self._known: dict[str, _Known] = {}
        self._told = {row.file for row in known}
        self._parsing: set[str] = set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Sweep and watch until cancelled. ``first_sweep_done`` is set when all was parsed."""
        async with anyio.create_task_group() as group:
            group.start_soon(watch, self._folders_below, self._notice)
            task_status.started()
            while True:
                changed = self._changed = anyio.Event()
                await self._sweep(group)
                if not self._parsing:
                    self.first_sweep_done.set()
                with anyio.CancelScope() as nap:
                    async with anyio.create_task_group() as waiting:
                        waiting.start_soon(self._sleep, nap)
                        await changed.wait()
                        waiting.cancel_scope.cancel()
                    await self._clock.sleep(SETTLE_SECONDS)

    async def restore(self, row: VersionRow) -> None:
        """Make the snapshot folder of a version again, if it is missing, from its row."""
        await in_thread(write_snapshot, self._code, row.version, row.sources, limiter=self._threads)

    async def _sleep(self, nap: anyio.CancelScope) -> None:
        await self._clock.sleep(SWEEP_SECONDS)
        nap.cancel()

    def _notice(self) -> None:
        self._changed.set()

    async def _folders_below(self) -> list[Path]:
        return await in_thread(list_folders, self._folders, limiter=self._threads)

    # ── sweeping ────────────────────────────────────────────────────────────────────────

    async def _sweep(self, group: TaskGroup) -> None:
        found = await in_thread(scan, self._folders, self._files, limiter=self._threads)
        self._files = found.files
        self._log_unseen(found)
        self._report_gone(found)
        world = self._world()
        for file, seen in self._files.items():
            if file not in self._parsing and self._is_due(file, seen, world):
                self._parsing.add(file)
                group.start_soon(self._parse, file, seen)

    def _log_unseen(self, found: Found) -> None:
        """Say what cannot be looked at: once per cause, until it is over."""
        for cause in found.causes.keys() - self._causes.keys():
            _logger.error("cannot look at %s, its DAGs stay: %s", found.causes[cause], cause)
        self._causes = found.causes

    def _report_gone(self, found: Found) -> None:
        for file in sorted(self._told - self._files.keys()):
            if found.hides(file):
                continue
            self._told.discard(file)
            self._report([FileGone(file)])
        for file in self._known.keys() - self._files.keys():
            del self._known[file]

    def _is_due(self, file: str, seen: Seen, world: bytes) -> bool:
        known = self._known.get(file)
        if known is None:
            return seen.has_dags or file in self._told
        if known.world:
            return known.world != world
        return any(
            name not in self._files or self._files[name].digest != digest
            for name, digest in known.digests.items()
        )

    def _world(self) -> bytes:
        digest = hashlib.sha256()
        for name in sorted(self._files):
            digest.update(name.encode() + b"\0" + self._files[name].digest)
        return digest.digest()

    # ── one file ────────────────────────────────────────────────────────────────────────

    async def _parse(self, file: str, seen: Seen) -> None:
        try:
            async with self._parsers:
                before, world = self._files, self._world()
                parsed = await self._parser.parse(seen.folder, file)
            if await self._conclude(file, parsed, before, world):
                self._changed.set()
        except* NoRoom:
            pass  # the file is not to blame: the next sweep tries again
        except* OSError as exc:
            # No room on the disk: the file is not to blame, either.
            _logger.error("cannot parse %s now: %s", file, exc.exceptions[0])  # noqa: TRY400
        self._parsing.discard(file)

    async def _conclude(
        self, file: str, parsed: Parsed, before: dict[str, Seen], world: bytes
    ) -> bool:
        """Tell the engine what came of a file, if everything still is what was parsed.

        Returns:
            Whether to look again at once: what could not be read may be so for long.
        """
        if file not in before:
            return False
        names = sorted({file, *parsed.modules} & before.keys())
        sources = await in_thread(read_sources, before[file].folder, names, limiter=self._threads)
        digests = {name: hashlib.sha256(content).digest() for name, content in sources.items()}
        if digests != {name: before[name].digest for name in names}:
            return self._distrust(n for n in digests if digests[n] != before[n].digest)
        if parsed.dags:
            version = version_of(file, sources, self._told_by)
            await in_thread(write_snapshot, self._code, version, sources, limiter=self._threads)
            self._known[file] = _Known(digests, b"")
            self._tell(file, _parsed(file, version, parsed, sources))
        elif parsed.failures:
            self._known[file] = _Known(digests, world if _may_lack(parsed) else b"")
            self._tell(file, _broken(file, parsed.failures))
        else:
            # A module that only uses us. If it once was more, its DAGs are gone.
            self._known[file] = _Known(digests, b"")
            if file in self._told:
                self._told.discard(file)
                self._report([FileGone(file)])
        return True

    def _distrust(self, changed: Iterable[str]) -> bool:
        """Have the next sweep read files whatever their stamps say; return whether there are any.

        A change within one tick of its clock leaves a file's stamp as it was.
        """
        distrusted = {n: self._files[n] for n in changed if n in self._files}
        self._files = self._files | {
            name: msgspec.structs.replace(seen, stamp=NO_STAMP) for name, seen in distrusted.items()
        }
        return bool(distrusted)

    @property
    def _told_by(self) -> str:
        """What the description of a file depends on besides its code, where that is unusual."""
        tries = self._told_tries
        return "" if tries == DEFAULT_TRIES else f"default_tries={tries}"

    def _tell(self, file: str, found: FileParsed | FileBroken) -> None:
        self._told.add(file)
        self._report([found])


def _parsed(file: str, version: str, parsed: Parsed, sources: dict[str, bytes]) -> FileParsed:
    return FileParsed(
        file=file,
        version=version,
        dags=parsed.dags,
        sources=sources,
        failures=parsed.failures,
        triggers=parsed.triggers,
    )


def _broken(file: str, failures: Sequence[DagFailure]) -> FileBroken:
    first = failures[0]
    where = f"line {first.line}: " if first.line else ""
    return FileBroken(file=file, reason=first.reason, message=where + first.message)


def _may_lack(parsed: Parsed) -> bool:
    """Whether a file may fail for want of another; a parser that died cannot say what it read."""
    return not parsed.modules or any(f.reason == "import_error" for f in parsed.failures)
