"""A temporary daemon in the process of a command, for as long as the command runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from aioflow.cli.client import Client, connect_home
from aioflow.cli.follow import ENDED
from aioflow.cli.run_progress import RunProgress
from aioflow.clock import SystemClock
from aioflow.daemon import Ready, serve
from aioflow.errors import AioflowError
from aioflow.settings import Settings

__all__ = ("Guest", "with_daemon")

_EVERY_SECONDS = 0.2
_INTERRUPTED = 130


class Guest:
    """Client of the daemon in this process.

    Requests run in a worker thread, so that the daemon's event loop can answer them.
    """

    def __init__(self, home: Path) -> None:
        self._client: Client = connect_home(home)
        self._clock = SystemClock()

    async def get(self, *path: str, **query: object) -> Any:
        """See ``Client.get``."""
        return await anyio.to_thread.run_sync(partial(self._client.get, *path, **query))

    async def get_bytes(self, *path: str, **query: object) -> bytes:
        """See ``Client.get_bytes``."""
        return await anyio.to_thread.run_sync(partial(self._client.get_bytes, *path, **query))

    async def post(self, *path: str, body: dict[str, object] | None = None) -> Any:
        """See ``Client.post``."""
        return await anyio.to_thread.run_sync(partial(self._client.post, *path, body=body))

    async def whole_run(self, run_id: str) -> Any:
        """Return a run with all of its tasks, fetched page by page."""
        run = await self.get("runs", run_id)
        while len(run["tasks"]) < sum(run["counts"].values()):
            page = await self.get("runs", run_id, offset=len(run["tasks"]))
            if not page["tasks"]:
                break
            run["tasks"] += page["tasks"]
        return run

    async def watch(self, run_id: str, progress: RunProgress) -> Any:
        """Show a run until it ends; return its final state with all of its tasks."""
        while True:
            run = await self.get("runs", run_id)
            progress.show(run)
            if run["state"] in ENDED:
                return await self.whole_run(run_id)
            await self._clock.sleep(_EVERY_SECONDS)

    async def find_dag(self, dag_id: str, *, seconds: float) -> Any:
        """Return a DAG as soon as it is known, or ``None`` after ``seconds``."""
        with anyio.move_on_after(seconds):
            while True:
                for dag in await self.get("dags"):
                    if dag["dag_id"] == dag_id:
                        return dag
                await self._clock.sleep(_EVERY_SECONDS)
        return None


async def with_daemon(
    settings: Settings, visit: Callable[[Guest, Ready], Awaitable[int]], *, stay: bool = False
) -> int:
    """Run a daemon and ``visit`` beside it. Return the status that ``visit`` returns.

    Args:
        settings: The daemon's settings.
        visit: Called once the daemon answers requests. If the daemon is stopped, ``visit`` is
            cancelled, and the status is that of an interrupted command.
        stay: Whether the daemon continues to run after ``visit``, until it is stopped.
    """
    up = anyio.Event()
    ready: list[Ready] = []
    status = _INTERRUPTED

    def announce(facts: Ready) -> None:
        ready.append(facts)
        up.set()

    async with anyio.create_task_group() as group:

        async def run() -> None:
            await serve(settings, announce)
            group.cancel_scope.cancel()  # the daemon was stopped: cancel ``visit``, too

        group.start_soon(run)
        await up.wait()
        status = await _visited(visit, Guest(settings.home), ready[0])
        if not stay and not ready[0].stopped.is_set():
            group.cancel_scope.cancel()
    return status


async def _visited(
    visit: Callable[[Guest, Ready], Awaitable[int]], guest: Guest, facts: Ready
) -> int:
    """Return the status of ``visit``, or that of an interrupted command if the daemon stopped."""
    status = _INTERRUPTED
    async with anyio.create_task_group() as group:

        async def leave() -> None:
            await facts.stopped.wait()
            group.cancel_scope.cancel()

        group.start_soon(leave)
        try:
            status = await visit(guest, facts)
        except (AioflowError, ExceptionGroup):
            if not facts.stopped.is_set():  # else its last request failed because of the stop
                raise
        group.cancel_scope.cancel()
    return status
