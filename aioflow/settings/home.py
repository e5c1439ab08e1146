"""The home folder of a node: its creation, its identity, and checks of who can write to it.

The identity is unique and shows which databases belong to the home. It is stored in a file of the
home, which the first start creates, and in the databases of the home.
"""

from __future__ import annotations

import os
import resource
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aioflow.errors import HomeUnusable, SettingsError
from aioflow.filesystem import find_writable, how_to_mend, make_folder
from aioflow.settings import FILE_NAME, Settings

__all__ = (
    "check_writers",
    "disable_core_dumps",
    "find_identity",
    "identity_file",
    "make_home",
    "new_identity",
    "own_identity",
    "write_identity",
)

_FOLDERS = ("run", "code", "results", "logs")
_DATABASE_FILES = ("", "-wal", "-shm")
_SQLITE = "sqlite:///"


def make_home(home: Path) -> None:
    """Create the missing folders of a home, accessible only to its owner.

    Existing folders are not changed.

    Raises:
        HomeUnusable: If a folder cannot be created.
    """
    for folder in (home, *(home / name for name in _FOLDERS)):
        try:
            make_folder(folder)
        except OSError as exc:
            raise HomeUnusable(str(folder), exc.strerror or type(exc).__name__) from exc


def disable_core_dumps() -> None:
    """Disable core dumps of this process, because they could contain secrets."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def check_writers(settings: Settings, dag_files: Iterable[Path]) -> None:
    """Reject a home or a DAG folder through which other users could run code as this daemon.

    Args:
        dag_files: Files and folders in the DAG folders that may be loaded.

    Raises:
        SettingsError: If every user can write one of these paths, a parent folder, or the target
            of a link. The message names the path and the command that fixes it.
    """
    for folders, paths in (
        ((settings.home,), _trusted(settings)),
        (settings.dags, (*settings.dags, *dag_files)),
    ):
        if found := find_writable(paths):
            raise SettingsError(f"{how_to_mend(found, folders)}; or name another folder")


def _trusted(settings: Settings) -> Iterator[Path]:
    """Yield the paths in a home whose content the daemon trusts."""
    home = settings.home
    yield from (home, *(home / name for name in (*_FOLDERS, "cache")))
    yield from (home / FILE_NAME, settings.key_file, settings.token_file)
    if settings.db.startswith(_SQLITE):
        database = settings.db.removeprefix(_SQLITE).partition("?")[0]
        yield from (Path(f"{database}{suffix}") for suffix in _DATABASE_FILES)
    yield from _writable_content(settings.code_folder)


def _writable_content(folder: Path) -> Iterator[Path]:
    """Yield the content of a folder, unless the folder's mode already keeps other users out."""
    try:
        is_open = folder.stat().st_mode & stat.S_IXOTH
    except OSError:
        return
    if is_open:
        for place, folders, files in os.walk(folder):
            yield from (Path(place, name) for name in (*folders, *files))


def identity_file(home: Path) -> Path:
    """Return the path of the file with the identity of a home."""
    return home / "identity"


def find_identity(home: Path) -> str | None:
    """Return the identity of a home; ``None`` if it has none yet.

    Raises:
        HomeUnusable: If its file cannot be read.
    """
    file = identity_file(home)
    with _file_errors_reported(file):
        try:
            return file.read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None


def write_identity(home: Path, identity: str) -> None:
    """Set the identity of a home, atomically.

    Raises:
        HomeUnusable: If its file cannot be written.
    """
    file = identity_file(home)
    new = file.with_name(f"{file.name}.new")
    with _file_errors_reported(file):
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as text:
            text.write(f"{identity}\n")
        new.replace(file)


def new_identity() -> str:
    """Return a new unique identity."""
    return secrets.token_hex(16)


def own_identity(home: Path) -> str:
    """Return the identity of a home. If the home has none yet, create and store one.

    Raises:
        HomeUnusable: If the file of the identity cannot be read or written.
    """
    identity = find_identity(home)
    if identity is None:
        identity = new_identity()
        write_identity(home, identity)
    return identity


@contextmanager
def _file_errors_reported(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeError) as exc:
        reason = getattr(exc, "strerror", None) or type(exc).__name__
        raise HomeUnusable(str(file), reason, "the file {} cannot be used") from exc
