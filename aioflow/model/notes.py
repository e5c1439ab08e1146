"""Notes of people on runs and tasks."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from aioflow.model.ids import RunNo
from aioflow.model.timestamps import Timestamp

__all__ = ("NOTE_BYTES", "NO_TASK", "OF_WHOLE_RUN", "NoteKey", "NoteRow", "note_misfit")

NOTE_BYTES = 2048
"""Maximum size of a note, in UTF-8."""

OF_WHOLE_RUN = -1
"""The task index of the note on a run itself."""

NO_TASK = (OF_WHOLE_RUN - 1, -1)
"""Task index and map index that sort before those of every note."""

NoteKey: TypeAlias = tuple[RunNo, int, int]
"""Run number, task index and map index of a note."""


class NoteRow(msgspec.Struct, frozen=True, kw_only=True):
    """The note on a run or on one of its task instances. A new note replaces the previous one.

    Attributes:
        task_index: ``OF_WHOLE_RUN`` for the note on the run.
        map_index: The child; in a loop, the iteration; -1 for the task as a whole.
        at: When it was last written.
        author: Who wrote it last, by the caller's name in the audit log.
        body: The text, in UTF-8.
    """

    run_no: RunNo
    task_index: int
    map_index: int
    at: Timestamp
    author: str
    body: bytes

    @property
    def key(self) -> NoteKey:
        """The key of the row."""
        return self.run_no, self.task_index, self.map_index

    @property
    def text(self) -> str:
        """The text."""
        return self.body.decode("utf-8", "replace")


def note_misfit(text: str) -> str | None:
    """Return why a text is not valid as a note; ``None`` if it is valid."""
    if not text.strip():
        return "a note must not be empty; remove it instead"
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "the note contains a character that UTF-8 does not have"
    if size > NOTE_BYTES:
        return f"a note has at most {NOTE_BYTES:,} bytes; this one has {size:,}"
    if any(not char.isprintable() and char not in "\n\t" for char in text):
        return "a note is plain text, without control characters"
    return None
