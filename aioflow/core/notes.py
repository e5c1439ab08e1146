"""Notes that people write on runs and tasks: set, replace and delete them."""

from __future__ import annotations

from collections.abc import Iterable

from aioflow.core.state.memory import Memory
from aioflow.core.transaction import Transaction
from aioflow.errors import RequestError, UnknownRun
from aioflow.model.notes import NoteKey, NoteRow, note_misfit
from aioflow.model.rows import RunRow
from aioflow.protocol.inputs import Input, RequestReceived
from aioflow.protocol.requests import SetNote

__all__ = ("asks", "current_note", "set_note")


def asks(inputs: Iterable[Input]) -> list[SetNote]:
    """Return the requests to set or delete notes.

    The caller loads the runs and the present notes of these requests before the turn.
    """
    return [
        entry.request
        for entry in inputs
        if isinstance(entry, RequestReceived) and isinstance(entry.request, SetNote)
    ]


def current_note(request: SetNote, memory: Memory) -> NoteRow | None:
    """Return the note that a request replaces or deletes, if there is one."""
    run = _run(request, memory)
    return None if run is None else memory.notes.get(_key(request, run))


def set_note(request: SetNote, tx: Transaction) -> NoteRow | None:
    """Set, replace or delete a note. Return the new note, or ``None`` if there is none any more.

    A run may get a note in any state, even after it has ended.

    Raises:
        UnknownRun: If there is no such run.
        RequestError: If the text is not valid for a note.
    """
    run = _run(request, tx.memory)
    if run is None:
        raise UnknownRun(request.run_id)
    if request.text is not None and (misfit := note_misfit(request.text)):
        raise RequestError(misfit)
    key = _key(request, run)
    before = tx.memory.notes.get(key)
    if request.text is None:
        if before is not None:
            tx.put_note(key, None, run)
        return None
    body = request.text.encode()
    if before is not None and before.body == body:
        return before
    row = NoteRow(
        run_no=run.run_no,
        task_index=request.task_index,
        map_index=request.map_index,
        at=tx.now,
        author="" if tx.actor is None else tx.actor.name,
        body=body,
    )
    tx.put_note(key, row, run)
    return row


def _run(request: SetNote, memory: Memory) -> RunRow | None:
    run = memory.find_run(request.run_id)
    return memory.noted_runs.get(request.run_id) if run is None else run.row


def _key(request: SetNote, run: RunRow) -> NoteKey:
    return run.run_no, request.task_index, request.map_index
