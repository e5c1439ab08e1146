"""Which files beside its modules belong to the version of a DAG file. Blocks; called in a thread.

Those that it names or reads do, see ``host.beside``, and those that a line of it
(``# aioflow: files = [...]``) or an ``aioflow.toml`` in its folder or one above names. Where
neither is there, so do all small text files of its own folder, and of folders that it names.
"""

from __future__ import annotations

import hashlib
import logging
import posixpath
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from aioflow.catalog.contents import (
    Content,
    Entries,
    content_of,
    list_entries,
    read,
    stays,
)
from aioflow.catalog.ignoring import NAME, Ignored
from aioflow.catalog.patterns import MAGIC, TABLE, compiled, read_table
from aioflow.clock import Clock
from aioflow.findings import Beside, DagFailure
from aioflow.host.beside import FILE_LIMIT_BYTES, BadFiles, is_inside

__all__ = ("BYTES_AT_MOST", "FILES_AT_MOST", "Allowance", "Asked", "Choice", "FilesBeside", "Taken")

FILES_AT_MOST = 500
"""So many files beside its modules one version has."""

BYTES_AT_MOST = 8 * 1024 * 1024
"""What they may have in all; each has ``FILE_LIMIT_BYTES`` at most."""

VERSIONS_AN_HOUR = 20
_HOUR_US = 3_600_000_000

_ENTRIES_AT_MOST = 20_000

_NO_TEXT_ENDS = (
    "7z avro bak bin bz2 db dll duckdb feather gif gz ico jpeg jpg lock log new orc orig "
    "parquet part pdf pickle pid pkl png py pyc pyi pyo rej shm so sqlite sqlite3 swp "
    "tar tgz tmp wal webp whl xls xlsx xz zip zst"
)
_NO_TEXT = frozenset(f".{end}" for end in _NO_TEXT_ENDS.split())
"""What ends so is not taken unless it is named: modules are imported, others no text, or output."""


_logger = logging.getLogger(__name__)


class Asked(msgspec.Struct, frozen=True):
    """What a DAG file uses of the files beside its modules, as it was parsed.

    Attributes:
        folder: The DAG folder it lies in.
    """

    folder: Path
    beside: Beside
    modules: frozenset[str]


class Choice(msgspec.Struct, frozen=True):
    """The files beside its modules that the version of a DAG file has now.

    Attributes:
        digests: Of their contents, by their paths relative to the DAG folder.
        unnamed: Those of them that only lie there.
        said: What is odd about them.
        refusal: Why the file is not taken at all, if it is not.
    """

    digests: dict[str, bytes] = {}
    unnamed: frozenset[str] = frozenset()
    said: tuple[DagFailure, ...] = ()
    refusal: DagFailure | None = None

    def differs(self, before: Choice) -> bool:
        """Return whether another version would be made of it."""
        return (self.digests, self.refusal) != (before.digests, before.refusal)

    def differs_in_named(self, before: Choice) -> bool:
        """Return whether it differs in more than files that only lie there."""
        if self.refusal != before.refusal:
            return True
        names = {
            name
            for name in self.digests.keys() | before.digests.keys()
            if self.digests.get(name) != before.digests.get(name)
        }
        return not names <= self.unnamed | before.unnamed


class Taken(msgspec.Struct, frozen=True):
    """A choice, and the contents it stands for."""

    choice: Choice
    sources: dict[str, bytes]


