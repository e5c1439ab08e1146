"""Upload of the large results of tries, each before the report of its try reaches the engine.

First the result is stored, then the report is passed on, then the engine commits it. So every
committed result is stored, even if a process is killed in between. A start that never commits
leaves an orphaned result.

A try whose result is being stored holds no slot, because the engine knows that its body has
returned. If the storage is unavailable, the upload is retried. After ``GIVE_UP_SECONDS`` the try
fails. While too many results wait, the engine starts no further task, and triggers write no further
result, so that they do not fill the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.errors import AioflowError, ResultNotStored, StorageUnavailable
from aioflow.model.ids import TriggerNo
from aioflow.model.states import Failure
from aioflow.protocol.inputs import BodyReturned, Input
from aioflow.protocol.reports import Failed, Succeeded, TriggerEnded, TriggerFired
from aioflow.results import result_path, result_size
from aioflow.storage.copies import ResultCopies
from aioflow.storage.memory_budget import MemoryBudget
from aioflow.storage.results import ResultKey, ResultStorage, SpoolDamaged, read_spooled
from aioflow.storage.spool_limit import Grant, SpoolLimit
from aioflow.telemetry.log import Logger

__all__ = (
    "GIVE_UP_SECONDS",
    "UPLOADS",
    "ResultUploader",
)

UPLOADS = 8
"""Maximum number of concurrent uploads."""

GIVE_UP_SECONDS = 600.0
"""Time without success after which a result is given up, and its try fails."""

IN_MEMORY_BYTES = 128 * 1024 * 1024
"""Maximum total size of the results being uploaded, held in memory.

