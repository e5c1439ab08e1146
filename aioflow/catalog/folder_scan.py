"""The contents of the DAG folders, and immediate detection of their changes.

A scan blocks and is called in a thread. It follows links, but reports the target under the name of
the link, because mounted configuration and releases consist of links. A file counts as deleted only
if the file system says that it does not exist. If a file cannot be examined for another reason, its
state from the last scan is retained. The scan only checks by the text of a Python file whether it
may define DAGs. The parser decides.

Changes are detected where the kernel reports them.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import stat
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import anyio
import msgspec

from aioflow.catalog.file_patterns import IGNORE_FILE, TABLE_FILE, Ignored
from aioflow.catalog.interpreter_choice import (
    OURS,
    InterpreterChoice,
    choice_of_folder,
    name_in_comment,
)

__all__ = (
    "FILE_LIMIT_BYTES",
    "NO_STAMP",
    "Scan",
    "ScannedFile",
    "import_paths",
    "list_folders",
    "list_loaded",
    "may_define_dags",
    "names_aioflow",
    "read_sources",
    "scan",
    "watch_folders",
)

_AIOFLOW_ENCODED = tuple("aioflow".encode(coding) for coding in ("ascii", "utf-16-le", "utf-16-be"))

_AIRFLOW_DAG = re.compile(
    rb"^[ \t]*from[ \t]+airflow[\w.]*[ \t]+import\b(?:[^\n#]*|[ \t]*\([^)]*)\b(?:DAG|dag)\b"
    rb"|\b(?:airflow|models|sdk|decorators)\.(?:DAG|dag)\b",
    re.MULTILINE,
)


def names_aioflow(content: bytes) -> bool:
    """Return whether a file contains the word ``aioflow``. A file without it defines no DAG."""
    return any(word in content for word in _AIOFLOW_ENCODED)


def may_define_dags(content: bytes) -> bool:
    """Return whether to parse a file: it contains ``aioflow``, or uses Airflow's DAG class.

    If the file uses Airflow's DAG class, parsing it results in advice on what to write instead.
    """
    return names_aioflow(content) or (
        b"airflow" in content and _AIRFLOW_DAG.search(content) is not None
    )


FILE_LIMIT_BYTES = 16 * 1024 * 1024
"""Maximum size of a ``.py`` file that is read, in bytes."""

NO_STAMP = (-1, -1, -1)
"""A stamp that no file has."""

_CHUNK = 1024 * 1024
_GONE = (FileNotFoundError, NotADirectoryError)

_logger = logging.getLogger(__name__)

_OnError: TypeAlias = Callable[[Path, OSError], None]
_Inode: TypeAlias = tuple[int, int]


class ScannedFile(msgspec.Struct, frozen=True):
    """A Python file found by a scan.

    Attributes:
        folder: The DAG folder that contains it.
        stamp: Modification time, size and inode. While the stamp is unchanged, the content is taken
            to be unchanged.
        digest: Digest of the content, or of the stamp if the file is too large.
        has_dags: Whether it may define DAGs, see ``may_define_dags``.
        is_ignored: Whether a pattern excludes it from the DAG files, whatever it defines.
        named: Name of the interpreter in its comment; ``None`` if there is no such comment.
        of_folder: The interpreter that its folder chooses.
    """

    folder: Path
    stamp: tuple[int, int, int]
    digest: bytes
    has_dags: bool
    is_ignored: bool = False
    named: str | None = None
    of_folder: InterpreterChoice = OURS

    @property
    def interpreter(self) -> InterpreterChoice:
        """The interpreter of the file. Its own comment takes precedence."""
        return self.of_folder if self.named is None else InterpreterChoice(self.named)

    @property
    def is_too_large(self) -> bool:
        """True if the file is too large to be read."""
        return self.stamp[1] > FILE_LIMIT_BYTES


class Scan(msgspec.Struct, frozen=True):
    """The contents of the DAG folders, as far as they could be read.

    Attributes:
        files: All Python files, by their path relative to their DAG folder.
        unseen: Relative paths of files and folders that could not be examined.
        causes: The reasons, as text, each with the first place at which it occurred.
    """

    files: dict[str, ScannedFile] = {}
    unseen: frozenset[str] = frozenset()
    causes: dict[str, Path] = {}

    def hides(self, file: str) -> bool:
        """Return whether this file may exist although the scan did not see it."""
        return _is_below(file, self.unseen)


def scan(
    folders: Sequence[Path],
    before: Mapping[str, ScannedFile],
    followed: AbstractSet[str] = frozenset(),
) -> Scan:
    """Find Python files.

    A file whose stamp has not changed since ``before`` is not read again. A file that cannot be
    examined keeps its entry from ``before``. If two files have the same relative path, the file in
    the first folder counts.

    Args:
        followed: Files to examine wherever they are, because other files import them.
    """
    files: dict[str, ScannedFile] = {}
    unseen: set[str] = set()
    causes: dict[str, Path] = {}
    for folder in folders:
        blind = _Blind(folder)
        _scan_folder(folder, files, before, blind)
        for name in sorted(followed - files.keys()):
            seen = _scan_file(folder, name, before.get(name), True, OURS, blind.note)
            if seen is not None:
                files[name] = seen
        for name, seen in before.items():
            if name not in files and seen.folder == folder and _is_below(name, blind.names):
                files[name] = seen
        unseen |= blind.names
        causes = blind.causes | causes
    return Scan(files, frozenset(unseen), causes)


def _scan_folder(
    folder: Path, files: dict[str, ScannedFile], before: Mapping[str, ScannedFile], blind: _Blind
) -> None:
    for place in _walk(folder, blind.note):
        for file in place.files:
            name = place.prefix + file
            if name in files:
                continue
            is_ignored = place.ignored.hides(name)
            seen = _scan_file(
                folder, name, before.get(name), is_ignored, place.interpreter, blind.note
            )
            if seen is not None:
                files[name] = seen


def import_paths(files: Iterable[str]) -> set[str]:
    """Return the paths at which imports may succeed: files without suffix, and folders."""
    places = set()
    for file in files:
        place = file.removesuffix(".py")
        while place and place not in places:
            places.add(place)
            place = place.rpartition("/")[0]
    return places


class _Blind:
    """Collects the paths in one DAG folder that could not be examined, with the reasons."""

    def __init__(self, folder: Path) -> None:
        self.names: set[str] = set()
        self.causes: dict[str, Path] = {}
        self._folder = folder

    def note(self, place: Path, exc: OSError) -> None:
        self.names.add(place.relative_to(self._folder).as_posix())
        self.causes.setdefault(exc.strerror or type(exc).__name__, place)


def list_folders(folders: Sequence[Path]) -> list[Path]:
    """Return the DAG folders, and all folders below them that may contain Python files."""
    return [place.path for folder in folders for place in _walk(folder, lambda place, exc: None)]


def list_loaded(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield all paths that may be loaded from DAG folders: folders, Python and pattern files."""
    for folder in folders:
        for place in _walk(folder, lambda place, exc: None):
            yield place.path
            yield from (place.path / file for file in place.files)
            if place.has_patterns:
                yield place.path / IGNORE_FILE


