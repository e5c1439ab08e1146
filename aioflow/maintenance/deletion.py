"""Deletion of the rows, results and logs of runs that are marked as deleted.

It works in slices and pauses between them, so that running work is hardly affected. The remaining
work follows from the rows, so it may be interrupted anywhere and resumes at the next start: the
results of a task are deleted before its row, all else before the row of the run. Nothing is deleted
before the author's callbacks for the run have been called.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.core.transaction import Transaction
from aioflow.engine.loop import Engine
from aioflow.errors import AioflowError, StoreUnavailable
from aioflow.model.batch import Batch
from aioflow.model.ids import RunNo
from aioflow.model.rows import DeletionRow
from aioflow.protocol.outbox import callback_kind
from aioflow.protocol.requests import EraseRows
from aioflow.results import delete_results
from aioflow.store import TABLES_OF_RUNS, Store
from aioflow.telemetry.log import Logger
from aioflow.telemetry.task_log import TaskLog

__all__ = ("SLICE_ROWS", "Deleting")

SLICE_ROWS = 2_000
"""Rows deleted with one commit, shared by all runs in progress."""

_RUNS_AT_ONCE = 8
"""Small runs are quickly read and mostly wait for commits, which they share."""

_SHARE = 4
"""Ratio of the pause after a slice to the duration of the slice."""

_LEAST_REST_SECONDS = 0.01
_AGAIN_SECONDS = 1.0
"""Delay before a retry if a triggerer still runs a trigger, or the database does not respond."""

_log = Logger(__name__)


class Deleting:
    """The service that deletes runs.

    Args:
        results: The folder of large results.
    """

    def __init__(
        self, engine: Engine, store: Store, tasklog: TaskLog, results: Path, clock: Clock
    ) -> None:
        self._given_up: set[RunNo] = set()  # until the next start
        self._last_outbox_no: dict[RunNo, int | None] = {}  # of the last callback to wait for
        self._under_way = 0
        self._is_away = False
        self._engine = engine
        self._store = store
        self._tasklog = tasklog
        self._results = results
        self._clock = clock
        self._wanted = anyio.Event()
        self._wanted.set()  # an earlier process may have left some

    def committed(self, batch: Batch, _: Transaction) -> None:
        """Handle a durable batch: start deleting if it marks runs as deleted."""
        if batch.new_deletions:
            self._wanted.set()

    async def run(self) -> None:
        """Delete the runs that are marked as deleted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = anyio.Event()
            self._is_away = False
            try:
                are_left = await self._delete_all()
            except StoreUnavailable as exc:
                _log.warning("deleting runs waits for the database", error=str(exc))
                are_left = True
            if are_left:
                self._wanted.set()
                await self._clock.sleep(_AGAIN_SECONDS)

    async def _delete_all(self) -> bool:
        """Delete the runs that are marked as deleted. Return whether one has to wait."""
        named = iter(await self._store.list_deletions())
        left: list[DeletionRow] = []
        async with anyio.create_task_group() as runs:
            for _ in range(_RUNS_AT_ONCE):
                runs.start_soon(self._delete_each, named, left)
        return bool(left)

    async def _delete_each(self, named: Iterator[DeletionRow], left: list[DeletionRow]) -> None:
        """Delete one run after the other. Add those that have to wait to ``left``."""
        for deletion in named:
            if deletion.run_no in self._given_up:
                continue
            try:
                if await self._is_needed(deletion.run_no):
                    left.append(deletion)
                    continue
                self._under_way += 1
                try:
                    await self._delete(deletion)
                finally:
                    self._under_way -= 1
            except StoreUnavailable as exc:
                if not self._is_away:  # runs deleted in parallel get the same error
                    _log.warning("deleting runs waits for the database", error=str(exc))
                self._is_away = True
                left.append(deletion)
                return
            except (AioflowError, OSError) as exc:
                _log.error("a run cannot be deleted", run_no=deletion.run_no, error=str(exc))
                self._given_up.add(deletion.run_no)

    async def _is_needed(self, run_no: RunNo) -> bool:
        """Return whether a trigger of the run may still be running, or a callback may be pending.

        Callbacks of one DAG are delivered in order. So it is enough to wait for those that were in
        the outbox when the deletion started.
        """
        run = await self._store.find_run_no(run_no)
        if run is None:
            return False
        kind = callback_kind(run.dag_id)
        if run_no not in self._last_outbox_no:
            self._last_outbox_no[run_no] = await self._store.last_outbox_no(kind)
        last = self._last_outbox_no[run_no]
        if last is not None:
            pending = await self._store.list_outbox(kind, after=-1, limit=1)
            if pending and pending[0].outbox_no <= last:
                return True
        return await self._store.has_triggers(run_no)

    async def _delete(self, deletion: DeletionRow) -> None:
        for table in TABLES_OF_RUNS:
            if table == "run":
                await self._tasklog.delete(deletion.run_no)
            await self._empty(table, deletion)
        self._last_outbox_no.pop(deletion.run_no, None)
        _log.info("run deleted", run_no=deletion.run_no)

    async def _empty(self, table: str, deletion: DeletionRow) -> None:
        after, number = -1, deletion.run_no
        while True:
            began = self._clock.monotonic_us()
            limit = max(1, SLICE_ROWS // self._under_way)
            keys = await self._store.list_erasable(table, number, after=after, limit=limit)
            if not keys:
                return
            if table == "task":
                numbers = [key[0] for key in keys]
                await in_thread(partial(delete_results, self._results, numbers))
            await self._engine.ask(EraseRows(run_no=number, table=table, keys=keys))
            after = keys[-1][0]
            took = (self._clock.monotonic_us() - began) / 1e6
            await self._clock.sleep(max(_LEAST_REST_SECONDS, _SHARE * took))
            if len(keys) < limit:
                return
