"""The folder of a node: made where it is missing, and closed to others."""

from __future__ import annotations

import resource
import stat
from contextlib import suppress
from pathlib import Path

import structlog

from aioflow.errors import HomeUnusable
from aioflow.settings import FILE_NAME, Settings

__all__ = ("close_off", "make_home")

_log = structlog.get_logger(__name__)


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


def close_off(settings: Settings) -> None:
    """Leave no secret in a core dump, and say where anybody could put code of his own."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    for path in (*settings.dags, settings.home / FILE_NAME):
        with suppress(OSError):
            if path.stat().st_mode & stat.S_IWOTH:
                _log.warning("anybody here can write that, and so run code as us", path=str(path))
