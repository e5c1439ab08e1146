"""Deletion of stored results that no commit refers to.

A result is stored before its try is committed. If the daemon is killed in between, or the try is
cancelled, its result is an orphan. So is a result whose task was cleared and returned another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioflow.clock import Clock
from aioflow.errors import StorageUnavailable, StoreUnavailable
from aioflow.model.ids import TaskNo
from aioflow.results import RESULTS_IN_BLOCK
from aioflow.storage.results import ResultKey, ResultStorage
from aioflow.store import Store
from aioflow.telemetry.log import Logger

__all__ = ("OrphanedResults",)

_FIRST_SECONDS = 600.0
_ROUND_SECONDS = 86_400.0
_AWAY_SECONDS = 600.0
_SHARE = 4
"""Ratio of the pause after a block to the time that the block took."""

_LEAST_AGE_US = 86_400_000_000
"""Minimum age of an orphan: a younger result may belong to a try that is about to be committed."""

_log = Logger(__name__)


class OrphanedResults:
    """The service that deletes orphans, once a day.

    Args:
        storages: Where results are stored, including the folder from which they are uploaded.
    """

    def __init__(self, storages: Sequence[ResultStorage], store: Store, clock: Clock) -> None:
        self._storages = storages
        self._store = store
        self._clock = clock

    async def run(self) -> None:
        """Delete orphans until cancelled."""
        pause = _FIRST_SECONDS
        while True:
            await self._clock.sleep(pause)
            try:
                count = sum([await self.delete_all(storage) for storage in self._storages])
            except (StorageUnavailable, StoreUnavailable, OSError) as exc:
                _log.warning("the search for orphaned results is repeated later", error=str(exc))
                pause = _AWAY_SECONDS
                continue
            if count:
                _log.info("orphaned results deleted", count=count)
            pause = _ROUND_SECONDS

    async def delete_all(self, storage: ResultStorage) -> int:
        """Delete the orphans of a storage, with pauses. Return how many there were.

        Raises:
            StorageUnavailable: If the storage cannot be used now.
            StoreUnavailable: If the database does not answer.
        """
        count = 0
        for block in await storage.list_blocks():
            began = self._clock.monotonic_us()
            found = await self._find(storage, block)
            await storage.delete(found)
            count += len(found)
            took = (self._clock.monotonic_us() - began) / 1e6
            await self._clock.sleep(_SHARE * took)
        return count

    async def _find(self, storage: ResultStorage, block: int) -> list[ResultKey]:
        """Return the orphans of a block.

        The rows of tasks are read before the rows of results. If a try is committed between the two
        reads, its task still counts as live. The result of a live task may be waiting for its
        commit, however old it is, because the database may not have answered for days.
        """
        old = self._clock.now() - _LEAST_AGE_US
        listed = [one.key for one in await storage.list_block(block) if one.stored_at < old]
        if not listed:
            return []
        first = block * RESULTS_IN_BLOCK
        live = await self._live_tasks(first, first + RESULTS_IN_BLOCK)
        needed = set(await self._store.list_stored_results(first, first + RESULTS_IN_BLOCK))
        return [key for key in listed if key not in needed and key[0] not in live]

    async def _live_tasks(self, first: TaskNo, end: TaskNo) -> set[TaskNo]:
        rows = await self._store.list_tasks_between(first, end, RESULTS_IN_BLOCK)
        return {row.task_no for row in rows if row.state.is_live}
