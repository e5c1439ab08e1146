"""Runs callbacks in threads of this process, alternating with the event loop; see ``bodies``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from aioflow.author.notifiers import Notification, outbound
from aioflow.errors import LinkClosed
from aioflow.protocol.commands import ForgetRun, Notify, Order, RunCallback, RunInfo
from aioflow.protocol.reports import CallbackReturned
from aioflow.testing.function_bodies import Turns
from aioflow.worker.callbacks import call, notify
from aioflow.worker.code import CodeCache
from aioflow.worker.runs import Runs
from aioflow.worker.shared_host import ReportBuffer

__all__ = ("CallingHost",)


class CallingHost:
    """The role ``callbacks``, see ``worker.callbacks``.

    Args:
        announce: Called with the number of each call before it begins.
        on_notification: Called with each notification instead of sending it.
    """

    def __init__(
        self,
        reports: ReportBuffer,
        code_cache: CodeCache,
        announce: Callable[[int], None],
        on_notification: Callable[[Notification], None],
    ) -> None:
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._runs = Runs(code_cache)
        self._announce = announce
        self._running: Turns[CallbackReturned] | None = None
        outbound.set(on_notification)

    def handle(self, command: Order) -> None:
        """See ``worker.shared_host.Role``."""
        match command:
            case RunCallback():
                self._begin(command.number, partial(call, command, self._runs, self._drive))
            case Notify():
                self._begin(command.number, partial(notify, command))
            case RunInfo():
                self._runs.add(command)
            case ForgetRun():
                self._runs.forget(command.run_no)
            case _:
                raise LinkClosed(f"a callback host was ordered {type(command).__name__}")

    def kill(self) -> None:
        """End the running callback where it pauses."""
        if self._running is not None:
            self._running.kill()

    def _begin(self, number: int, work: Callable[[], CallbackReturned]) -> None:
        self._announce(number)
        self._running = Turns(work, self._reports.report)
        self._loop.call_soon(self._running.begin)

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the node's event loop, while the thread of the callback waits."""
        running = self._running
        assert running is not None  # noqa: S101 - it is called
        tasks: list[asyncio.Task[Any]] = []

        def wish(go_on: Callable[[], None]) -> None:
            task = self._loop.create_task(coroutine)
            task.add_done_callback(lambda _: go_on())
            tasks.append(task)

        running.pause(wish)
        return tasks[0].result()