A single larger one is allowed.
"""

_FIRST_DELAY, _LONGEST_DELAY = 0.25, 15.0  # seconds between two attempts
_SILENCE_US = 10_000_000  # between two log lines about an outage
_ADMIT_SECONDS = 5.0
"""Interval at which reservations of dead processes are released while others wait."""

_log = Logger(__name__)

ReportSink: TypeAlias = Callable[[Sequence[Input]], None]


class _Upload(msgspec.Struct):
    """A report that waits until its result is stored.

    Attributes:
        size: Size of the result file.
        since_us: When it was reported, in monotonic microseconds.
        followers: Later reports about the same trigger, in order. One of them may have a result
            file, too, because a trigger that was assigned again writes another one under the same
            key.
    """

    report: Succeeded | TriggerFired
    key: ResultKey
    size: int
    since_us: int
    followers: list[TriggerFired | TriggerEnded] = []

    def has_successor(self) -> bool:
        """Return whether the result file now belongs to a later report."""
        return any(
            isinstance(one, TriggerFired) and one.result == self.key for one in self.followers
        )


class ResultUploader:
    """Passes reports of children to the engine.

    A report with a result file waits until it is stored.

    Args:
        storage: Where results are stored.
        spool: The folder in which processes write their results.
        copies: Receives each file once it is stored.
        report: Called with the reports that may enter the inbox.

    Attributes:
        may_store: Whether the storage is known to belong to this database. Until then, each
            attempt counts as failed.
        limit: The results that wait to be stored, and those that triggers may write.
    """

    def __init__(
        self,
        storage: ResultStorage,
        spool: Path,
        copies: ResultCopies,
        report: ReportSink,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._spool = spool
        self._copies = copies
        self._report = report
        self._clock = clock
        self._queue: deque[_Upload] = deque()
        self._queued = anyio.Event()
        self._held: dict[TriggerNo, _Upload] = {}
        self._memory = MemoryBudget(IN_MEMORY_BYTES)
        self._silent_until = 0
        self.limit = SpoolLimit(clock)
        self.may_store = False

    def report(self, inputs: Sequence[Input]) -> None:
        """Pass reports on, in order, except reports that have to wait for their results."""
        passed: list[Input] = []
        for one in inputs:
            kind = type(one)
            if kind is Succeeded or kind is TriggerFired or kind is TriggerEnded:
                self._sort(one, passed)  # type: ignore[arg-type]  # one of the three
            else:
                passed.append(one)
        if passed:
            self._report(passed)

    def _sort(self, one: Succeeded | TriggerFired | TriggerEnded, passed: list[Input]) -> None:
        if isinstance(one, Succeeded):
            if one.body is None and one.size:
                self._hold(one, (one.task_no, one.start_no))
                passed.append(
                    BodyReturned(one.task_no, one.start_no, one.began_at, self.limit.is_full)
                )
                return
        elif (upload := self._held.get(one.trigger_no)) is not None:
            upload.followers.append(one)
            return
        elif isinstance(one, TriggerFired) and one.result is not None:
            self._held[one.trigger_no] = self._hold(one, one.result)
            return
        passed.append(one)

    def _hold(self, report: Succeeded | TriggerFired, key: ResultKey) -> _Upload:
        size = result_size(report.size, report.width)
        upload = _Upload(report, key, size, self._clock.monotonic_us(), [])
        self._queue.append(upload)
        self._queued.set()
        self.limit.add(key, size)
        return upload

    def reserve(self, key: ResultKey, size: int, grant: Grant) -> None:
        """Call ``grant`` once a trigger may write a result into the spool."""
        self.limit.request(key, size, grant)

    def is_storing(self, trigger_no: TriggerNo) -> bool:
        """Return whether reports about a trigger wait for its result."""
        return trigger_no in self._held

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Upload until cancelled.

        Results that still wait then are lost, and their tries run again.
        """
        async with anyio.create_task_group() as group:
            for _ in range(UPLOADS):
                group.start_soon(self._work)
            group.start_soon(self._admit)
            task_status.started()

    async def _admit(self) -> None:
        while True:
            await self._clock.sleep(_ADMIT_SECONDS)
            self.limit.admit()

    async def _work(self) -> None:
        while True:
            while not self._queue:
                if self._queued.is_set():  # all waiters share one event
                    self._queued = anyio.Event()
                await self._queued.wait()
            upload = self._queue.popleft()
            report = await self._store(upload)
            if report is not upload.report and not upload.has_successor():
                with suppress(OSError):  # if left behind, the file is only an orphan
                    await in_thread(result_path(self._spool, *upload.key).unlink)
            self.limit.remove(upload.size)
            if isinstance(upload.report, TriggerFired):
                del self._held[upload.report.trigger_no]
            passed = [report]
            for one in upload.followers:  # a follower with a result file holds back the later ones
                self._sort(one, passed)
            self._report(passed)

    async def _store(self, upload: _Upload) -> Input:
        """Store a result.

        Return the report of its try, or a failure if the result cannot be stored.
        """
        delay = _FIRST_DELAY
        while True:
            try:
                await self._attempt(upload)
            except SpoolDamaged as exc:
                return self._failed(upload, exc)
            except (StorageUnavailable, OSError) as exc:
                waited = (self._clock.monotonic_us() - upload.since_us) / 1e6
                if waited + delay > GIVE_UP_SECONDS:
                    return self._failed(upload, exc)
                self._note_outage(exc)
            else:
                return upload.report
            await self._clock.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    async def _attempt(self, upload: _Upload) -> None:
        if not self.may_store:
            raise StorageUnavailable("the storage has not answered since the start")
        file = result_path(self._spool, *upload.key)
        async with self._memory.held(upload.size):
            data, version = await in_thread(read_spooled, self._spool, upload.key, upload.size)
            await self._storage.put(upload.key, data)
            del data
        if not upload.has_successor():
            await self._copies.adopt(upload.key, file, version)

    def _note_outage(self, exc: Exception) -> None:
        now = self._clock.monotonic_us()
        if now >= self._silent_until:
            self._silent_until = now + _SILENCE_US
            _log.warning(
                "results cannot be stored, retrying",
                error=str(exc),
                waiting=self.limit.waiting_results,
            )

    def _failed(self, upload: _Upload, exc: Exception) -> Input:
        """Return the report of a try whose result cannot be stored. Another try may succeed."""
        seconds = (self._clock.monotonic_us() - upload.since_us) / 1e6
        error: AioflowError = ResultNotStored(seconds=round(seconds, 1), why=str(exc))
        _log.error("a result was not stored", task_no=upload.key[0], error=str(exc))
        report = upload.report
        if isinstance(report, TriggerFired):
            message = msgspec.msgpack.encode(str(error))
            return msgspec.structs.replace(
                report, payload=message, ends="failed", size=0, width=None, result=None
            )
        return Failed(
            report.task_no,
            report.start_no,
            report.began_at,
            self._clock.now(),
            Failure(type="ResultNotStored", message=str(error), reason=error.code),
        )
