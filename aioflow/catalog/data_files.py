"""The data files of a DAG file's version. The functions block, so they are called in threads.

Data files are all files of a version except its modules. They are the files that the DAG file names
or reads (see ``worker.code.data_files``), and the files that are named by a comment in the DAG file
(``# aioflow: files = [...]``) or by an ``aioflow.toml`` in its folder or a folder above. If there
is neither a comment nor such a table, all small text files in the DAG file's folder, and in folders
that it names, belong to the version as well. They are called unnamed files.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from aioflow.catalog.file_patterns import (
    IGNORE_FILE,
    MAGIC,
    TABLE_FILE,
    Ignored,
    compile_pattern,
    read_table,
)
from aioflow.protocol.reports import DagFailure, DataFiles
from aioflow.worker.code.data_files import FILE_LIMIT_BYTES, BadFiles, is_inside

__all__ = (
    "BYTES_AT_MOST",
    "FILES_AT_MOST",
    "Choice",
    "ChoiceContents",
    "DataFileUse",
    "FileContent",
    "FilesBeside",
    "FolderEntries",
    "content_of",
    "is_link_inside",
    "list_entries",
    "read_file",
)

_SNIFFED_BYTES = 8_000
"""Number of bytes examined at the start of a file. A file with a zero byte among them is not text,
as in git.
"""


class FileContent(msgspec.Struct, frozen=True):
    """The state of a file at the last read, without its content.

    Attributes:
        stamp: Modification time, size and inode. While the stamp is unchanged, the content is taken
            to be unchanged.
        digest: Digest of the content; empty if the file is too large.
    """

    stamp: tuple[int, ...]
    digest: bytes
    is_text: bool

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.stamp[1]

    @property
    def is_too_large(self) -> bool:
        """True if the file is too large to be read."""
        return not self.digest


class FolderEntries(msgspec.Struct, frozen=True):
    """The names of the entries of a folder.

    Attributes:
        folders: Names of subfolders.
        files: Names of all other entries.
        links: The names in ``folders`` and ``files`` that are symbolic links.
    """

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    links: frozenset[str] = frozenset()


def read_file(path: Path) -> bytes | None:
    """Return the content of a file; ``None`` if it cannot be read, or has become too large."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except OSError:
        return None
    return content if len(content) <= FILE_LIMIT_BYTES else None


def content_of(path: str, before: FileContent | None) -> FileContent | None:
    """Return the state of a file; ``None`` if the file does not exist.

    The file is read only if it has changed. If it cannot be examined or read, return ``before``,
    its state at the last read.
    """
    try:
        status = os.stat(path)  # noqa: PTH116 - creating a Path takes longer than the stat
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return before
    if not stat.S_ISREG(status.st_mode):
        return None
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    if before is not None and before.stamp == stamp:
        return before
    if status.st_size > FILE_LIMIT_BYTES:
        return FileContent(stamp, b"", is_text=False)
    content = read_file(Path(path))
    if content is None:
        return before
    return FileContent(
        stamp, hashlib.sha256(content).digest(), b"\0" not in content[:_SNIFFED_BYTES]
    )


def list_entries(path: Path) -> FolderEntries:
    """Return the entries of a folder; empty if it cannot be listed."""
    folders: list[str] = []
    files: list[str] = []
    links: set[str] = set()
    try:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if not entry.name.isprintable():  # this excludes undecodable bytes, too
                    continue
                if entry.is_symlink():
                    links.add(entry.name)
                (folders if _is_folder(entry) else files).append(entry.name)
    except OSError:
        pass
    return FolderEntries(tuple(folders), tuple(files), frozenset(links))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_link_inside(folder: Path, place: str, name: str) -> bool:
    """Return whether a link leads into the DAG folder, or into the folder of the link."""
    target = os.path.realpath(folder / name)
    roots = (os.path.realpath(folder), os.path.realpath(folder / place))
    return any(target.startswith(f"{root}/") for root in roots)