class FilesBeside:
    """Looks for the files beside DAG files, and remembers the digests of their contents."""

    def __init__(self) -> None:
        self._contents: dict[str, Content] = {}
        self._named: frozenset[str] = frozenset()

    def is_named(self, path: str) -> bool:
        """Return whether this file was named when it was last looked for, there or not."""
        return path in self._named

    def look(self, files: Mapping[str, Asked]) -> dict[str, Choice]:
        """Return what each of these DAG files would have now."""
        walk = _Walk(self._contents)
        found = {file: walk.choose(file, asked) for file, asked in files.items()}
        lying = {
            f"{asked.folder}/{name}"
            for file, asked in files.items()
            for name in found[file].unnamed
        }
        self._named = frozenset(walk.asked - lying)
        # What nothing asks for any more is forgotten.
        self._contents = {path: one for path, one in self._contents.items() if path in walk.asked}
        return found

    def take(self, file: str, asked: Asked, *, as_it_is: bool) -> Taken | None:
        """Return the files of a version with their contents.

        Args:
            as_it_is: Take a file as it is, though it is not what importing the DAG file has read.

        Returns:
            ``None`` if one has changed since it was read: the DAG file has to be parsed again.
        """
        walk = _Walk(self._contents)
        choice = walk.choose(file, asked)
        opened = asked.beside.opened
        if not as_it_is and any(walk.stamp(asked.folder / n) != opened[n] for n in opened):
            return None
        sources, digests = {}, {}
        for name in choice.digests:
            content = read(asked.folder / name)
            if content is None:
                continue
            sources[name], digests[name] = content, hashlib.sha256(content).digest()
            if digests[name] != choice.digests[name]:
                # Its stamp may be what it was: the next look reads it again.
                self._contents.pop(str(asked.folder / name), None)
        return Taken(msgspec.structs.replace(choice, digests=digests), sources)


