"""Restoration of the code of DAG versions from the database, if it is missing on the disk.

Until its code is restored, a task or trigger waits, which does not count as a try. If only a module
was missing, the import error counts as a try. If the code cannot be written, for example on a full
disk, the children keep requesting it, and each failure is logged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import anyio

from aioflow.catalog.snapshot import Snapshots
from aioflow.clock import Clock
from aioflow.errors import StoreError, StoreUnavailable
from aioflow.protocol.effects import RestoreCode
from aioflow.protocol.inputs import CodeRestored, Input
from aioflow.store import Store
from aioflow.telemetry.log import Logger

__all__ = ("CodeMissing", "keep_restoring", "restore_needed")

AGAIN_SECONDS = 1.0
"""Minimum interval between restores, in case the code disappears again at once."""

KEEP_SECONDS = 10.0
"""Interval at which a standby restores the code that it would need after a takeover."""

_log = Logger(__name__)


async def restore_needed(store: Store, snapshots: Snapshots) -> None:
    """Restore the code of each version that may still run and is missing on the disk."""
    for needed in await store.list_needed_version_names():
        if not (snapshots.folder / needed).exists():
            row = await store.find_version(needed)
            if row is not None:
                await snapshots.restore(row.version, row.sources)


async def keep_restoring(store: Store, snapshots: Snapshots, clock: Clock) -> None:
    """Call ``restore_needed`` periodically, so that a takeover need not wait for it."""
    while True:
        try:
            await restore_needed(store, snapshots)
        except (OSError, StoreError) as exc:
            _log.warning("code cannot be restored now", error=str(exc))
        await clock.sleep(KEEP_SECONDS)


class CodeMissing:
    """The service that restores missing code.

    Args:
        report: Called with a ``CodeRestored`` for each trigger that may try again.
    """

    def __init__(
        self,
        store: Store,
        snapshots: Snapshots,
        report: Callable[[Sequence[Input]], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._snapshots = snapshots
        self._report = report
        self._clock = clock
        self._send, self._receive = anyio.create_memory_object_stream[RestoreCode](math.inf)

    def ask(self, wanted: RestoreCode) -> None:
        """Request the restoration of code. Return at once."""
        self._send.send_nowait(wanted)

    async def run(self) -> None:
        """Restore requested code versions, one batch at a time, until cancelled."""
        async for first in self._receive:
            wanted = [first]
            while self._receive.statistics().current_buffer_used:
                wanted.append(self._receive.receive_nowait())
            for version in sorted({version for one in wanted for version in one.versions}):
                await self._restore(version)
            await self._clock.sleep(AGAIN_SECONDS)
            self._report([CodeRestored(one.trigger_no) for one in wanted if one.trigger_no >= 0])

    async def _restore(self, version: str) -> None:
        try:
            row = await self._store.find_version(version)
            if row is None:
                _log.error("the code of a version was not found", version=version)
                return
            if await self._snapshots.restore(version, row.sources):
                _log.warning("restored missing code", version=version, file=row.file)
        except (OSError, StoreUnavailable) as exc:
            _log.error("code cannot be restored now", version=version, error=str(exc))
