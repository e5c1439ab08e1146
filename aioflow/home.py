"""The folder of a node: made where it is missing, and closed to others."""

from __future__ import annotations

import resource
import shlex
import stat
from contextlib import suppress
from pathlib import Path

from aioflow.errors import HomeUnusable, SettingsError
from aioflow.settings import FILE_NAME, Settings

__all__ = ("check_writers", "close_off", "make_home")


def make_home(home: Path) -> None:
    """Make what is missing of a home, for its owner alone; the rest stays as it is.

    Raises:
        HomeUnusable: If a folder cannot be made.
    """
    for folder in (home, *(home / name for name in ("run", "code", "results", "logs"))):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as exc:
            raise HomeUnusable(str(folder), exc.strerror or type(exc).__name__) from exc


def close_off() -> None:
    """Leave no secret in a core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def check_writers(settings: Settings) -> None:
    """Look whether anybody could have us run code of his own.

    Raises:
        SettingsError: If everybody can write a folder of DAG files, or the file of settings.
    """
    for path in (*settings.dags, settings.home / FILE_NAME):
        with suppress(OSError):  # one that is not there yet is made for us alone
            if path.stat().st_mode & stat.S_IWOTH:
                raise SettingsError(
                    f"anybody here can write {path}, and so run code as us; "
                    f"take that away (chmod o-w {shlex.quote(str(path))}), or name another one"
                )