def read_sources(folder: Path, names: Sequence[str]) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the contents of the files ``names`` in a folder, and their digests.

    Files that cannot be read are omitted.
    """
    sources = {}
    for name in names:
        try:
            sources[name] = (folder / name).read_bytes()
        except OSError as exc:
            _logger.info("%s went away while it was read: %s", folder / name, exc)
    return sources, {name: hashlib.sha256(text).digest() for name, text in sources.items()}


def _scan_file(
    folder: Path,
    name: str,
    before: ScannedFile | None,
    is_ignored: bool,
    of_folder: InterpreterChoice,
    on_error: _OnError,
) -> ScannedFile | None:
    path = f"{folder}/{name}"  # creating a Path takes longer than the stat
    try:
        status = os.stat(path)  # noqa: PTH116
        stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
        if before is not None and (before.folder, before.stamp) == (folder, stamp):
            if before.is_ignored == is_ignored and before.of_folder == of_folder:
                return before
            return msgspec.structs.replace(before, is_ignored=is_ignored, of_folder=of_folder)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > FILE_LIMIT_BYTES:
            digest = hashlib.sha256(repr(stamp).encode()).digest()
            with Path(path).open("rb") as file:
                return ScannedFile(
                    folder, stamp, digest, may_define_dags(file.read(_CHUNK)), is_ignored
                )
        content = Path(path).read_bytes()
    except _GONE:
        return None
    except OSError as exc:
        on_error(Path(path), exc)
        return None
    return ScannedFile(
        folder,
        stamp,
        hashlib.sha256(content).digest(),
        may_define_dags(content),
        is_ignored,
        name_in_comment(content),
        of_folder,
    )


class _ScannedFolder(msgspec.Struct, frozen=True):
    """A folder, with the names of its Python files.

    Attributes:
        prefix: Path of the folder below the DAG folder with a trailing slash; empty for the DAG
            folder itself.
        has_patterns: Whether it has its own ``.aioflowignore``.
        interpreter: The interpreter of files in it that name none.
    """

    path: Path
    prefix: str
    files: list[str]
    ignored: Ignored
    has_patterns: bool
    interpreter: InterpreterChoice


def _walk(folder: Path, on_error: _OnError) -> Iterator[_ScannedFolder]:
    """Yield each folder with its Python files. Follow links, but not in a cycle."""
    waiting: list[tuple[Path, str, frozenset[_Inode], Ignored, InterpreterChoice]] = []
    waiting.append((folder, "", frozenset(), Ignored(), OURS))
    while waiting:
        place, prefix, above, ignored, interpreter = waiting.pop()
        try:
            status = place.stat()
            inode = (status.st_dev, status.st_ino)
            if inode in above:
                continue
            folders, files, has_patterns, has_table = _list(place, on_error)
        except _GONE:
            continue
        except OSError as exc:
            on_error(place, exc)
            continue
        if has_patterns:
            ignored = ignored.below(place, prefix, on_error)
        if has_table:
            interpreter = choice_of_folder(place, prefix, interpreter)
        yield _ScannedFolder(place, prefix, files, ignored, has_patterns, interpreter)
        waiting += [
            (place / name, f"{prefix}{name}/", above | {inode}, ignored, interpreter)
            for name in reversed(folders)
            if not ignored.hides(f"{prefix}{name}/")
        ]


def _list(place: Path, on_error: _OnError) -> tuple[list[str], list[str], bool, bool]:
    """Return the folders and Python files in a folder, and whether it has patterns and a table."""
    folders: list[str] = []
    files: list[str] = []
    has_patterns = has_table = False
    with os.scandir(place) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name == IGNORE_FILE:
                has_patterns = True
            has_table = has_table or entry.name == TABLE_FILE
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            try:
                is_folder = entry.is_dir()
            except OSError as exc:
                on_error(place / entry.name, exc)
                continue
            if not is_folder and not entry.name.endswith(".py"):
                continue
            if not _is_utf_8(entry.name):
                on_error(place / entry.name, OSError(errno.EILSEQ, "a name is not UTF-8"))
                continue
            (folders if is_folder else files).append(entry.name)
    return folders, files, has_patterns, has_table


def _is_utf_8(name: str) -> bool:
    """Return whether a name is valid UTF-8. Python represents undecodable bytes as surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_below(name: str, places: AbstractSet[str]) -> bool:
    if not places:
        return False
    return name in places or any(str(above) in places for above in PurePosixPath(name).parents)


