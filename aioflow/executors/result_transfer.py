"""The daemon's end of the transfer of large results, see ``worker.query.result_transfer``."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import msgspec

from aioflow._threads import in_thread
from aioflow.filesystem import make_folder, require_space
from aioflow.protocol.reports import Query
from aioflow.results import RESULT_LIMIT, result_path
from aioflow.worker.query.result_transfer import (
    FETCH_QUERY,
    PIECE_BYTES,
    ResultPiece,
    ResultWanted,
)

__all__ = ("answer_result_query",)

_OVERHEAD = 2
"""An indexed file is at most this many times as large as the items in it."""


async def answer_result_query(folder: Path, query: Query, worker_no: int) -> tuple[bytes, str]:
    """Return the body of the reply, and an error if there is none.

    Args:
        folder: Folder of the daemon's results.
        worker_no: The worker that asks, whose unfinished files are its own.
    """
    try:
        if query.kind == FETCH_QUERY:
            wanted = msgspec.msgpack.decode(query.body, type=ResultWanted)
            return await in_thread(partial(_read, folder, wanted)), ""
        piece = msgspec.msgpack.decode(query.body, type=ResultPiece)
        await in_thread(partial(_write, folder, piece, worker_no))
    except (OSError, ValueError, msgspec.DecodeError) as exc:
        return b"", str(exc)
    return b"", ""


def _read(folder: Path, wanted: ResultWanted) -> bytes:
    with result_path(folder, wanted.task_no, wanted.start_no).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = os.pread(file.fileno(), PIECE_BYTES, wanted.offset)
    piece = ResultPiece(wanted.task_no, wanted.start_no, wanted.offset, size, data)
    return msgspec.msgpack.encode(piece)


def _write(folder: Path, piece: ResultPiece, worker_no: int) -> None:
    """Write a piece. The last one makes the whole result durable, and visible under its name."""
    if not piece.offset + len(piece.data) <= piece.size <= _OVERHEAD * RESULT_LIMIT:
        raise ValueError(f"a result of {piece.size} bytes is too large, or a piece does not fit")
    path = result_path(folder, piece.task_no, piece.start_no)
    part = path.with_name(f"{path.name}.{os.getpid()}-{worker_no}.part")
    make_folder(path.parent)
    if piece.offset == 0:
        part.unlink(missing_ok=True)  # of an attempt that failed
        require_space(path.parent, piece.size)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        if os.fstat(descriptor).st_size != piece.offset:
            raise ValueError("a piece of the result is missing")
        file.seek(piece.offset)
        file.write(piece.data)
        if piece.offset + len(piece.data) < piece.size:
            return
        file.flush()
        os.fsync(descriptor)
    part.rename(path)
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
