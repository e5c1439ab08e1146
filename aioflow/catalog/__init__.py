"""DAG files -> versions: finds files, has them parsed, keeps snapshots of their code.

The sweep, every few seconds, is the truth; inotify only makes it come sooner. A file is parsed
when it has changed, or a module it imports, or when there is something where its imports had
looked in vain. One that gives nothing is tried again now and then, for what it lacks may be no
file: less and less often, and never because of a change that is nothing to it.
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
from aioflow.catalog.data_files import Asked, Choice, FilesBeside
from aioflow.catalog.file_watch import watch
from aioflow.catalog.folder_scan import (
    NO_STAMP,
    Found,
    Seen,
    list_folders,
    places_of,
    read_sources,
    scan,
)
from aioflow.catalog.parse import DEFAULT_TRIES, Limits, Parser
from aioflow.catalog.parse_history import (
    AGAIN_SECONDS,
    WRITABLE,
    Begun,
    Known,
    Looked,
    ParsePace,
    file_broken,
    file_parsed,
    is_final,
    pause,
    too_large,
)
from aioflow.catalog.parse_queue import Lanes, Rank
from aioflow.catalog.snapshot import Snapshots, version_of
from aioflow.catalog.version_quota import Allowance
from aioflow.clock import Clock
from aioflow.filesystem import find_writable, how_to_mend
from aioflow.model.rows import DagFileRow
from aioflow.processes import Children, NoRoom
from aioflow.protocol.inputs import FileBroken, FileDeleted, FileParsed, Input
from aioflow.protocol.parse_results import DagFailure, Parsed

__all__ = ("Catalog", "Limits", "ParsePace")

SETTLE_SECONDS = 0.05
"""Between a change being noticed and the sweep: editors and git write several files."""

_UNSTEADY = 5
"""A file that importing it reads may be another so often before it is taken as it is."""

_SHARE = 3
"""Between two sweeps it rests at least so many times as long as one took."""

WRITING_SECONDS = 2.0
"""What has been written so shortly before may be half of a file."""

_logger = logging.getLogger(__name__)

ReportSink: TypeAlias = Callable[[Sequence[Input]], None]


class Catalog:
    """Keeps the engine's picture of the DAG folders true.

    Args:
        folders: Where DAG files lie, the first counting before the second.
        snapshots: Those of versions, with which others may have to do.
        known: The files the database knows: what is gone by now is reported so.
        limits: What parsing one file may take.
        pace: How often files are looked at and parsed.
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
        pace: ParsePace | None = None,
    ) -> None:
        self.first_sweep_done = anyio.Event()
        self._folders = tuple(folder.absolute() for folder in folders)
        self._snapshots = snapshots
        self._report = report
        self._clock = clock
        limits = limits or Limits()
        self.parser = Parser(children, snapshots.folder, clock, limits)
        self._told_tries = limits.default_tries
        self._pace = pace = pace or ParsePace()
        self._begun = Begun(clock, pace.pause_seconds)
        self._lanes = Lanes(self._parse, self._conclude, self._look_for_end, clock, pace.processes)
        self._threads = anyio.CapacityLimiter(2)
        self._changed = anyio.Event()
        self._files: dict[str, Seen] = {}
        self._places: set[str] = set()
        self._followed: set[str] = set()
        self._causes: dict[str, Path] = {}
        self._known: dict[str, Known] = {}
        self._beside = FilesBeside()
        self._choices: dict[str, Choice] = {}
        self._allowance = Allowance(clock)
        self._again: dict[str, int] = {}
        self._told = {row.file for row in known}
        self._unsettled: dict[str, int] = {}
        self._broken = {
            row.file: FileBroken(file=row.file, reason=row.reason, message=row.message or "")
            for row in known
            if row.reason is not None
        }

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Sweep and watch until cancelled. ``first_sweep_done`` is set when all was parsed."""
        async with anyio.create_task_group() as group:
            await group.start(self.parser.run)
            await group.start(self._lanes.run)
            group.start_soon(watch, self._folders_below, self._notice, self._beside.is_named)
            task_status.started()
            while True:
                changed = self._changed = anyio.Event()
                began = self._clock.monotonic_us()
                await self._sweep()
                self._look_for_end()
                ended = self._clock.monotonic_us()
                await self._nap(changed, ended + _SHARE * (ended - began))

    async def _nap(self, changed: anyio.Event, rested_at_us: int) -> None:
        """Wait for a change, but not less than a sweep rests; or for the next sweep."""
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

    def _look_for_end(self) -> None:
        """Everything was parsed once, if nothing waits that never was."""
        if not self._lanes.files and self._again.keys() <= self._known.keys():
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
            places = places_of(found.files)
            come, self._places = places - self._places, places
        self._report_gone(found)
        if changed:
            self._ask_all(changed, come)
        await self._look_beside()
        now = self._clock.monotonic_us()
        for file in [file for file, at in self._again.items() if at <= now]:
            del self._again[file]
            if file in found.files:
                self._ask(file, is_time=True)

    async def _look_beside(self) -> None:
        """Ask for the DAG files that use files beside them that have changed."""
        asked = {file: one.asked for file, one in self._known.items() if one.asked is not None}
        choices = await in_thread(self._beside.look, asked, limiter=self._threads)
        for file, choice in choices.items():
            known = self._known.get(file)
            if known is None or known.asked is not asked[file] or file not in self._files:
                continue  # it has been parsed, or has gone, meanwhile
            if file in self._lanes.files or not choice.differs(known.choice):
                continue
            if self._put_off(file):
                continue
            if choice.differs_in_named(known.choice) or self._allowance.take(file):
                self._lanes.put(file, Rank.CHANGED)

    def _ask_all(self, changed: set[str], come: set[str]) -> None:
        """Ask for the files that a change may concern, or for which a place is none in vain now."""
        for file in self._files:
            known = self._known.get(file)
            is_concerned = (
                known is None
                or not changed.isdisjoint(known.digests)
                or not come.isdisjoint(known.wanted)
            )
            if is_concerned:
                self._ask(file)

    def _ask(self, file: str, *, is_time: bool = False) -> None:
        """Have a file parsed, if something speaks for it."""
        seen, known = self._files[file], self._known.get(file)
        if seen.is_ignored:
            self._let_go(file)
        elif self._put_off(file):
            pass
        elif known is None:
            if seen.has_dags or file in self._told:
                self._lanes.put(file, Rank.NEW)
        elif self._is_changed(known):
            self._lanes.put(file, Rank.CHANGED)
        elif is_time and not known.is_good:
            self._lanes.put(file, Rank.AGAIN, is_slow=known.is_slow)

    def _put_off(self, file: str) -> bool:
        """Return whether a file is not parsed now, because that began so shortly before.

        The first time that something came between is no reason: a module it imports may be new.
        """
        left_us = self._begun.left_us(file)
        if left_us <= 0 or self._unsettled.get(file) == 0 or file in self._lanes.files:
            return False
        self._again[file] = self._clock.monotonic_us() + left_us
        return True

    def _is_changed(self, known: Known) -> bool:
        if any(place in self._places for place in known.wanted):
            return True
        return any(
            name not in self._files or self._files[name].digest != digest
            for name, digest in known.digests.items()
        )

    def _log_unseen(self, found: Found) -> None:
        """Say what cannot be looked at: once per cause, until it is over."""
        for cause in found.causes.keys() - self._causes.keys():
            place = os.fsencode(found.causes[cause]).decode(errors="backslashreplace")
            _logger.error("cannot look at %s, its DAGs stay: %s", place, cause)
        self._causes = found.causes

    def _report_gone(self, found: Found) -> None:
        for file in sorted(self._told - self._files.keys()):
            if not found.hides(file):
                self._let_go(file)
        for file in (self._known.keys() | self._unsettled.keys()) - self._files.keys():
            self._forget(file)
        if self._followed:
            self._followed &= {name for known in self._known.values() for name in known.digests}

    def _let_go(self, file: str) -> None:
        """A file gives nothing any more, and is not expected to."""
        self._forget(file)
        self._tell_gone(file)

    def _forget(self, file: str) -> None:
        self._known.pop(file, None)
        self._again.pop(file, None)
        self._unsettled.pop(file, None)
        self._begun.forget(file)

    def _tell_gone(self, file: str) -> None:
        """A file gives nothing: its code may go, and who was told of it is told that."""
        self._broken.pop(file, None)
        self._snapshots.let_go(file)
        if file in self._told:
            self._told.discard(file)
            self._report([FileDeleted(file)])

    # ── one file ────────────────────────────────────────────────────────────────────────

    async def _parse(self, file: str) -> Looked:
        """Return what is in a file, and what lay around it."""
        self._begun.note(file)
        before, places = self._files, self._places
        seen, parsed = before.get(file), None
        if seen is not None and seen.is_too_large and not seen.is_ignored:
            parsed = Parsed((), (too_large(file),), (file,))
        elif seen is not None and not seen.is_ignored:
            parsed = await self._refuse_writable(seen.folder, (file,))
            with contextlib.suppress(NoRoom):  # not the file's fault: the next sweep tries again
                parsed = parsed or await self.parser.parse(seen.folder, file)
        return Looked(before, places, parsed)

    async def _refuse_writable(self, folder: Path, files: Sequence[str]) -> Parsed | None:
        """Return why files are not loaded that every user may write; ``None`` if none is so.

        A start is refused because of them, but they also come, or change, while it runs.
        """
        paths = [folder / file for file in files]
        found = await in_thread(find_writable, paths, limiter=self._threads)
        if not found:
            return None
        return Parsed((), (DagFailure(WRITABLE, how_to_mend(found)),), tuple(files))

    async def _conclude(self, file: str, looked: Looked, is_slow: bool) -> None:
        """Take what came of a file, and see to it that it is looked at again when it has to be."""
        before, parsed = looked.before, looked.parsed
        self._again.pop(file, None)
        found = None if parsed is None else await self._keep(file, parsed, before)
        seen = self._files.get(file)
        if seen is None or seen.is_ignored:  # by now
            self._let_go(file)
            return
        if parsed is None:  # there was no room for it
            self._look_again(file, self._pace.look_seconds)
            return
        if found is None:
            self._try_soon(file)
            return
        self._unsettled.pop(file, None)
        digests = {name: before[name].digest for name in parsed.modules}
        asked = Asked(before[file].folder, parsed.beside, frozenset(parsed.modules))
        choice = self._choices.pop(file, None)
        # What was there already when it looked is nothing new, whatever it says.
        wanted = tuple(sys.intern(place) for place in parsed.wanted if place not in looked.places)
        reason = found.reason if isinstance(found, FileBroken) else ""
        seconds = self._begun.seconds(file)
        known = Known(digests, wanted, reason, is_slow=is_slow, seconds=seconds)
        if choice is not None:
            known = msgspec.structs.replace(known, asked=asked, choice=choice)
        known = self._remember(file, known)
        if self._is_changed(known):
            self._look_again(file, 0.0)
        elif not isinstance(found, FileParsed) and self._may_pass(file, before[file], known):
            self._look_again(file, WRITING_SECONDS)
            return
        elif isinstance(found, FileBroken) and not is_final(known.reason):
            self._look_again(file, pause(known, self._pace))
        self._tell(file, found)

    def _remember(self, file: str, known: Known) -> Known:
        """Know what came of a file; return it with how often that did."""
        was = self._known.get(file)
        times = was.times + 1 if was is not None and was.is_same(known) else 1
        found = self._known[file] = msgspec.structs.replace(known, times=times)
        return found

    def _try_soon(self, file: str) -> None:
        """What was parsed is not what lies there now, or could not be kept: look again."""
        times = self._unsettled[file] = self._unsettled.get(file, -1) + 1
        self._look_again(file, min(SETTLE_SECONDS * 2 ** min(times, 10), AGAIN_SECONDS))

    def _look_again(self, file: str, seconds: float) -> None:
        self._again[file] = self._clock.monotonic_us() + round(seconds * 1e6)
        if seconds < self._pace.look_seconds:
            self._changed.set()

    async def _keep(
        self, file: str, parsed: Parsed, before: dict[str, Seen]
    ) -> FileParsed | FileBroken | FileDeleted | None:
        """Return what to tell of a file, its code kept; ``None`` if it has to be parsed again."""
        unknown = set(parsed.modules) - before.keys()
        if unknown:
            # They have come since the scan, or lie where it does not look.
            self._followed |= unknown
            return None
        large = [name for name in parsed.modules if before[name].is_too_large]
        if large:
            return file_broken(file, (too_large(large[0]),))
        refused = await self._refuse_writable(before[file].folder, parsed.modules)
        if refused is not None:
            return file_broken(file, refused.failures)
        try:
            return await self._keep_code(file, parsed, before)
        except OSError as exc:
            # No room on the disk: the file is not to blame.
            _logger.error("cannot keep the code of %s now: %s", file, exc)  # noqa: TRY400
            return None

    async def _keep_code(
        self, file: str, parsed: Parsed, before: dict[str, Seen]
    ) -> FileParsed | FileBroken | FileDeleted | None:
        folder, names = before[file].folder, parsed.modules
        sources, digests = await in_thread(read_sources, folder, names, limiter=self._threads)
        changed = [name for name in names if digests.get(name) != before[name].digest]
        if changed:
            self._distrust(changed)
            return None
        if not parsed.dags and not parsed.failures:
            # A module that only uses us. If it once was more, its DAGs are gone.
            return FileDeleted(file)
        asked = Asked(folder, parsed.beside, frozenset(names))
        is_unsteady = self._unsettled.get(file, 0) >= _UNSTEADY
        take = partial(self._beside.take, file, asked, as_it_is=is_unsteady)
        taken = await in_thread(take, limiter=self._threads)
        if taken is None:
            return None
        self._note_choice(file, taken.choice)
        if parsed.dags and taken.choice.refusal is not None:
            return file_broken(file, (taken.choice.refusal,))
        if parsed.dags:
            sources |= taken.sources
            version = version_of(file, sources, self._told_of(parsed))
            await self._snapshots.keep(file, version, sources)
            return file_parsed(file, version, parsed, sources)
        return file_broken(file, parsed.failures)

    def _note_choice(self, file: str, choice: Choice) -> None:
        """Remember which files beside it a DAG file has, and say what is odd about them, once."""
        self._choices[file] = choice
        known = self._known.get(file)
        said = frozenset() if known is None else frozenset(known.choice.said)
        for one in choice.said:
            if one not in said:
                _logger.warning("%s: %s", file, one.message)

    def _distrust(self, changed: Iterable[str]) -> None:
        """Have the next sweep read files whatever their stamps say.

        A change within one tick of its clock leaves a file's stamp as it was.
        """
        distrusted = {n: self._files[n] for n in changed if n in self._files}
        self._files = self._files | {
            name: msgspec.structs.replace(seen, stamp=NO_STAMP) for name, seen in distrusted.items()
        }

    def _may_pass(self, file: str, seen: Seen, known: Known) -> bool:
        """Whether a file that was good may be half of one that is, or its parser was killed."""
        if file not in self._told or file in self._broken:
            return False
        if known.reason == "killed" and known.times == 1:
            return True
        age = (self._clock.now() - seen.stamp[0] // 1000) / 1e6
        return 0 <= age < WRITING_SECONDS

    def _tell(self, file: str, found: FileParsed | FileBroken | FileDeleted) -> None:
        """Report what is new."""
        match found:
            case FileBroken():
                if self._broken.get(file) == found:
                    return
                self._broken[file] = found
                self._told.add(file)
            case FileDeleted():
                self._tell_gone(file)
                return
            case _:
                self._broken.pop(file, None)
                self._told.add(file)
        self._report([found])

    def _told_of(self, parsed: Parsed) -> str:
        """Return what the description of a file depends on besides its code, where unusual.

        What a file changes in its process may be the doing of a library that it imports.
        """
        tries = self._told_tries
        told = [] if tries == DEFAULT_TRIES else [f"default_tries={tries}"]
        if any(dag.isolated for dag in parsed.dags):
            told.append("isolated")
        return " ".join(told)


def _differing(before: dict[str, Seen], now: dict[str, Seen]) -> set[str]:
    """Return the files that are not what they were; what was not read again is the same object."""
    changed = {name for name, seen in now.items() if before.get(name) is not seen}
    return changed | (before.keys() - now.keys())