FILES_AT_MOST = 500
"""Maximum number of data files in one version."""

BYTES_AT_MOST = 8 * 1024 * 1024
"""Maximum total size of the data files. A single file is limited to ``FILE_LIMIT_BYTES``."""

_ENTRIES_AT_MOST = 20_000

_NO_TEXT_ENDS = (
    "7z avro bak bin bz2 db dll duckdb feather gif gz ico jpeg jpg lock log new orc orig "
    "parquet part pdf pickle pid pkl png py pyc pyi pyo rej shm so sqlite sqlite3 swp "
    "tar tgz tmp wal webp whl xls xlsx xz zip zst"
)
_NO_TEXT = frozenset(f".{end}" for end in _NO_TEXT_ENDS.split())
"""Files with these endings are included only if they are named, because they are modules, which are
imported instead, binary files, or output.
"""


_Place: TypeAlias = tuple[Path, str, tuple[str, ...], frozenset[str]]
"""The inputs that determine a set of unnamed files: the DAG folder, the folder of the DAG file in
it, the folders that the DAG file names, and the files that it writes when imported."""


class DataFileUse(msgspec.Struct, frozen=True):
    """The data files that a DAG file uses, as found when it was parsed.

    Attributes:
        folder: The DAG folder that contains the DAG file.
        beside: The paths and patterns that the parser has found.
        modules: Files of the version that are modules.
    """

    folder: Path
    beside: DataFiles
    modules: frozenset[str]


class Choice(msgspec.Struct, frozen=True):
    """The data files that currently belong to the version of a DAG file.

    Attributes:
        named: Digests of the named files, by their paths relative to the DAG folder.
        unnamed: Digests of the unnamed files. DAG files with the same unnamed files share this
            object.
        said: Warnings about the data files.
        refusal: Why the DAG file is rejected; ``None`` if it is not.
    """

    named: dict[str, bytes] = {}
    unnamed: dict[str, bytes] = {}
    said: tuple[DagFailure, ...] = ()
    refusal: DagFailure | None = None

    @property
    def digests(self) -> dict[str, bytes]:
        """The digests of all files."""
        return self.unnamed | self.named

    def differs(self, before: Choice) -> bool:
        """Return whether this choice leads to a different version than ``before``."""
        is_same = self.unnamed is before.unnamed or self.digests == before.digests
        return not is_same or self.differs_in_named(before)

    def differs_in_named(self, before: Choice) -> bool:
        """Return whether this choice differs from ``before`` in its named files or its refusal."""
        return (self.named, self.refusal) != (before.named, before.refusal)


class ChoiceContents(msgspec.Struct, frozen=True):
    """A choice with the contents of its files."""

    choice: Choice
    sources: dict[str, bytes]