async def watch_folders(
    folders: Callable[[], Awaitable[list[Path]]],
    notice: Callable[[], None],
    is_named: Callable[[str], bool],
) -> None:
    """Call ``notice`` whenever something may have changed in the folders.

    Detection is not guaranteed: network file systems report nothing, and the kernel drops events if
    there are too many. Whenever something other than a Python file changes, the search for folders
    is repeated.

    Args:
        folders: Returns the folders to watch now.
        notice: Called from the event loop.
        is_named: Returns whether a DAG file names this path as a data file.
    """
    if sys.platform != "linux":
        return
    from asyncinotify import Event, InitFlags, Inotify, Mask

    written = Mask.CLOSE_WRITE | Mask.ATTRIB
    named = Mask.MOVED_FROM | Mask.MOVED_TO | Mask.CREATE | Mask.DELETE
    own = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.ONLYDIR

    def is_folder(event: Event) -> bool:
        """Return whether an event may mean that there are new folders.

        The kernel does not report a link to a folder as a folder.
        """
        is_one = event.name is None or bool(event.mask & Mask.ISDIR)
        return is_one or (not event.mask & written and _may_be_link(event.path))

    def is_source(event: Event) -> bool:
        """Return whether an event concerns DAGs. Data files that are merely written do not."""
        name = "" if event.name is None else event.name.name
        if name.endswith(".py") or name in (IGNORE_FILE, TABLE_FILE):
            return True
        return event.path is not None and is_named(str(event.path))

    try:
        inotify = Inotify(InitFlags.CLOEXEC | InitFlags.NONBLOCK, sync_timeout=0)
    except OSError as exc:  # all inotify instances of this user are in use
        _logger.warning("changes of DAG files are noticed by the sweep alone: %s", exc)
        return
    with inotify as kernel:
        has_new_folders = True
        while True:
            if has_new_folders:
                for folder in await folders():
                    try:
                        kernel.add_watch(folder, written | named | own)  # repeating it is harmless
                    except OSError as exc:
                        _logger.info("changes in %s are noticed late: %s", folder, exc)
            await anyio.wait_readable(kernel.fd)
            has_new_folders = has_new_sources = False
            while (event := kernel.sync_get()) is not None:
                has_new_folders = has_new_folders or is_folder(event)
                has_new_sources = has_new_sources or is_source(event)
            if has_new_folders or has_new_sources:
                notice()


def _may_be_link(path: Path | None) -> bool:
    """Return whether a path is a link, or no longer exists and may have been a link."""
    return path is None or path.is_symlink() or not path.exists()
