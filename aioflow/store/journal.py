"""The journal: the changes of each batch in compact form.

The journal row of a batch contains its changes without large and secret values. The body of the row
is one byte for the format, followed by msgpack, compressed if that is worthwhile. A blob is
replaced by its size and CRC-32, and an encrypted blob by those of its envelope. Failures are small
and useful for analysis, so they are stored in full.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import LargeBinary

from aioflow.errors import BatchRefused
from aioflow.model.batch import Batch
from aioflow.model.ids import TaskNo
from aioflow.model.states import TaskState
from aioflow.store.changes import KINDS, Changes, Kind, Parameters

__all__ = (
    "Digest",
    "Entry",
    "decode",
    "digest",
    "encode",
    "entry_of",
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
    """Return a body decompressed. Decoding the result takes many times its memory.

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


_digested = {kind.name: _blobs(kind) for kind in KINDS}