class FilesBeside:
    """Finds the data files of DAG files, and caches the digests of their contents."""

    def __init__(self) -> None:
        self._contents: dict[str, FileContent] = {}
        self._named: frozenset[str] = frozenset()
        self._unnamed: dict[_Place, dict[str, bytes]] = {}

    def is_named(self, path: str) -> bool:
        """Return whether a DAG file named this path at the last ``look``, existing or not."""
        return path in self._named

    def look(self, files: Mapping[str, DataFileUse]) -> dict[str, Choice]:
        """Return the current choice for each of these DAG files."""
        walk = _Walk(self._contents, self._unnamed)
        found = {file: walk.choose(file, asked) for file, asked in files.items()}
        self._named = frozenset(walk.named)
        self._unnamed = {place: one.digests for place, one in walk.unnamed.items()}
        # Drops the contents that are no longer used by any DAG file.
        contents = self._contents.copy()
        self._contents = {path: one for path, one in contents.items() if path in walk.asked}
        return found

    def take(self, file: str, asked: DataFileUse, *, as_it_is: bool) -> ChoiceContents | None:
        """Return the current choice for a DAG file, with the contents of its data files.

        Args:
            as_it_is: Whether to accept a file even if its content has changed since the import of
                the DAG file read it.

        Returns:
            ``None`` if a file has changed since the import read it, so that the DAG file must be
            parsed again.
        """
        walk = _Walk(self._contents, self._unnamed)
        choice = walk.choose(file, asked)
        opened = asked.beside.opened
        if not as_it_is and any(walk.stamp(asked.folder, n) != opened[n] for n in opened):
            return None
        sources: dict[str, bytes] = {}
        named = self._read(asked.folder, choice.named, sources)
        unnamed = self._read(asked.folder, choice.unnamed, sources)
        if unnamed == choice.unnamed:
            unnamed = choice.unnamed
        return ChoiceContents(
            msgspec.structs.replace(choice, named=named, unnamed=unnamed), sources
        )

    def _read(
        self, folder: Path, digests: Mapping[str, bytes], sources: dict[str, bytes]
    ) -> dict[str, bytes]:
        """Read files. Return their current digests, except for files that no longer exist."""
        found = {}
        for name, digest in digests.items():
            content = sources.get(name) or read_file(folder / name)
            if content is None:
                continue
            sources[name], found[name] = content, hashlib.sha256(content).digest()
            if found[name] != digest:
                # The stamp may be unchanged, so the next look must read the file again.
                self._contents.pop(f"{folder}/{name}", None)
        return found


class _TooMany(Exception):
    """Raised if a folder has more entries than are examined."""


class _Unnamed(msgspec.Struct):
    """The unnamed files in a DAG file's folder, and in the folders that the DAG file names.

    Attributes:
        names: Number of files; -1 if they were not counted.
        size: Total size of the files that are included.
    """

    names: int = -1
    digests: dict[str, bytes] = {}
    size: int = 0


