"""The home folder of a node: its creation, and checks that other users cannot write to it."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from aioflow.errors import HomeUnusable, SettingsError
from aioflow.filesystem import find_writable, how_to_mend, make_folder
from aioflow.settings import FILE_NAME, Settings

__all__ = ("check_writers", "close_off", "make_home")

_FOLDERS = ("run", "code", "results", "logs")
_DATABASE_FILES = ("", "-wal", "-shm")
_SQLITE = "sqlite:///"


def make_home(home: Path) -> None:
    """Create the missing folders of a home, accessible only to its owner.

    Existing ones are not changed.

    Raises:
        HomeUnusable: If a folder cannot be created.
    """
    for folder in (home, *(home / name for name in _FOLDERS)):
        try:
            make_folder(folder)
        except OSError as exc:
            raise HomeUnusable(str(folder), exc.strerror or type(exc).__name__) from exc


def close_off() -> None:
    """Disable core dumps, so that none contains a secret."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def check_writers(settings: Settings, dag_files: Iterable[Path]) -> None:
    """Reject a home or a DAG folder through which other users could run code as this daemon.

    Args:
        dag_files: Files and folders in the DAG folders that may be loaded.

    Raises:
        SettingsError: If every user can write any of them, a parent folder, or the target of a
            link. The message names the path and the command that fixes it.
    """
    for folders, paths in (
        ((settings.home,), _trusted(settings)),
        (settings.dags, (*settings.dags, *dag_files)),
    ):
        if found := find_writable(paths):
            raise SettingsError(f"{how_to_mend(found, folders)}; or name another folder")


def _trusted(settings: Settings) -> Iterator[Path]:
    """Yield the paths of a home whose content is trusted."""
    home = settings.home
    yield from (home, *(home / name for name in _FOLDERS))
    yield from (home / FILE_NAME, settings.key_file, settings.token_file)
    if settings.db.startswith(_SQLITE):
        database = settings.db.removeprefix(_SQLITE).partition("?")[0]
        yield from (Path(f"{database}{suffix}") for suffix in _DATABASE_FILES)
    yield from _reachable(settings.code_folder)


def _reachable(folder: Path) -> Iterator[Path]:
    """Yield the content of a folder, unless its mode keeps other users out anyway."""
    try:
        is_open = folder.stat().st_mode & stat.S_IXOTH
    except OSError:
        return
    if is_open:
        for place, folders, files in os.walk(folder):
            yield from (Path(place, name) for name in (*folders, *files))
