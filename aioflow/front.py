"""What people meet of a node: the API, the page, and the cleaning up they may ask for.

It is imported once the loop runs, while the processes of the node start, which take as long; the
page later still, when what was waiting before a restart has been handed out.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import anyio
from anyio.abc import TaskStatus

from aioflow.api import Api
from aioflow.api.slots import HostedTimetables
from aioflow.api.views import CleanedView
from aioflow.catalog.snapshot import Snapshots
from aioflow.cleaning import Cleaning, Kept
from aioflow.clock import Clock
from aioflow.engine import Engine
from aioflow.executors.async_host import AsyncExecutor
from aioflow.executors.load import HostLoad, Watched
from aioflow.model import Instant, RunNo, TriggerNo
from aioflow.secrets import Vault
from aioflow.settings import Settings
from aioflow.store import Store
from aioflow.tasklog import TaskLog
from aioflow.threads import in_thread
from aioflow.triggerer import Triggerer

__all__ = ("Front",)

_QUESTION_SECONDS = 2.0
"""What one statement may take that somebody asks for through the API."""


class Front:
    """The API of a node, and the services behind it.

    Args:
        started_at: When the node began.
        cycle: Tells of runs that wait for each other.
        triggerers: By role.
        spans: How many spans were made, and dropped.

    Attributes:
        api: What can be asked; follows what is committed.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        store: Store,
        vault: Vault,
        *,
        tasklog: TaskLog,
        clock: Clock,
        started_at: Instant,
        cycle: Callable[[RunNo, int, int], str],
        snapshots: Snapshots,
        coroutines: AsyncExecutor,
        triggerers: Mapping[str, Triggerer],
        spans: Callable[[], tuple[int, int]],
    ) -> None:
        self._settings = settings
        self._async = coroutines
        self._triggerers = triggerers
        self._stop = anyio.Event()
        self._over = anyio.Event()
        self._cleaning = Cleaning(engine, store, tasklog, clock, _kept(settings), snapshots)
        self.api = Api(
            engine,
            store.limited(_QUESTION_SECONDS),
            tasklog,
            clock=clock,
            started_at=started_at,
            home=settings.home,
            cycle=cycle,
            vault=vault,
            clean=self._clean,
            hosts=self._loads,
            watched=self._describe,
            spans=spans,
            timetables=HostedTimetables(triggerers, lambda: engine.memory),
        )

    async def _clean(self, dry_run: bool) -> CleanedView:
        return await (self._cleaning.preview() if dry_run else self._cleaning.clean())

    def _loads(self) -> list[HostLoad]:
        return [self._async.load, *(host.load for host in self._triggerers.values())]

    async def _describe(self, numbers: Sequence[TriggerNo]) -> Mapping[TriggerNo, Watched]:
        found: dict[TriggerNo, Watched] = {}
        for triggerer in self._triggerers.values():
            found |= await triggerer.describe(numbers)
        return found

    async def clean_up(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Delete what is old until cancelled; see ``Cleaning.run``."""
        await self._cleaning.run(task_status=task_status)

    async def serve(self, *, task_status: TaskStatus[str] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve the API and the page until stopped; see ``web.serve``.

        They are imported in a thread, which takes every other turn of the interpreter, and takes
        longer than all else a start does.
        """
        try:
            serve_web = await in_thread(_import_web)
            await serve_web(self.api, self._settings, self._stop, task_status=task_status)
        finally:
            self._over.set()

    async def stop(self, seconds: float) -> None:
        """End serving, within that time; what was refused last, the engine writes down."""
        self._stop.set()
        with anyio.move_on_after(seconds):
            await self._over.wait()


def _import_web() -> Callable[..., Coroutine[Any, Any, None]]:
    from aioflow.web import serve

    return serve


def _kept(settings: Settings) -> Kept:
    return Kept(
        runs_days=settings.keep_runs_days,
        events_days=settings.keep_events_days,
        journal_days=settings.keep_journal_days,
        logs_days=settings.keep_logs_days,
        versions_days=settings.keep_versions_days,
        audit_days=settings.keep_audit_days,
    )
