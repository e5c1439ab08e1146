"""How the previous use of a database ended, according to its home and its log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from aioflow.errors import StoreUnavailable
from aioflow.filesystem import make_folder, write_file
from aioflow.store.wal_file import log_path

__all__ = ("LastShutdown",)

_OPEN = "open"


class LastShutdown:
    """The state found when the database was opened, and the note for the next opening.

    Attributes:
        was_clean: The database was closed, and its whole log was copied back.
        sync_failed: Message of the sync failure that ended the previous process; else empty.
    """

    def __init__(self, path: Path, home: Path | None) -> None:
        self._log = log_path(path)
        self._note = None if home is None else home / "run" / "database"
        said = ""
        if self._note is not None:
            with contextlib.suppress(FileNotFoundError), _translated_errors(self._note):
                said = self._note.read_text(encoding="utf-8", errors="replace")
        self.was_clean = not said and not self._has_log()
        self.sync_failed = "" if said == _OPEN else said

    def begin(self) -> None:
        """Note that the database is open. The note remains if the process is killed.

        Raises:
            StoreUnavailable: If the home cannot be written.
        """
        if self._note is not None:
            with _translated_errors(self._note):
                make_folder(self._note.parent)
                write_file(self._note, _OPEN.encode())

    def fail(self, message: str) -> None:
        """Note why the process is about to exit.

        If the note cannot be written, the log suffices.
        """
        if self._note is not None:
            with contextlib.suppress(OSError):
                write_file(self._note, message.encode())

    def close(self) -> None:
        """Note that the database was closed, if its whole log was copied back."""
        if self._note is not None and not self._has_log():
            with contextlib.suppress(OSError):  # only costs the next start a check of the file
                self._note.unlink(missing_ok=True)

    def _has_log(self) -> bool:
        return self._log.exists() and self._log.stat().st_size > 0


@contextlib.contextmanager
def _translated_errors(note: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise StoreUnavailable(f"cannot use {note}: {exc.strerror}") from exc
