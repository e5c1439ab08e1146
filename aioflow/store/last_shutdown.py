"""How the last life of a database ended, as far as its home and its log tell."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from aioflow.errors import StoreUnavailable
from aioflow.filesystem import make_folder, write_file
from aioflow.store.wal_file import log_path

__all__ = ("LastEnd",)

_OPEN = "open"


class LastEnd:
    """What was found at the opening; and the note of this life, for the next one.

    Attributes:
        was_clean: The database was closed, and all of its log copied back.
        sync_failed: What the disk said when the life before ended because a sync failed.
    """

    def __init__(self, path: Path, home: Path | None) -> None:
        self._log = log_path(path)
        self._note = None if home is None else home / "run" / "database"
        said = ""
        if self._note is not None:
            with contextlib.suppress(FileNotFoundError), _told(self._note):
                said = self._note.read_text(encoding="utf-8", errors="replace")
        self.was_clean = not said and not self._has_log()
        self.sync_failed = "" if said == _OPEN else said

    def begin(self) -> None:
        """Note that the database is open. It stays noted if the process is killed.

        Raises:
            StoreUnavailable: If the home cannot be written.
        """
        if self._note is not None:
            with _told(self._note):
                make_folder(self._note.parent)
                write_file(self._note, _OPEN.encode())

    def fail(self, message: str) -> None:
        """Note why the process is about to end; where even that fails, the log tells enough."""
        if self._note is not None:
            with contextlib.suppress(OSError):
                write_file(self._note, message.encode())

    def close(self) -> None:
        """Note that the database was closed, if all of its log was copied back."""
        if self._note is not None and not self._has_log():
            with contextlib.suppress(OSError):  # the next start checks the file, no more
                self._note.unlink(missing_ok=True)

    def _has_log(self) -> bool:
        return self._log.exists() and self._log.stat().st_size > 0


@contextlib.contextmanager
def _told(note: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise StoreUnavailable(f"cannot use {note}: {exc.strerror}") from exc
