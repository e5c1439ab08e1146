"""Rows and queries of notes on runs and tasks."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Select, and_, or_, select

from aioflow.crypto import Vault
from aioflow.model.batch import Batch
from aioflow.model.ids import RunNo
from aioflow.model.notes import NO_TASK, OF_WHOLE_RUN, NoteRow
from aioflow.store import rows, tables
from aioflow.store.query_protocol import QueryInterface
from aioflow.store.selects import literal, number

__all__ = ("NoteReader", "note_row", "removed_notes", "written_notes")

_note = tables.note


# ── rows of a batch ─────────────────────────────────────────────────────────────────────


def written_notes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the notes that are written or replaced."""
    return [msgspec.structs.astuple(row) for row in batch.notes]


def removed_notes(batch: Batch, vault: Vault) -> list[tuple[Any, ...]]:
    """Return the keys of the notes that are removed."""
    return list(batch.gone_notes)


# ── queries ─────────────────────────────────────────────────────────────────────────────


_ONE = select(_note).where(
    _note.c.run_no == number("run_no"),
    _note.c.task_index == number("task_index"),
    _note.c.map_index == number("map_index"),
)
_OF_RUN = (
    select(_note)
    .where(
        _note.c.run_no == number("run_no"),
        or_(
            _note.c.task_index > number("task_index"),
            and_(
                _note.c.task_index == number("task_index"),
                _note.c.map_index > number("map_index"),
            ),
        ),
    )
    .order_by(_note.c.task_index, _note.c.map_index)
    .limit(number("limit"))
)


@cache
def _of_runs(width: int) -> Select[Any]:
    return select(_note).where(
        _note.c.run_no.in_([number(f"no_{at}") for at in range(width)]),
        _note.c.task_index == literal(OF_WHOLE_RUN),
    )


def note_row(values: rows.Values) -> NoteRow:
    """Return a row of ``note``."""
    run_no, task_index, map_index, at, author, body = values
    return NoteRow(
        run_no=run_no,
        task_index=task_index,
        map_index=map_index,
        at=at,
        author=author,
        body=bytes(body),
    )


class NoteReader(QueryInterface):
    """The part of a store that reads notes."""

    async def find_note(self, run_no: RunNo, task_index: int, map_index: int) -> NoteRow | None:
        """See ``Store``."""
        key = {"run_no": run_no, "task_index": task_index, "map_index": map_index}
        return await self._one(note_row, _ONE, **key)

    async def list_notes(
        self, run_no: RunNo, *, after: tuple[int, int] = NO_TASK, limit: int = 1_000
    ) -> list[NoteRow]:
        """See ``Store``."""
        key = {"task_index": after[0], "map_index": after[1]}
        return await self._all(note_row, _OF_RUN, run_no=run_no, limit=limit, **key)

    async def find_notes_of_runs(self, run_nos: Collection[RunNo]) -> dict[RunNo, NoteRow]:
        """See ``Store``."""
        found = await self._each(note_row, _of_runs, "no", dict.fromkeys(run_nos))
        return {row.run_no: row for row in found}
