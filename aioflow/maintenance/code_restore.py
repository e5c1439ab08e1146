"""Brings the code of versions back that children have not found on the disk: from the database.

Who lacks it waits meanwhile and is charged nothing; where only a module of it was missing, the
import error was a try. As long as it cannot be written, on a full disk for example, they ask again
and again, and this says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import anyio

from aioflow.catalog.snapshot import Snapshots
from aioflow.clock import Clock
from aioflow.errors import StoreUnavailable
from aioflow.protocol.effects import RestoreCode
from aioflow.protocol.inputs import CodeRestored, Input
from aioflow.store import Store
from aioflow.telemetry.log import Logger

__all__ = ("CodeMissing",)

AGAIN_SECONDS = 1.0
"""What is missing at once again after it was restored is not looked for more often."""

_log = Logger(__name__)


class CodeMissing:
    """The service.

    Args:
        report: Takes the word that a trigger may be hosted again.
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
        """Have code brought back. Returns at once."""
        self._send.send_nowait(wanted)

    async def run(self) -> None:
        """Bring back what is asked for, all that is at a time, until cancelled."""
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
                _log.error("the code of a version is nowhere", version=version)
                return
            if await self._snapshots.restore(version, row.sources):
                _log.warning("code that was missing is restored", version=version, file=row.file)
        except (OSError, StoreUnavailable) as exc:
            _log.error("code cannot be restored now", version=version, error=str(exc))
