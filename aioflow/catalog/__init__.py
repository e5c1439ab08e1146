"""From DAG files to versions: finds DAG files, has them parsed, and stores snapshots of their code.

A sweep of the DAG folders every few seconds is authoritative; inotify only triggers sweeps earlier.
A file is parsed when it changes, when a module that it imports changes, or when something appears
at a path where one of its imports was not found. A file that fails is parsed again, because the
cause may lie outside of its sources. These retries become less and less frequent. Unrelated changes
do not trigger any retry.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.catalog.data_files import Choice, DataFileUse, FilesBeside
from aioflow.catalog.folder_scan import (
    NO_STAMP,
    Scan,
    ScannedFile,
    import_paths,
    list_folders,
    read_sources,
    scan,
    watch_folders,
)
from aioflow.catalog.interpreter_choice import UNCLEAR, InterpreterChoice
from aioflow.catalog.parse import DEFAULT_TRIES, Limits, Parser
from aioflow.catalog.parse_queue import (
    RETRY_SECONDS,
    WRITABLE,
    ParseOutcome,
    ParsePace,
    ParseQueue,
    ParseRank,
    ParseResult,
    ParseStarts,
    file_broken,
    file_parsed,
    is_final_reason,
    retry_delay_seconds,
    too_large_failure,
)
from aioflow.catalog.snapshot import Snapshots, VersionQuota, version_of
from aioflow.clock import Clock, backoff_seconds
from aioflow.filesystem import find_writable, how_to_mend
from aioflow.model.rows import DagFileRow
from aioflow.model.workers import LOCAL
from aioflow.processes import Children, NoHeadroom
from aioflow.processes.interpreters import Interpreters
from aioflow.protocol.inputs import FileBroken, FileDeleted, FileParsed, Input
from aioflow.protocol.reports import DagFailure, Parsed

__all__ = ("Catalog", "Limits", "ParsePace")

SETTLE_SECONDS = 0.05
"""Delay between a detected change and the sweep, because editors and git write multiple files."""

_UNSTEADY = 5
"""If a file that the import read changes during this many parses, its content is accepted as is."""

_SHARE = 3
"""Minimum pause between two sweeps, as a multiple of the duration of the last sweep."""

WRITING_SECONDS = 2.0
"""A file written less than this many seconds ago may be incomplete."""

_logger = logging.getLogger(__name__)

ReportSink: TypeAlias = Callable[[Sequence[Input]], None]


class Catalog:
    """Keeps the engine informed of the contents of the DAG folders.

    Args:
        folders: Folders with DAG files. Earlier folders take precedence.
        snapshots: The stored snapshots of versions, which other components may share.
        known: The files in the database. Those that no longer exist are reported as deleted.
        limits: Limits for parsing one file.
        check: Called with each parsed file. Returns the file with a failure in place of each DAG
            that this daemon cannot run.
        pace: How often files are checked and parsed.
        interpreters: The interpreters that files may choose.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        snapshots: Snapshots,
        children: Children,
        report: ReportSink,
        clock: Clock,
        *,
        known: Sequence[DagFileRow] = (),
        limits: Limits | None = None,
        check: Callable[[Parsed], Parsed] | None = None,
        pace: ParsePace | None = None,
        interpreters: Interpreters | None = None,
    ) -> None:
        self.first_sweep_done = anyio.Event()
        self._folders = tuple(folder.absolute() for folder in folders)
        self._snapshots = snapshots
        self._report = report
        self._clock = clock
        limits = limits or Limits()
        self._interpreters = interpreters or Interpreters(children, clock)
        self._interpreters.listen(lambda _: self._recheck())
        self._is_any_interpreter_other = False
        self.parser = Parser(children, snapshots.folder, clock, limits, self._interpreters)
        self._check = check
        self._reported_tries = limits.default_tries
        self._reported_executor = limits.default_executor
        self._pace = pace = pace or ParsePace()
        self._begun = ParseStarts(clock, pace.pause_seconds)
        self._queue = ParseQueue(
            self._parse, self._conclude, self._check_sweep_done, clock, pace.processes
        )
        self._threads = anyio.CapacityLimiter(2)
        self._changed = anyio.Event()
        self._files: dict[str, ScannedFile] = {}
        self._places: set[str] = set()
        self._followed: set[str] = set()
        self._causes: dict[str, Path] = {}
        self._known: dict[str, ParseResult] = {}
        self._beside = FilesBeside()
        self._choices: dict[str, Choice] = {}
        self._allowance = VersionQuota(clock)
        self._again: dict[str, int] = {}
        self._reported = {row.file for row in known}
        self._unsettled: dict[str, int] = {}
        self._broken = {
            row.file: FileBroken(file=row.file, reason=row.reason, message=row.message or "")
            for row in known
            if row.reason is not None
        }

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Sweep and watch until cancelled. Set ``first_sweep_done`` when all files are parsed."""
        async with anyio.create_task_group() as group:
            await group.start(self.parser.run)
            await group.start(self._queue.run)
            group.start_soon(
                watch_folders, self._folders_below, self._notice, self._beside.is_named
            )
            task_status.started()
            while True:
                changed = self._changed = anyio.Event()
                began = self._clock.monotonic_us()
                await self._sweep()
                self._check_sweep_done()
                ended = self._clock.monotonic_us()
                await self._nap(changed, ended + _SHARE * (ended - began))

    async def _nap(self, changed: anyio.Event, rested_at_us: int) -> None:
        """Wait for the next sweep, or for a change and the end of the minimum pause."""
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(self._wake_in_time, waiting.cancel_scope)
            await changed.wait()
            waiting.cancel_scope.cancel()
        if changed.is_set():
            left = (rested_at_us - self._clock.monotonic_us()) / 1e6
            await self._clock.sleep(max(SETTLE_SECONDS, left))

    async def _wake_in_time(self, nap: anyio.CancelScope) -> None:
        seconds = self._pace.look_seconds
        if self._again:
            due = (min(self._again.values()) - self._clock.monotonic_us()) / 1e6
            seconds = max(min(seconds, due), 0.0)
        await self._clock.sleep(seconds)
        nap.cancel()

    def _notice(self) -> None:
        self._changed.set()

    def _recheck(self) -> None:
        """Schedule a check for files that were parsed in an interpreter that has changed since."""
        self._is_any_interpreter_other = True
        self._changed.set()

    def _check_sweep_done(self) -> None:
        """Set ``first_sweep_done`` if no file is waiting for its first parse."""
        if not self._queue.files and self._again.keys() <= self._known.keys():
            self.first_sweep_done.set()

    async def _folders_below(self) -> list[Path]:
        return await in_thread(list_folders, self._folders, limiter=self._threads)

    # ── sweeping ────────────────────────────────────────────────────────────────────────

    async def _sweep(self) -> None:
        found = await in_thread(
            scan, self._folders, self._files, frozenset(self._followed), limiter=self._threads
        )
        self._log_unseen(found)
        before, self._files = self._files, found.files
        changed = _differing(before, found.files)
        come: set[str] = set()
        if before.keys() != found.files.keys():
            places = import_paths(found.files)
            come, self._places = places - self._places, places
        self._report_deleted(found)
        if changed:
            self._queue_affected(changed, come)
        if self._is_any_interpreter_other:
            self._is_any_interpreter_other = False
            self._queue_by_interpreter()
        await self._queue_by_data_files()
        now = self._clock.monotonic_us()
        for file in [file for file, at in self._again.items() if at <= now]:
            del self._again[file]
            if file in found.files:
                self._queue_if_due(file, is_time=True)

    def _queue_by_interpreter(self) -> None:
        """Queue the files that were parsed in an interpreter that has changed since."""
        for file, known in self._known.items():
            if file in self._files and known.interpreter != self._interpreter_of(file):
                self._queue_if_due(file)

    def _interpreter_of(self, file: str) -> tuple[InterpreterChoice, int]:
        """Return the interpreter that a file chooses now, and its current generation."""
        choice = self._files[file].interpreter
        return choice, self._interpreters.generation(choice.name)

    async def _queue_by_data_files(self) -> None:
        """Queue the DAG files that use a data file that has changed."""
        asked = {file: one.asked for file, one in self._known.items() if one.asked is not None}
        choices = await in_thread(self._beside.look, asked, limiter=self._threads)
        for file, choice in choices.items():
            known = self._known.get(file)
            if known is None or known.asked is not asked[file] or file not in self._files:
                continue  # it was parsed or deleted in the meantime
            if file in self._queue.files or not choice.differs(known.choice):
                continue
            if self._is_too_soon(file):
                continue
            if choice.differs_in_named(known.choice) or self._allowance.take(file):
                self._queue.put(file, ParseRank.CHANGED)

    def _queue_affected(self, changed: set[str], come: set[str]) -> None:
        """Check the files that are affected by a change, or whose missing import may now exist."""
        for file in self._files:
            known = self._known.get(file)
            is_concerned = (
                known is None
                or not changed.isdisjoint(known.digests)
                or not come.isdisjoint(known.wanted)
            )
            if is_concerned:
                self._queue_if_due(file)

    def _queue_if_due(self, file: str, *, is_time: bool = False) -> None:
        """Queue a file for parsing, if there is a reason to parse it."""
        seen, known = self._files[file], self._known.get(file)
        if seen.is_ignored:
            self._drop_file(file)
        elif self._is_too_soon(file):
            pass
        elif known is None:
            if seen.has_dags or file in self._reported:
                self._queue.put(file, ParseRank.NEW)
        elif self._is_changed(known) or known.interpreter != self._interpreter_of(file):
            self._queue.put(file, ParseRank.CHANGED)
        elif is_time and not known.is_good:
            self._queue.put(file, ParseRank.AGAIN, is_slow=known.is_slow)

    def _is_too_soon(self, file: str) -> bool:
        """Return whether the last parse of a file began too recently to parse it again now.

        If an import changed during the first parse of the file, return ``False``, because the
        import may be new.
        """
        left_us = self._begun.left_us(file)
        if left_us <= 0 or self._unsettled.get(file) == 0 or file in self._queue.files:
            return False
        self._again[file] = self._clock.monotonic_us() + left_us
        return True

    def _is_changed(self, known: ParseResult) -> bool:
        if any(place in self._places for place in known.wanted):
            return True
        return any(
            name not in self._files or self._files[name].digest != digest
            for name, digest in known.digests.items()
        )

    def _log_unseen(self, found: Scan) -> None:
        """Log what cannot be read. Each cause is logged once, until it is resolved."""
        for cause in found.causes.keys() - self._causes.keys():
            place = os.fsencode(found.causes[cause]).decode(errors="backslashreplace")
            _logger.error("cannot read %s, its DAGs are unchanged: %s", place, cause)
        self._causes = found.causes

    def _report_deleted(self, found: Scan) -> None:
        for file in sorted(self._reported - self._files.keys()):
            if not found.hides(file):
                self._drop_file(file)
        for file in (self._known.keys() | self._unsettled.keys()) - self._files.keys():
            self._forget(file)
        if self._followed:
            self._followed &= {name for known in self._known.values() for name in known.digests}

    def _drop_file(self, file: str) -> None:
        """Drop a file that no longer defines anything. Report it as deleted."""
        self._forget(file)
        self._report_deletion(file)

    def _forget(self, file: str) -> None:
        self._known.pop(file, None)
        self._again.pop(file, None)
        self._unsettled.pop(file, None)
        self._begun.forget(file)

    def _report_deletion(self, file: str) -> None:
        """Report a file without definitions as deleted, if it was reported. Release its code."""
        self._broken.pop(file, None)
        self._snapshots.forget_newest(file)
        if file in self._reported:
            self._reported.discard(file)
            self._report([FileDeleted(file)])

    # ── a single file ───────────────────────────────────────────────────────────────────

    async def _parse(self, file: str) -> ParseOutcome:
        """Parse a file. Return the result, and the files that were known when the parse began."""
        self._begun.note(file)
        before, places = self._files, self._places
        seen, parsed = before.get(file), None
        choice = InterpreterChoice() if seen is None else seen.interpreter
        # Read before the parse, so that a change during the parse causes another one.
        generation = self._interpreters.generation(choice.name)
        if seen is not None and seen.is_too_large and not seen.is_ignored:
            parsed = Parsed((), (too_large_failure(file),), (file,))
        elif seen is not None and not seen.is_ignored:
            parsed = await self._refuse_writable(seen.folder, (file,)) or _unclear(file, seen)
            with contextlib.suppress(
                NoHeadroom
            ):  # not the file's fault: the next sweep tries again
                parsed = parsed or await self.parser.parse(seen.folder, file, choice.name)
        if parsed is not None and self._check is not None:
            parsed = self._check(parsed)
        return ParseOutcome(before, places, parsed, (choice, generation))

    async def _refuse_writable(self, folder: Path, files: Sequence[str]) -> Parsed | None:
        """Return a failure if any of these files is world-writable, else ``None``.

        The daemon rejects such files when it starts, but files may also appear or change later.
        """
        paths = [folder / file for file in files]
        found = await in_thread(find_writable, paths, limiter=self._threads)
        if not found:
            return None
        return Parsed((), (DagFailure(WRITABLE, how_to_mend(found)),), tuple(files))

    async def _conclude(self, file: str, looked: ParseOutcome, is_slow: bool) -> None:
        """Process the result of parsing a file. Schedule the next check of the file, if needed."""
        before, parsed = looked.before, looked.parsed
        self._again.pop(file, None)
        found = None if parsed is None else await self._store_result(file, parsed, before)
        seen = self._files.get(file)
        if seen is None or seen.is_ignored:  # it was deleted, or is ignored now
            self._drop_file(file)
            return
        if parsed is None:  # no process could be started
            self._reparse_after(file, self._pace.look_seconds)
            return
        if found is None:
            self._try_soon(file)
            return
        self._unsettled.pop(file, None)
        digests = {name: before[name].digest for name in parsed.modules}
        asked = DataFileUse(before[file].folder, parsed.beside, frozenset(parsed.modules))
        choice = self._choices.pop(file, None)
        # A path that already existed when the import failed does not count as missing.
        wanted = tuple(sys.intern(place) for place in parsed.wanted if place not in looked.places)
        reason = found.reason if isinstance(found, FileBroken) else ""
        seconds = self._begun.seconds(file)
        known = ParseResult(
            digests,
            wanted,
            reason,
            is_slow=is_slow,
            seconds=seconds,
            interpreter=looked.interpreter,
        )
        if choice is not None:
            known = msgspec.structs.replace(known, asked=asked, choice=choice)
        known = self._remember(file, known)
        if self._is_changed(known) or known.interpreter != self._interpreter_of(file):
            self._reparse_after(file, 0.0)
        elif not isinstance(found, FileParsed) and self._may_pass(file, before[file], known):
            self._reparse_after(file, WRITING_SECONDS)
            return
        elif isinstance(found, FileBroken) and not is_final_reason(known.reason):
            self._reparse_after(file, retry_delay_seconds(known, self._pace))
        self._report_result(file, found)

    def _remember(self, file: str, known: ParseResult) -> ParseResult:
        """Store the result for a file. Return it with the number of equal results in a row."""
        was = self._known.get(file)
        times = was.times + 1 if was is not None and was.is_same(known) else 1
        found = self._known[file] = msgspec.structs.replace(known, times=times)
        return found

    def _try_soon(self, file: str) -> None:
        """Schedule another parse soon: the file changed meanwhile, or its code was not stored."""
        times = self._unsettled[file] = self._unsettled.get(file, -1) + 1
        delay = backoff_seconds(times, first=SETTLE_SECONDS, longest=RETRY_SECONDS)
        self._reparse_after(file, delay)

    def _reparse_after(self, file: str, seconds: float) -> None:
        self._again[file] = self._clock.monotonic_us() + round(seconds * 1e6)
        if seconds < self._pace.look_seconds:
            self._changed.set()

    async def _store_result(
        self, file: str, parsed: Parsed, before: dict[str, ScannedFile]
    ) -> FileParsed | FileBroken | FileDeleted | None:
        """Store the code. Return the report, or ``None`` if the file must be parsed again."""
        unknown = set(parsed.modules) - before.keys()
        if unknown:
            # These modules appeared after the scan, or are at paths that the scan does not search.
            self._followed |= unknown
            return None
        large = [name for name in parsed.modules if before[name].is_too_large]
        if large:
            return file_broken(file, (too_large_failure(large[0]),))
        refused = await self._refuse_writable(before[file].folder, parsed.modules)
        if refused is not None:
            return file_broken(file, refused.failures)
        try:
            return await self._store_code(file, parsed, before)
        except OSError as exc:
            # For example, the disk is full. This is not the fault of the file.
            _logger.error("cannot save the code of %s now: %s", file, exc)  # noqa: TRY400
            return None

    async def _store_code(
        self, file: str, parsed: Parsed, before: dict[str, ScannedFile]
    ) -> FileParsed | FileBroken | FileDeleted | None:
        folder, names = before[file].folder, parsed.modules
        sources, digests = await in_thread(read_sources, folder, names, limiter=self._threads)
        changed = [name for name in names if digests.get(name) != before[name].digest]
        if changed:
            self._distrust(changed)
            return None
        if not parsed.dags and not parsed.failures:
            # The file defines no DAG. Any DAG that it defined earlier no longer exists, as if the
            # file had been deleted.
            return FileDeleted(file)
        asked = DataFileUse(folder, parsed.beside, frozenset(names))
        is_unsteady = self._unsettled.get(file, 0) >= _UNSTEADY
        take = partial(self._beside.take, file, asked, as_it_is=is_unsteady)
        selection = await in_thread(take, limiter=self._threads)
        if selection is None:
            return None
        self._store_choice(file, selection.choice)
        if parsed.dags and selection.choice.refusal is not None:
            return file_broken(file, (selection.choice.refusal,))
        if parsed.dags:
            sources |= selection.sources
            version = version_of(file, sources, self._settings_text(parsed))
            await self._snapshots.keep(file, version, sources)
            return file_parsed(file, version, parsed, sources)
        return file_broken(file, parsed.failures)

    def _store_choice(self, file: str, choice: Choice) -> None:
        """Store the choice of data files for a DAG file, and log each of its warnings once."""
        self._choices[file] = choice
        known = self._known.get(file)
        said = frozenset() if known is None else frozenset(known.choice.said)
        for one in choice.said:
            if one not in said:
                _logger.warning("%s: %s", file, one.message)

    def _distrust(self, changed: Iterable[str]) -> None:
        """Make the next sweep read these files even if their stamps are unchanged.

        If a file changes twice within one tick of the file system's clock, its stamp stays the
        same.
        """
        distrusted = {n: self._files[n] for n in changed if n in self._files}
        self._files = self._files | {
            name: msgspec.structs.replace(seen, stamp=NO_STAMP) for name, seen in distrusted.items()
        }

    def _may_pass(self, file: str, seen: ScannedFile, known: ParseResult) -> bool:
        """Return whether a failure may be temporary: a half-written file or a killed parser."""
        if file not in self._reported or file in self._broken:
            return False
        if known.reason == "killed" and known.times == 1:
            return True
        age = (self._clock.now() - seen.stamp[0] // 1000) / 1e6
        return 0 <= age < WRITING_SECONDS

    def _report_result(self, file: str, found: FileParsed | FileBroken | FileDeleted) -> None:
        """Report a result if it differs from the last one."""
        match found:
            case FileBroken():
                if self._broken.get(file) == found:
                    return
                self._broken[file] = found
                self._reported.add(file)
            case FileDeleted():
                self._report_deletion(file)
                return
            case _:
                self._broken.pop(file, None)
                self._reported.add(file)
        self._report([found])

    def _settings_text(self, parsed: Parsed) -> str:
        """Return the non-default settings that affect the description of a file besides its code.

        A file can be isolated because of a library that it imports, whatever its own code is.
        """
        tries = self._reported_tries
        told = [] if tries == DEFAULT_TRIES else [f"default_tries={tries}"]
        if self._reported_executor != LOCAL:
            told.append(f"executor={self._reported_executor}")
        if any(dag.isolated for dag in parsed.dags):
            told.append("isolated")
        if parsed.dags[0].interpreter:
            told.append(f"python={parsed.dags[0].interpreter}")
        return " ".join(told)


def _unclear(file: str, seen: ScannedFile) -> Parsed | None:
    """Return a failure if it is unclear which interpreter a file chooses, else ``None``."""
    problem = seen.interpreter.problem
    return Parsed((), (DagFailure(UNCLEAR, problem),), (file,)) if problem else None


def _differing(before: dict[str, ScannedFile], now: dict[str, ScannedFile]) -> set[str]:
    """Return the names of changed files. A file that was not read again has the same object."""
    changed = {name for name, seen in now.items() if before.get(name) is not seen}
    return changed | (before.keys() - now.keys())
