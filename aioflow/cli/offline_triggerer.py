"""Previews a timetable without a daemon, in a triggerer process that lasts for one request."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from aioflow.api.dags import timetable_preview_command
from aioflow.catalog.snapshot import Snapshots
from aioflow.executors.host_inspection import FireTimePreviews
from aioflow.model.timestamps import Timestamp
from aioflow.model.triggers import DagTriggerRow
from aioflow.processes import Child, Children
from aioflow.protocol.commands import Hello
from aioflow.protocol.reports import FireTimesPreviewed, Report
from aioflow.store import Store

__all__ = ("OfflineTriggerer",)


class OfflineTriggerer:
    """Restores the code of a version and starts a process for it, for one preview.

    Implements ``aioflow.api.dags.Timetables``.

    Args:
        store: Has the code of all versions.
        allowed: See ``Children``.
    """

    def __init__(self, store: Store, allowed: Sequence[str]) -> None:
        self._store = store
        self._allowed = allowed

    def expected(self) -> Mapping[str, Timestamp]:
        """Return an empty mapping: without a daemon no timetable trigger runs."""
        return {}

    def expected_of(self, _dag_id: str) -> Timestamp | None:
        """See ``expected``."""
        return None

    async def foresee(
        self, row: DagTriggerRow, version: str, after: Timestamp, count: int
    ) -> FireTimesPreviewed | None:
        """See ``Timetables``."""
        with tempfile.TemporaryDirectory(prefix="aioflow-next-") as home:
            code = Path(home) / "code"
            code.mkdir()
            found = await self._store.find_version(version)
            if found is not None:
                await Snapshots(code).restore(version, found.sources)
            children = Children(Path(home), allowed=self._allowed)
            async with anyio.create_task_group() as group:
                await group.start(children.run)
                answer = await _preview(children, code, row, version, after, count)
                group.cancel_scope.cancel()
        return answer


async def _preview(
    children: Children, code: Path, row: DagTriggerRow, version: str, after: Timestamp, count: int
) -> FireTimesPreviewed:
    process: list[Child] = []
    previews = FireTimePreviews(lambda order: process[0].send([order]))

    def take(reports: list[Report]) -> None:
        for report in reports:
            if isinstance(report, FireTimesPreviewed):
                previews.answered(report)

    async with children.child("triggers", on_reports=take, on_output=_discard_output) as child:
        process.append(child)
        child.send([Hello("triggers", str(code), str(code))])
        async with anyio.create_task_group() as group:

            async def tell_of_its_end() -> None:
                await child.ended()
                previews.lost()

            group.start_soon(tell_of_its_end)
            answer = await previews.request(
                timetable_preview_command(row, version, 0), after=after, count=count
            )
            group.cancel_scope.cancel()
        child.kill()
    return answer


async def _discard_output(_data: bytes) -> None:
    """Discard the output: it belongs to no task, and failures are part of the reply."""