class Allowance:
    """How many versions a DAG file gets in an hour because of files that only lie beside it.

    Something may write to one of them all the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._taken: dict[str, deque[int]] = {}
        self._told: set[str] = set()

    def take(self, file: str) -> bool:
        """Return whether a DAG file may have one more now, and count it."""
        now, taken = self._clock.monotonic_us(), self._taken.setdefault(file, deque())
        while taken and taken[0] <= now - _HOUR_US:
            taken.popleft()
        if len(taken) < VERSIONS_AN_HOUR:
            taken.append(now)
            self._told.discard(file)
            return True
        if file not in self._told:
            self._told.add(file)
            _logger.warning(
                "%s had %d versions within an hour because of files beside it that it does not "
                "name: the next comes later; leave out what is written there in .aioflowignore",
                file,
                VERSIONS_AN_HOUR,
            )
        return False


class _TooMany(Exception):
    """More lies there than is looked at."""


class _Walk:
    """One look at the disk: what several DAG files ask for is looked at once."""

    def __init__(self, contents: dict[str, Content]) -> None:
        self.asked: set[str] = set()
        self._contents = contents
        self._seen: dict[str, Content | None] = {}
        self._lists: dict[Path, Entries] = {}
        self._tables: dict[tuple[Path, str], tuple[str, ...] | BadFiles | None] = {}
        self._ignored: dict[tuple[Path, str], Ignored] = {}
        self._lying: dict[tuple[Path, str], list[str]] = {}

    def choose(self, file: str, asked: Asked) -> Choice:
        """Return which files the version of a DAG file has."""
        folder, beside, base = asked.folder, asked.beside, posixpath.dirname(file)
        pick = _Pick(self, folder, asked.modules)
        try:
            patterns = self._patterns(folder, base, beside)
            for pattern in patterns or ():
                names = list(self._match(folder, pattern))
                pick.demand(pattern, names)
            for name in beside.opened:
                pick.name(name, 0)
            for pattern in beside.reads:
                for name in self._match(folder, pattern):
                    pick.name(name, 0)
        except BadFiles as exc:
            return Choice(refusal=DagFailure("files", str(exc)))
        except _TooMany:
            return Choice(refusal=DagFailure("files", _said_of_entries()))
        folders = self._name_all(pick, file, beside)
        if patterns is None:
            lying = self._lie_about(folder, base, folders, frozenset(beside.written))
            pick.add_lying(lying)
        return pick.choice()

    def stamp(self, path: Path) -> tuple[int, ...]:
        """Return the stamp of a file; empty if there is none."""
        content = self.content(path)
        return () if content is None else content.stamp

    def content(self, path: Path) -> Content | None:
        """Return what is known of a file, reading it if it has changed; ``None`` without one."""
        key = str(path)
        if key not in self._seen:
            self.asked.add(key)
            self._seen[key] = content_of(path, self._contents.get(key))
            if (seen := self._seen[key]) is not None:
                self._contents[key] = seen
        return self._seen[key]

    def _patterns(self, folder: Path, base: str, beside: Beside) -> tuple[str, ...] | None:
        if beside.patterns is not None:
            return beside.patterns
        place = base
        while True:
            found = self._table(folder, place)
            if isinstance(found, BadFiles):
                raise found
            if found is not None or not place:
                return found
            place = posixpath.dirname(place)

    def _table(self, folder: Path, place: str) -> tuple[str, ...] | BadFiles | None:
        """Return the patterns that a table in a folder names; ``None`` if it names none."""
        key = (folder, place)
        if key not in self._tables:
            self._tables[key] = read_table(folder / place / TABLE, place)
        return self._tables[key]

    def _name_all(self, pick: _Pick, file: str, beside: Beside) -> list[str]:
        """Take the files that a DAG file names; return the folders it names."""
        above = {"", ".", file, *map(str, Path(file).parents)}
        folders = []
        for name, line in (beside.paths | dict.fromkeys(beside.named, -1)).items():
            if name in above or name in beside.written:
                continue
            if not is_inside(name):
                pick.say(line, f"{name} is outside of the DAG folder: no task finds it there")
            elif (pick.folder / name).is_dir():
                folders.append(name)
            elif line < 0:  # a text that may mean anything
                pick.name(name, -1)
            else:
                pick.name(name, line, is_path=True)
        return folders

    def _lie_about(
        self, folder: Path, base: str, folders: Sequence[str], written: frozenset[str]
    ) -> list[str] | None:
        """Return what lies beside a file and in folders that it names; ``None`` if too much."""
        names = list(self._small(folder, base))
        try:
            for place in folders:
                names += (n for n in self._below(folder, place) if self._may_be(folder, n))
        except _TooMany:
            return None
        return [name for name in dict.fromkeys(names) if name not in written]

    def _small(self, folder: Path, base: str) -> list[str]:
        key = (folder, base)
        if key not in self._lying:
            names = (posixpath.join(base, name) for name in self._list(folder / base).files)
            self._lying[key] = [name for name in names if self._may_be(folder, name)]
        return self._lying[key]

    def _may_be(self, folder: Path, name: str) -> bool:
        """Return whether a file may be taken without having been named."""
        place, last = posixpath.split(name)
        if last[0] == "." or last[-1] == "~" or posixpath.splitext(last)[1].lower() in _NO_TEXT:
            return False
        if last in self._list(folder / place).links and not stays(folder, place, name):
            return False
        return not self._ignored_in(folder, place).hides(name)

    def _ignored_in(self, folder: Path, place: str) -> Ignored:
        key = (folder, place)
        if key not in self._ignored:
            above = self._ignored_in(folder, posixpath.dirname(place)) if place else Ignored()
            path = folder / place
            if (path / NAME).is_file():
                prefix = f"{place}/" if place else ""
                above = above.below(path, prefix, lambda _place, _exc: None)  # the scan says it
            self._ignored[key] = above
        return self._ignored[key]

    def _match(self, folder: Path, pattern: str) -> Iterator[str]:
        """Give the files that a pattern names; of a folder, all in it."""
        if pattern == ".":
            yield from self._below(folder, "")
        elif not MAGIC.search(pattern):
            if (folder / pattern).is_dir():
                yield from self._below(folder, pattern)
            elif self.content(folder / pattern) is not None:
                yield pattern
        else:
            fixed = MAGIC.split(pattern)[0]
            fits = compiled(pattern).fullmatch
            for name in self._below(folder, posixpath.dirname(fixed)):
                if fits(name):
                    yield name

    def _below(self, folder: Path, place: str) -> Iterator[str]:
        """Give the files in a folder and below, without hidden ones and compiled modules."""
        count = 0
        pending: list[tuple[str, frozenset[tuple[int, int]]]] = [(place, frozenset())]
        while pending:
            here, above = pending.pop()
            try:
                status = (folder / here).stat()
            except OSError:
                continue
            inode = (status.st_dev, status.st_ino)
            if inode in above:
                continue
            entries = self._list(folder / here)
            count += len(entries.files) + len(entries.folders)
            if count > _ENTRIES_AT_MOST:
                raise _TooMany
            yield from (posixpath.join(here, name) for name in entries.files if name[0] != ".")
            pending += [
                (posixpath.join(here, name), above | {inode})
                for name in reversed(entries.folders)
                if name[0] != "." and name != "__pycache__"
            ]

    def _list(self, path: Path) -> Entries:
        if path not in self._lists:
            self._lists[path] = list_entries(path)
        return self._lists[path]


class _Pick:
    """What is taken for one DAG file, and what is said of it."""

    def __init__(self, walk: _Walk, folder: Path, modules: frozenset[str]) -> None:
        self.folder = folder
        self._walk = walk
        self._modules = modules
        self._digests: dict[str, bytes] = {}
        self._unnamed: set[str] = set()
        self._bytes = 0
        self._said: list[DagFailure] = []

    def choice(self) -> Choice:
        """Return all that was picked."""
        return Choice(self._digests, frozenset(self._unnamed), tuple(self._said))

    def say(self, line: int, message: str) -> None:
        """Say what is odd; once if it is said of several lines."""
        if all(said.message != message for said in self._said):
            self._said.append(DagFailure("odd.file", message, max(line, 0)))

    def demand(self, pattern: str, names: Iterable[str]) -> None:
        """Take the files that a pattern has named.

        Raises:
            BadFiles: If one is too large, or they are too many.
        """
        has_any = False
        for name in names:
            has_any = True
            why = self._take(name)
            if why:
                raise BadFiles(f"{name}, which files names, {why}")
        if not has_any:
            self.say(0, f"no file is at {pattern}, which files names")

    def name(self, name: str, line: int, *, is_path: bool = False) -> None:
        """Take a file that is named; say so if that is not possible."""
        if name in self._modules:
            return
        if self._walk.content(self.folder / name) is None:
            if is_path:
                self.say(line, f"no file is at {name}: a task does not find it there")
            return
        why = self._take(name)
        if why:
            self.say(line, f"{name} {why}, so it is no part of the version: no task finds it there")

    def add_lying(self, names: list[str] | None) -> None:
        """Take files that lie there: all of them, or none."""
        if names is None:
            self.say(0, _said_of_entries())
            return
        names = [name for name in names if name not in self._digests and name not in self._modules]
        if len(self._digests) + len(names) > FILES_AT_MOST:
            self._say_lying(f"{len(names)} files beside it: a version has at most {FILES_AT_MOST}")
            return
        found: dict[str, bytes] = {}
        size = self._bytes
        for name in names:
            content = self._walk.content(self.folder / name)
            if content is not None and content.is_text and not content.is_too_large:
                found[name] = content.digest
                size += content.size
        if size > BYTES_AT_MOST:
            limit = _in_mib(BYTES_AT_MOST)
            self._say_lying(f"{size:,} bytes lie beside it: a version has at most {limit}")
            return
        self._digests |= found
        self._unnamed |= found.keys()

    def _say_lying(self, why: str) -> None:
        self.say(
            0,
            f"{why}, so only those that it names are part of it; "
            'name others in a line "# aioflow: files = [...]"',
        )

    def _take(self, name: str) -> str:
        """Take a file; return why not, if that is not possible."""
        if name in self._digests or name in self._modules:
            return ""
        content = self._walk.content(self.folder / name)
        if content is None:
            return "cannot be read"
        if content.is_too_large:
            return f"is larger than {_in_mib(FILE_LIMIT_BYTES)}"
        if len(self._digests) >= FILES_AT_MOST:
            return f"is one more than the {FILES_AT_MOST} files that a version has at most"
        if self._bytes + content.size > BYTES_AT_MOST:
            return (
                f"does not fit into the {_in_mib(BYTES_AT_MOST)} that the files of a version have"
            )
        self._digests[name] = content.digest
        self._bytes += content.size
        return ""


def _in_mib(size: int) -> str:
    return f"{size / 1024 / 1024:g} MiB"


def _said_of_entries() -> str:
    return (
        f"a folder that it names has more than {_ENTRIES_AT_MOST:,} entries: "
        "none of them is part of the version; name fewer"
    )
