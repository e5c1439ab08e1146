"""Download of stored results for the processes of this machine, each result once.

A process reads results as files. If a file is missing, it asks the daemon for a copy, and reads the
copy after the reply. The daemon looks up the row of the result, and checks the size and checksum of
the copy. Each result is fetched as a whole, even if a process needs only one item of a list. The
reasons are that a result has at most 64 MiB, that the other items are needed next, and that only
the whole result has a checksum.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup, TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.errors import (
    AioflowError,
    ResultDamaged,
    ResultMissing,
    StorageUnavailable,
    StoreUnavailable,
)
from aioflow.model.ids import RunNo, TaskNo
from aioflow.model.rows import ResultRow
from aioflow.results import result_path, result_size
from aioflow.storage.copies import ResultCopies
from aioflow.storage.memory_budget import MemoryBudget
from aioflow.storage.results import ResultKey, ResultStorage, unpack_result
from aioflow.telemetry.log import Logger

__all__ = ("FETCHES", "GIVE_UP_SECONDS", "FindResult", "ResultFetcher")

FETCHES = 8
"""Maximum number of concurrent fetches."""

IN_MEMORY_BYTES = 256 * 1024 * 1024
"""Maximum total size of the results that are being fetched. A single larger one is allowed."""

_IN_MEMORY_TIMES = 2
"""Number of copies of a result in memory during a fetch: as stored, and its content."""

GIVE_UP_SECONDS = 600.0
"""Time without success after which a fetch is given up, and the try that needs the result fails."""

_FIRST_DELAY, _LONGEST_DELAY = 0.25, 15.0  # seconds between two attempts
_SILENCE_US = 10_000_000  # between two log lines about an outage

_log = Logger(__name__)

FindResult: TypeAlias = Callable[[TaskNo], Awaitable[ResultRow | None]]
"""Returns the row of a task's result."""

Reply: TypeAlias = Callable[[AioflowError | None], None]
"""Called with ``None`` once all results are on this machine, or with the first error."""


class _Flight:
    """A fetch in progress that other requests wait for."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.error: AioflowError | None = None


class ResultFetcher:
    """Copies stored results to this machine.

    Args:
        home: The folder of results that are stored in the home.
        find: Looks up rows.
    """

    def __init__(
        self,
        storage: ResultStorage,
        copies: ResultCopies,
        home: Path,
        find: FindResult,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._copies = copies
        self._home = home
        self._find = find
        self._clock = clock
        self._flights: dict[ResultKey, _Flight] = {}
        self._limiter = anyio.Semaphore(FETCHES)
        self._memory = MemoryBudget(IN_MEMORY_BYTES)
        self._group: TaskGroup | None = None
        self._silent_until = 0

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve requests until cancelled."""
        async with anyio.create_task_group() as self._group:
            task_status.started()
            await anyio.sleep_forever()

    def request(self, run_no: RunNo, keys: Collection[ResultKey], reply: Reply) -> None:
        """Copy results of a run, and call ``reply``. Does not block."""
        if self._group is not None:
            self._group.start_soon(self._serve, run_no, keys, reply)

    async def _serve(self, run_no: RunNo, keys: Collection[ResultKey], reply: Reply) -> None:
        error: AioflowError | None = None
        missing = iter([key for key in dict.fromkeys(keys) if self.local_path(key) is None])

        async def copy_each() -> None:
            nonlocal error
            for key in missing:
                try:
                    await self._copy(key, partial(self._row_of_run, run_no))
                except AioflowError as exc:
                    error = error or exc
                if error is not None:
                    return

        async with anyio.create_task_group() as group:
            for _ in range(min(FETCHES, len(keys))):
                group.start_soon(copy_each)
        reply(error)

    def local_path(self, key: ResultKey) -> Path | None:
        """Return the path of a result on this machine; ``None`` if the result is not here."""
        for path in (self._copies.path(key), result_path(self._home, *key)):
            if path.exists():
                return path
        return None

    async def copied(self, run_no: RunNo, key: ResultKey) -> Path:
        """Return the folder with a result of a run.

        Copy the result if needed, however long that takes.

        Raises:
            AioflowError: If the result is missing or damaged, or could not be fetched in time.
        """
        if self.local_path(key) is None:
            await self._copy(key, partial(self._row_of_run, run_no))
        found = self.local_path(key)
        if found is None:
            raise StorageUnavailable("the copy was evicted at once; see results.cache_bytes")
        return found.parent.parent

    async def path(self, row: ResultRow) -> Path:
        """Return the path of a result on this machine.

        If needed, make one attempt to copy the result.

        Raises:
            ResultMissing: If the result is not stored.
            ResultDamaged: If the result differs from what was stored.
            StorageUnavailable: If the result cannot be fetched now.
        """
        key = (row.task_no, row.start_no)
        found = self.local_path(key)
        if found is None:
            async with self._limiter:
                await self._fetch(row)
            found = self._copies.path(key)
        return found

    async def _row_of_run(self, run_no: RunNo, key: ResultKey) -> ResultRow:
        row = await self._find(key[0])
        if row is None or row.run_no != run_no or row.start_no != key[1] or row.body is not None:
            raise ResultMissing(*key)
        return row

    async def _copy(
        self, key: ResultKey, find: Callable[[ResultKey], Awaitable[ResultRow]]
    ) -> None:
        """Copy a result, or wait until another request has copied it."""
        flight = self._flights.get(key)
        if flight is not None:
            await flight.ended.wait()
            if flight.error is not None:
                raise flight.error
            return
        flight = self._flights[key] = _Flight()
        try:
            await self._patiently(key, find)
        except AioflowError as exc:
            flight.error = exc
            raise
        finally:
            del self._flights[key]
            flight.ended.set()

    async def _patiently(
        self, key: ResultKey, find: Callable[[ResultKey], Awaitable[ResultRow]]
    ) -> None:
        delay, since = _FIRST_DELAY, self._clock.monotonic_us()
        while True:
            try:
                async with self._limiter:
                    await self._fetch(await find(key))
            except (StorageUnavailable, StoreUnavailable) as exc:
                waited = (self._clock.monotonic_us() - since) / 1e6
                if waited + delay > GIVE_UP_SECONDS:
                    raise
                self._note_outage(exc)
            else:
                return
            await self._clock.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _fetch(self, row: ResultRow) -> None:
        key, size = (row.task_no, row.start_no), result_size(row.size, row.width)
        async with self._memory.held(_IN_MEMORY_TIMES * size):
            await self._fetch_whole(key, size)

    async def _fetch_whole(self, key: ResultKey, size: int) -> None:
        data = await self._storage.get(key)
        try:
            content = await in_thread(_checked, key, data, size)
            del data
            await self._copies.write(key, content)
        except ResultDamaged as exc:
            _log.error("a stored result is damaged", error=str(exc))
            raise
        except OSError as exc:
            raise StorageUnavailable(f"the copy cannot be written: {exc}") from exc

    def _note_outage(self, exc: Exception) -> None:
        now = self._clock.monotonic_us()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE_US
            _log.warning("stored results cannot be fetched, retrying", error=str(exc))


def _checked(key: ResultKey, data: bytes, size: int) -> bytes:
    content = unpack_result(key, data)
    if len(content) != size:
        raise ResultDamaged(*key, why=f"it has {len(content):,} bytes instead of {size:,}")
    return content
