"""The journal: the changes of each batch in compact form.

The journal row of a batch contains its changes without large and secret values. The body of the row
is one byte for the format, followed by msgpack, compressed if that is worthwhile. A blob is
replaced by its size and CRC-32. For an encrypted blob, these are the size and CRC-32 of its
envelope. Failures are small and useful for analysis, so they are stored in full.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Column, LargeBinary

from aioflow.errors import BatchRefused
from aioflow.model.batch import Batch
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.states import TaskState
from aioflow.store import tables
from aioflow.store.changes import KINDS, Changes, Kind, Parameters

__all__ = (
    "Digest",
    "Entry",
    "Moved",
    "decode",
    "digest",
    "encode",
    "entry_of",
    "moved_by",
    "steps_of",
    "unpacked",
)

Digest: TypeAlias = tuple[int, int]
"""Size in bytes and CRC-32 of a blob."""

_PLAIN = b"\x01"
_DEFLATED = b"\x02"
_WORTH_DEFLATING = 1024  # bytes

_encoder = msgspec.msgpack.Encoder()


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A decoded journal body.

    Attributes:
        steps: Intermediate task states, see ``Batch.steps``.
        changes: Parameters of the written rows, by the name of their kind. Blobs are replaced by
            digests.
    """

    steps: list[tuple[TaskNo, TaskState]]
    changes: dict[str, Sequence[Sequence[Any]]]


class _Steps(msgspec.Struct, frozen=True, array_like=True):
    """Only the steps of an ``Entry``. Its changes, which are much larger, are not decoded."""

    steps: list[tuple[TaskNo, int]]


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a batch that the live stream shows.

    Attributes:
        tables: Names of the tables with changed rows.
        runs: New and changed runs.
        tasks: The last state of each task that changed state.
        dags: New, changed and deleted DAGs.
        triggers: Number of changes to the triggers of tasks.
    """

    tables: frozenset[str]
    runs: frozenset[RunNo]
    tasks: dict[TaskNo, TaskState]
    dags: frozenset[str]
    triggers: int


_decoder = msgspec.msgpack.Decoder(Entry)
_steps_decoder = msgspec.msgpack.Decoder(_Steps)


def digest(blob: bytes) -> Digest:
    """Return the digest that replaces a blob."""
    return len(blob), zlib.crc32(blob)


def encode(batch: Batch, changes: Changes) -> bytes:
    """Return the body of the journal row of a batch.

    Raises:
        BatchRefused: If the batch contains a text or number that no database can store.
    """
    journaled = {kind.name: _shortened(kind, rows) for kind, rows in changes if kind.is_journaled}
    entry = Entry(batch.steps, journaled)
    try:
        packed = _encoder.encode(entry)
    except (TypeError, ValueError, OverflowError) as exc:
        raise BatchRefused(f"a value cannot be stored: {exc}") from exc
    if len(packed) < _WORTH_DEFLATING:
        return _PLAIN + packed
    return _DEFLATED + zlib.compress(packed, level=1)


def decode(body: bytes) -> Entry:
    """Decode a body.

    Raises:
        ValueError: If the body is damaged or has an unknown format.
    """
    return entry_of(unpacked(body))


def unpacked(body: bytes) -> bytes:
    """Return a body decompressed.

    Decoding the result takes many times its memory.

    Raises:
        ValueError: See ``decode``.
    """
    form, packed = body[:1], body[1:]
    if form not in {_PLAIN, _DEFLATED}:
        raise ValueError(f"journal format {form.hex()} is unknown")
    try:
        return packed if form == _PLAIN else zlib.decompress(packed)
    except zlib.error as exc:
        raise ValueError(f"the journal row is damaged: {exc}") from exc


def entry_of(packed: bytes) -> Entry:
    """Decode a decompressed body.

    Raises:
        ValueError: See ``decode``.
    """
    try:
        return _decoder.decode(packed)
    except msgspec.DecodeError as exc:
        raise ValueError(f"the journal row is damaged: {exc}") from exc


def steps_of(packed: bytes) -> list[tuple[TaskNo, int]]:
    """Return the steps in a decompressed body, with states as numbers.

    Raises:
        ValueError: See ``decode``.
    """
    try:
        return _steps_decoder.decode(packed).steps
    except msgspec.DecodeError as exc:
        raise ValueError(f"the journal row is damaged: {exc}") from exc


def moved_by(body: bytes) -> Moved:
    """Return the changes of a journal row that the live stream shows.

    Raises:
        ValueError: See ``decode``.
    """
    entry = decode(body)
    rows = [(_KINDS[name], values) for name, values in entry.changes.items() if name in _KINDS]
    return Moved(
        tables=frozenset(kind.table.name for kind, _ in rows),
        runs=frozenset(
            (*_named_by(rows, tables.run.c.run_no), *_named_by(rows, tables.note.c.run_no))
        ),
        tasks=dict(entry.steps),
        dags=frozenset(_named_by(rows, tables.dag.c.dag_id)),
        triggers=sum(len(of) for kind, of in rows if kind.table is tables.task_trigger),
    )


def _named_by(
    rows: Sequence[tuple[Kind, Sequence[Sequence[Any]]]], key: Column[Any]
) -> Iterator[Any]:
    """Yield the keys of the changed rows of the table that has this key column."""
    for kind, changed in rows:
        if kind.table is key.table:
            place = (*kind.columns, *kind.guards).index(key.name)
            yield from (row[place] for row in changed)


def _shortened(kind: Kind, rows: list[Parameters]) -> Sequence[Any]:
    places = _digested[kind.name]
    if not places:
        return rows
    shortened = []
    for row in rows:
        values = list(row)
        for place in places:
            if values[place] is not None:
                values[place] = digest(values[place])
        shortened.append(values)
    return shortened


def _blobs(kind: Kind) -> tuple[int, ...]:
    return tuple(
        place
        for place, name in enumerate((*kind.columns, *kind.guards))
        if name != "failure" and isinstance(kind.table.c[name].type, LargeBinary)
    )


_KINDS = {kind.name: kind for kind in KINDS}

_digested = {kind.name: _blobs(kind) for kind in KINDS}