class _Walk:
    """One pass over the disk. It reads a path only once, even if several DAG files need it.

    Args:
        contents: Known states of files, by path.
        unnamed: Unnamed files found by the last pass. If a result is equal, this object is reused.
    """

    def __init__(
        self, contents: dict[str, FileContent], unnamed: Mapping[_Place, dict[str, bytes]]
    ) -> None:
        self.asked: set[str] = set()
        self.named: set[str] = set()
        self.unnamed: dict[_Place, _Unnamed] = {}
        self._contents = contents
        self._before = unnamed
        self._seen: dict[str, FileContent | None] = {}
        self._folders: dict[str, bool] = {}
        self._lists: dict[Path, FolderEntries] = {}
        self._tables: dict[tuple[Path, str], tuple[str, ...] | BadFiles | None] = {}
        self._ignored: dict[tuple[Path, str], Ignored] = {}

    def choose(self, file: str, asked: DataFileUse) -> Choice:
        """Return the data files of a DAG file's version."""
        folder, beside, base = asked.folder, asked.beside, posixpath.dirname(file)
        pick = _Pick(self, folder, asked.modules)
        try:
            patterns = self._patterns(folder, base, beside)
            for pattern in patterns or ():
                pick.demand(pattern, self._match(folder, pattern))
            for name in beside.opened:
                pick.name(name, 0)
            for pattern in beside.reads:
                for name in self._match(folder, pattern):
                    pick.name(name, 0)
        except BadFiles as exc:
            return Choice(refusal=DagFailure("files", str(exc)))
        except _TooMany:
            return Choice(refusal=DagFailure("files", _too_many_entries()))
        folders = self._name_all(pick, file, beside)
        if patterns is None:
            place = (folder, base, tuple(folders), frozenset(beside.written))
            pick.add_unnamed(self._unnamed_around(place))
        return pick.choice()

    def stamp(self, folder: Path, name: str) -> tuple[int, ...]:
        """Return the stamp of a file; empty if it does not exist."""
        content = self.content(folder, name)
        return () if content is None else content.stamp

    def content(self, folder: Path, name: str, *, is_named: bool = True) -> FileContent | None:
        """Return the state of a file; see ``content_of``. Later calls return the same state."""
        path = f"{folder}/{name}"
        if is_named:
            self.named.add(path)
        if path not in self._seen:
            self.asked.add(path)
            self._seen[path] = content_of(path, self._contents.get(path))
            if (seen := self._seen[path]) is not None:
                self._contents[path] = seen
        return self._seen[path]

    def _patterns(self, folder: Path, base: str, beside: DataFiles) -> tuple[str, ...] | None:
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
        """Return the patterns in the ``aioflow.toml`` of a folder; ``None`` if there are none."""
        key = (folder, place)
        if key not in self._tables:
            self._tables[key] = read_table(folder / place / TABLE_FILE, place)
        return self._tables[key]

    def _name_all(self, pick: _Pick, file: str, beside: DataFiles) -> list[str]:
        """Add the files that a DAG file names to its version. Return the folders it names."""
        folders = []
        for name, line in (beside.paths | dict.fromkeys(beside.named, -1)).items():
            if name in (".", file) or file.startswith(f"{name}/") or name in beside.written:
                continue
            if not is_inside(name):
                pick.warn(line, f"{name} is outside of the DAG folder: no task finds it there")
            elif self._is_folder(pick.folder, name):
                folders.append(name)
            elif line < 0:  # it may be a string that is not a path
                pick.name(name, -1)
            else:
                pick.name(name, line, is_path=True)
        return folders

    def _is_folder(self, folder: Path, name: str) -> bool:
        path = f"{folder}/{name}"
        if path not in self._folders:
            self._folders[path] = Path(path).is_dir()
        return self._folders[path]

    def _unnamed_around(self, place: _Place) -> _Unnamed:
        """Return the unnamed files in a DAG file's folder, and in folders that it names."""
        if place not in self.unnamed:
            self.unnamed[place] = self._unnamed_in(*place)
        return self.unnamed[place]

    def _unnamed_in(
        self, folder: Path, base: str, folders: tuple[str, ...], written: frozenset[str]
    ) -> _Unnamed:
        found = [posixpath.join(base, name) for name in self._list(folder / base).files]
        try:
            for below in folders:
                found += self._below(folder, below)
        except _TooMany:
            return _Unnamed()
        names = [n for n in dict.fromkeys(found) if n not in written and self._may_be(folder, n)]
        unnamed = _Unnamed(len(names), {})
        if len(names) > FILES_AT_MOST:
            return unnamed
        for name in names:
            content = self.content(folder, name, is_named=False)
            if content is not None and content.is_text and not content.is_too_large:
                unnamed.digests[name] = content.digest
                unnamed.size += content.size
        before = self._before.get((folder, base, folders, written))
        if before == unnamed.digests:
            unnamed.digests = before
        return unnamed

    def _may_be(self, folder: Path, name: str) -> bool:
        """Return whether a file may be included without being named."""
        place, last = posixpath.split(name)
        if last[0] == "." or last[-1] == "~" or posixpath.splitext(last)[1].lower() in _NO_TEXT:
            return False
        if last in self._list(folder / place).links and not is_link_inside(folder, place, name):
            return False
        return not self._ignored_in(folder, place).hides(name)

    def _ignored_in(self, folder: Path, place: str) -> Ignored:
        key = (folder, place)
        if key not in self._ignored:
            above = self._ignored_in(folder, posixpath.dirname(place)) if place else Ignored()
            path = folder / place
            if (path / IGNORE_FILE).is_file():
                prefix = f"{place}/" if place else ""
                above = above.below(path, prefix, lambda _place, _exc: None)  # the scan reports it
            self._ignored[key] = above
        return self._ignored[key]

    def _match(self, folder: Path, pattern: str) -> Iterator[str]:
        """Yield the files that match a pattern. For the name of a folder, yield all files in it."""
        if pattern == ".":
            yield from self._below(folder, "")
        elif not MAGIC.search(pattern):
            if (folder / pattern).is_dir():
                yield from self._below(folder, pattern)
            elif self.content(folder, pattern) is not None:
                yield pattern
        else:
            fixed = MAGIC.split(pattern)[0]
            fits = compile_pattern(pattern).fullmatch
            for name in self._below(folder, posixpath.dirname(fixed)):
                if fits(name):
                    yield name

    def _below(self, folder: Path, place: str) -> Iterator[str]:
        """Yield the files in a folder and below, except hidden files and compiled modules."""
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

    def _list(self, path: Path) -> FolderEntries:
        if path not in self._lists:
            self._lists[path] = list_entries(path)
        return self._lists[path]


