"""The output of one slot worker, split and written to the logs of its tries."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

from aioflow.model.ids import StartNo, TaskNo
from aioflow.protocol.commands import StartTask
from aioflow.telemetry.task_log import Attribution, LogKey, TaskLog, TryLog
from aioflow.worker.stdio import IDLE

__all__ = ("WorkerOutput", "log_key")

_logger = logging.getLogger(__name__)


class WorkerOutput:
    """The output of one process. Tries print in the order in which they were sent."""

    def __init__(self, tasklog: TaskLog, nonce: str) -> None:
        self._tasklog = tasklog
        self._attribution = Attribution(nonce)
        self._expected: dict[tuple[TaskNo, StartNo], StartTask] = {}
        self._log: TryLog | None = None

    def expect(self, start: StartTask) -> None:
        """Register a try that was sent to the process."""
        self._expected[start.task_no, start.start_no] = start

    async def keep(self, data: bytes) -> None:
        """Write a piece of output to the logs of its tries; wait while the disk is slow."""
        await self._keep_pieces(self._attribution.feed(data))

    async def finish(self) -> None:
        """Write the output that was held back, because the process is dead."""
        await self._keep_pieces(self._attribution.finish())
        if self._log is not None:
            self._log.close()

    async def _keep_pieces(
        self, pieces: Sequence[tuple[tuple[TaskNo, StartNo] | None, bytes]]
    ) -> None:
        for key, data in pieces:
            if not data:
                self._begin(key)
            elif self._log is not None:
                await self._log.write(data)
            else:
                _logger.warning("printed by no try: %r", self._tasklog.masks.masked(data)[:500])

    def _begin(self, key: tuple[TaskNo, StartNo] | None) -> None:
        if key == IDLE:
            if self._log is not None:
                self._log.close()  # readers that follow the log now see all of it
            return
        start = None if key is None else self._expected.get(key)
        if self._log is not None:
            self._log.close()
        self._log = None if start is None else self._tasklog.open(log_key(start))
        if start is not None:
            # Tries sent before this one print no more: they have ended or were recalled.
            done = list(itertools.takewhile(lambda other: other != key, self._expected))
            for earlier in done:
                del self._expected[earlier]


def log_key(start: StartTask) -> LogKey:
    """Return the log key of a start's output."""
    return LogKey(
        run_no=start.run_no,
        position=start.position,
        map_index=start.map_index,
        task_no=start.task_no,
        start_no=start.start_no,
        try_number=start.try_number,
    )
