"""Transfer of large results in chunks, for a worker on a machine without the daemon's home.

A result that the worker writes is sent to the daemon before the try reports its end. Each chunk is
sent once the daemon has memory for it. A result that the worker needs is fetched before the try
reads it, and stays in the folder for later tries on the machine.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from aioflow.errors import TaskError
from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.protocol.commands import Reply, StartTask
from aioflow.results import result_path
from aioflow.worker.query.messages import ResultsPage

__all__ = (
    "FETCH_QUERY",
    "PIECE_BYTES",
    "RESERVE_QUERY",
    "STORE_QUERY",
    "UNRESERVED_BYTES",
    "ResultPiece",
    "ResultTransfer",
    "ResultWanted",
)

FETCH_QUERY = "fetch_result"
"""The kind of the query for a chunk of a result. Its body is a ``ResultWanted``."""

STORE_QUERY = "store_result"
"""The kind of the query that sends a chunk of a result. Its body is a ``ResultPiece``."""

RESERVE_QUERY = "reserve_result"
"""The kind of the query that is answered once the daemon has memory for a chunk.

Its body is the number of bytes of the next ``STORE_QUERY`` of the worker.
"""

PIECE_BYTES = 4 * 1024 * 1024
UNRESERVED_BYTES = 64 * 1024
"""Maximum size of a chunk that is sent without a reservation."""

_FOLDER_BYTES = 4 * 1024 * 1024 * 1024
"""Size limit of the folder. Beyond it, the least recently used files are deleted."""

_MEASURED_PARTS = 16
"""The folder is measured again when it has grown by 1/``_MEASURED_PARTS`` of its size limit."""

Ask: TypeAlias = Callable[[RunNo, str, bytes], Reply]


class ResultWanted(msgspec.Struct, frozen=True, array_like=True):
    """A request for a chunk of the result of a start. The reply is a ``ResultPiece``."""

    task_no: TaskNo
    start_no: StartNo
    offset: int


class ResultPiece(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of the result of a start.

    Attributes:
        size: Size of the whole result, in bytes.
    """

    task_no: TaskNo
    start_no: StartNo
    offset: int
    size: int
    data: bytes


class ResultTransfer:
    """The transferred results of one worker, in a folder of its machine.

    Args:
        ask: Sends a query to the daemon and waits for the reply.
    """

    def __init__(self, folder: Path, ask: Ask) -> None:
        self._folder = folder
        self._ask = ask
        self._needed: set[Path] = set()
        self._spare_bytes = 0  # bytes to write before the folder is measured again

    def write(self, write: Callable[[], None], start: StartTask) -> None:
        """Write the result of a try with ``write``, and send it to the daemon.

        Raises:
            OSError: If the result cannot be written here, or cannot be stored by the daemon. The
                call may be repeated.
        """
        write()
        path = result_path(self._folder, start.task_no, start.start_no)
        size = path.stat().st_size
        with path.open("rb") as file:
            for offset in range(0, size, PIECE_BYTES):
                piece = ResultPiece(
                    start.task_no, start.start_no, offset, size, file.read(PIECE_BYTES)
                )
                self._send(start.run_no, piece)
        self._limit_folder(path)

    def _send(self, run_no: RunNo, piece: ResultPiece) -> None:
        body = msgspec.msgpack.encode(piece)
        queries = [(STORE_QUERY, body)]
        if len(body) > UNRESERVED_BYTES:
            queries.insert(0, (RESERVE_QUERY, msgspec.msgpack.encode(len(body))))
        for kind, text in queries:
            got = self._ask(run_no, kind, text)
            if got.error:
                raise OSError(f"the daemon cannot store it: {got.error}")

    def fetch_sources(self, start: StartTask) -> None:
        """Fetch the lists from which a child of a mapped task takes its items."""
        for _, task_no, start_no in start.sources:
            self.fetch(start.run_no, task_no, start_no)

    def fetch_page(self, run_no: RunNo, page: ResultsPage) -> ResultsPage:
        """Fetch the large results of a page. Return the page.

        All of them are needed next, so none is deleted to make space for another, however large
        they are.
        """
        wanted = [
            (task_no, start_no)
            for _, task_no, start_no, body in page.items
            if body is None and start_no
        ]
        self._needed = {result_path(self._folder, *key) for key in wanted}
        for key in wanted:
            self.fetch(run_no, *key)
        return page

    def fetch(self, run_no: RunNo, task_no: TaskNo, start_no: StartNo) -> None:
        """Fetch the result of a start, unless it is in the folder.

        Raises:
            TaskError: If the daemon does not have the result, or it cannot be written here.
        """
        path = result_path(self._folder, task_no, start_no)
        try:
            os.utime(path)  # mark the file as recently used
        except OSError:
            try:
                self._fetch(run_no, task_no, start_no, path)
            except OSError as exc:
                raise TaskError(f"a result cannot be stored on this machine: {exc}") from exc

    def _fetch(self, run_no: RunNo, task_no: TaskNo, start_no: StartNo, path: Path) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix=".fetched-", dir=path.parent)
        try:
            with os.fdopen(number, "wb") as file:
                size = 1
                while file.tell() < size:
                    wanted = ResultWanted(task_no, start_no, file.tell())
                    got = self._ask(run_no, FETCH_QUERY, msgspec.msgpack.encode(wanted))
                    if got.error:
                        raise TaskError(f"a result cannot be fetched: {got.error}")
                    piece = msgspec.msgpack.decode(got.body, type=ResultPiece)
                    if not piece.data:
                        raise TaskError("a result cannot be fetched: it has become shorter")
                    size = piece.size
                    file.write(piece.data)
            Path(name).rename(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        self._limit_folder(path)

    def _limit_folder(self, newest: Path) -> None:
        """Delete the least recently used files while the folder is too large.

        The folder is measured again after a part of its limit was written. Other workers of the
        machine write into it, too, so it may exceed the limit by that part for each of them.
        """
        self._spare_bytes -= newest.stat().st_size
        if self._spare_bytes > 0:
            return
        files = []
        for path in self._folder.glob("*/*"):
            with contextlib.suppress(OSError):  # deleted by another worker
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        excess = sum(size for _, size, _ in files) - _FOLDER_BYTES
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            if path != newest and path not in self._needed:
                path.unlink(missing_ok=True)
                excess -= size
        self._spare_bytes = _FOLDER_BYTES // _MEASURED_PARTS
