"""The journal row of a batch: what changed, without what is large or secret.

A body is one byte that tells the format, then msgpack, compressed where that pays. Of a
blob only its stored size and CRC-32 are kept, of sealed ones of their envelope; failures,
which are small and tell a story, are kept whole.
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

__all__ = ("Digest", "Entry", "decode", "digest", "encode", "entry_of", "steps_of", "unpacked")

Digest: TypeAlias = tuple[int, int]
"""Size in bytes and CRC-32 of a blob."""

_PLAIN = b"\x01"
_DEFLATED = b"\x02"
_WORTH_DEFLATING = 1024  # bytes

_encoder = msgspec.msgpack.Encoder()


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A journal body, read.

    Attributes:
        steps: The ways between, see ``Batch.steps``.
        changes: By the name of their kind; each row as it was bound, blobs as digests.
    """

    steps: list[tuple[TaskNo, TaskState]]
    changes: dict[str, Sequence[Sequence[Any]]]


class _Steps(msgspec.Struct, frozen=True, array_like=True):
    """An ``Entry`` of which the rest, which is far more, is passed over."""

    steps: list[tuple[TaskNo, int]]


_decoder = msgspec.msgpack.Decoder(Entry)
_steps_decoder = msgspec.msgpack.Decoder(_Steps)


def digest(blob: bytes) -> Digest:
    """Return what stands for a blob."""
    return len(blob), zlib.crc32(blob)


def encode(batch: Batch, changes: Changes) -> bytes:
    """Return the body of the journal row of a batch.

    Raises:
        BatchRefused: If it holds a text or number that no database could store.
    """
    entry = Entry(batch.steps, {kind.name: _shortened(kind, rows) for kind, rows in changes})
    try:
        packed = _encoder.encode(entry)
    except (TypeError, ValueError, OverflowError) as exc:
        raise BatchRefused(f"a value cannot be stored: {exc}") from exc
    if len(packed) < _WORTH_DEFLATING:
        return _PLAIN + packed
    return _DEFLATED + zlib.compress(packed, level=1)


def decode(body: bytes) -> Entry:
    """Return what a body says.

    Raises:
        ValueError: If it is damaged or of a format this program does not know.
    """
    return entry_of(unpacked(body))


def unpacked(body: bytes) -> bytes:
    """Return a body as long as it really is: what it says takes many times that.

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
    """Return what an unpacked body says.

    Raises:
        ValueError: See ``decode``.
    """
    try:
        return _decoder.decode(packed)
    except msgspec.DecodeError as exc:
        raise ValueError(f"the journal row is damaged: {exc}") from exc


def steps_of(packed: bytes) -> list[tuple[TaskNo, int]]:
    """Return the steps that an unpacked body tells of, states as numbers.

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