class _Pick:
    """The data files included for one DAG file, and the warnings about them."""

    def __init__(self, walk: _Walk, folder: Path, modules: frozenset[str]) -> None:
        self.folder = folder
        self._walk = walk
        self._modules = modules
        self._digests: dict[str, bytes] = {}
        self._unnamed: dict[str, bytes] = {}
        self._bytes = 0
        self._warned: list[DagFailure] = []

    def choice(self) -> Choice:
        """Return the resulting choice."""
        return Choice(self._digests, self._unnamed, tuple(self._warned))

    def warn(self, line: int, message: str) -> None:
        """Add a warning, unless the same warning was already added, perhaps for another line."""
        if all(said.message != message for said in self._warned):
            self._warned.append(DagFailure("odd.file", message, max(line, 0)))

    def demand(self, pattern: str, names: Iterable[str]) -> None:
        """Add the files that a pattern matches to the version.

        Raises:
            BadFiles: If a file is too large, or there are too many files.
        """
        has_any = False
        for name in names:
            has_any = True
            why = self._take(name)
            if why:
                raise BadFiles(f"{name}, which files names, {why}")
        if not has_any:
            self.warn(0, f"no file is at {pattern}, which files names")

    def name(self, name: str, line: int, *, is_path: bool = False) -> None:
        """Add a named file to the version. If that is not possible, add a warning."""
        if name in self._modules:
            return
        if self._walk.content(self.folder, name) is None:
            if is_path:
                self.warn(line, f"no file is at {name}: a task does not find it there")
            return
        why = self._take(name)
        if why:
            self.warn(
                line, f"{name} {why}, so it is not part of the version: no task finds it there"
            )

    def add_unnamed(self, unnamed: _Unnamed) -> None:
        """Add unnamed files to the version, either all of them or none."""
        if unnamed.names < 0:
            self.warn(0, _too_many_entries())
            return
        both = [name for name in self._digests if name in unnamed.digests]
        count = unnamed.names
        if count <= FILES_AT_MOST:
            count += len(self._digests) - len(both)
        if count > FILES_AT_MOST:
            self._warn_of_unnamed(
                f"{count} files lie beside it: a version has at most {FILES_AT_MOST}"
            )
            return
        size = self._bytes + unnamed.size - sum(self._size(name) for name in both)
        if size > BYTES_AT_MOST:
            limit = _in_mib(BYTES_AT_MOST)
            self._warn_of_unnamed(f"{size:,} bytes lie beside it: a version has at most {limit}")
            return
        self._unnamed = unnamed.digests

    def _size(self, name: str) -> int:
        content = self._walk.content(self.folder, name)
        return 0 if content is None else content.size

    def _warn_of_unnamed(self, why: str) -> None:
        self.warn(
            0,
            f"{why}, so only those that it names are part of it; "
            'name others in a line "# aioflow: files = [...]"',
        )

    def _take(self, name: str) -> str:
        """Add a file to the version. Return why it cannot be added; empty if it was added."""
        if name in self._digests or name in self._modules:
            return ""
        content = self._walk.content(self.folder, name)
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


def _too_many_entries() -> str:
    return (
        f"a folder that it names has more than {_ENTRIES_AT_MOST:,} entries: "
        "none of them is part of the version; name fewer"
    )
