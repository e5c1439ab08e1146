"""Notes on runs and tasks: shown to users, written and removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import msgspec

from aioflow.api.paging import Page, decode_cursor, page_of
from aioflow.api.queries import RunReader
from aioflow.api.schemas import NoteView, iso
from aioflow.api.task_instances import RunLayout, TaskLocation
from aioflow.errors import RequestError
from aioflow.model.notes import NO_TASK, OF_WHOLE_RUN, NoteRow, note_misfit
from aioflow.protocol.requests import Request, SetNote

__all__ = ("NoteRemoved", "Notes", "note_view")


class NoteRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """The response to the removal of a note, even if there was no note."""

    run_id: str
    task_id: str | None
    removed: bool = True


class Notes:
    """Lists the notes of runs, and changes them through the engine.

    Secrets that the daemon knows are masked when a note is written, as in the output of tasks.

    Args:
        send: Sends a request to the engine.
    """

    def __init__(self, reader: RunReader, send: Callable[[Request], Awaitable[object]]) -> None:
        self._reader = reader
        self._send = send

    async def page(self, run_id: str, *, limit: int, cursor: str | None = None) -> Page[NoteView]:
        """Return a page of the notes on a run and on its tasks. The note on the run is the first.

        Raises:
            UnknownRun: If there is no such run.
        """
        run = await self._reader.run(run_id)
        after = NO_TASK
        if cursor is not None:
            task_index, map_index = decode_cursor("notes", cursor, (int, int))
            after = int(task_index), int(map_index)
        rows = await self._reader.store.list_notes(run.run_no, after=after, limit=limit + 1)
        page = page_of("notes", rows, limit, lambda row: (row.task_index, row.map_index))
        if not page.items:
            return Page([], None)
        layout = await self._reader.layout(run)
        # A damaged row may name a task that the DAG does not have.
        known = [row for row in page.items if row.task_index < len(layout.spec.tasks)]
        return Page([note_view(run_id, layout, row) for row in known], page.next)

    async def set(
        self, run_id: str, text: str, *, task_id: str | None = None, map_index: int = -1
    ) -> NoteView:
        """Write the note on a run or task, replacing an earlier note.

        Args:
            map_index: The index of a child. In a loop, the index of the iteration, or -1 for the
                last one. Otherwise -1 means the task as a whole.

        Raises:
            UnknownRun: If there is no such run.
            UnknownTask: If the run has no such task, or the task no such child.
            RequestError: If the text is empty, too long, or contains control characters.
        """
        # A text that is too long is not searched for secrets. The note is checked again after
        # masking.
        plain = text.replace("\r\n", "\n").strip()
        if misfit := note_misfit(plain):
            raise RequestError(misfit)
        masked = self._reader.public_fields.masked_text(plain)
        request, layout = await self._request(run_id, task_id, map_index, masked)
        return note_view(run_id, layout, cast(NoteRow, await self._send(request)))

    async def remove(
        self, run_id: str, *, task_id: str | None = None, map_index: int = -1
    ) -> NoteRemoved:
        """Remove the note on a run or task, if there is one. For the arguments see ``set``.

        Raises:
            UnknownRun, UnknownTask: See ``set``.
        """
        request, _ = await self._request(run_id, task_id, map_index, None)
        await self._send(request)
        return NoteRemoved(run_id=run_id, task_id=task_id)

    async def _request(
        self, run_id: str, task_id: str | None, map_index: int, text: str | None
    ) -> tuple[SetNote, RunLayout]:
        run = await self._reader.run(run_id)
        layout = await self._reader.layout(run)
        if task_id is None:
            return SetNote(run_id=run_id, text=text), layout
        location = await self._reader.locate(run, task_id, map_index)
        request = SetNote(
            run_id=run_id,
            task=_name(task_id, layout, location),
            task_index=location.task_index,
            map_index=location.map_index,
            text=text,
        )
        return request, layout


def _name(task_id: str, layout: RunLayout, location: TaskLocation) -> str:
    if location.map_index < 0:
        return task_id
    if layout.is_in_loop(location.task_index):
        return f"{task_id}, round {location.map_index}"
    return f"{task_id}[{location.map_index}]"


def note_view(run_id: str, layout: RunLayout, row: NoteRow) -> NoteView:
    """Return the JSON form of a note."""
    if row.task_index == OF_WHOLE_RUN:
        task_id, map_index, round_number = None, -1, 0
    else:
        task_id = layout.spec.tasks[row.task_index].task_id
        location = TaskLocation(row.task_index, row.map_index, -1)
        map_index, round_number = layout.shown(location)
    return NoteView(
        run_id=run_id,
        task_id=task_id,
        map_index=map_index,
        round=round_number,
        text=row.text,
        author=row.author,
        at=iso(row.at) or "",
    )
