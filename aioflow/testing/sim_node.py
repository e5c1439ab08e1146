"""A simulated node and its environment: an event loop in a thread, and a database.

A ``Node`` lives from one crash to the next: a real engine, executors and triggerer, wired as usual.
"""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
from anyio.abc import TaskStatus

from aioflow.api import Api
from aioflow.author.callbacks import Notification
from aioflow.clock import SystemClock
from aioflow.core.scheduling.slots import Slots
from aioflow.core.why import still_waits
from aioflow.crypto import KEY_BYTES, Vault
from aioflow.engine.loop import Engine
from aioflow.errors import DaemonStopping
from aioflow.executors.effect_handlers import effect_handlers
from aioflow.executors.executor_context import ExecutorContext
from aioflow.executors.host_pool import HostPool
from aioflow.executors.remote_executor import RemoteExecutors
from aioflow.executors.worker_pool import WorkerPool
from aioflow.model.batch import Batch
from aioflow.model.rows import VersionRow
from aioflow.model.timestamps import Timestamp, to_datetime
from aioflow.notifications import OutboxWorker, Pace, Targets
from aioflow.processes import Children
from aioflow.protocol.effects import DeliverOutbox, RestoreCode
from aioflow.protocol.outbox import Alert
from aioflow.queries import QueryHandler
from aioflow.redaction import Masks
from aioflow.store import Store
from aioflow.store.sqlite.inline import open_inline
from aioflow.telemetry.task_log import TaskLog
from aioflow.testing.fake_time import (
    Stalled,
    Standstill,
    VirtualClock,
    VirtualLoop,
    nap_here,
    threads_are_counted,
    wall_clock,
)
from aioflow.testing.hosts import InlineChildren, streams_are_shared
from aioflow.worker.code.loader import CodeCache

__all__ = (
    "CPU_SLOTS",
    "Node",
    "NodeCrashed",
    "SimNode",
)

CPU_SLOTS, ASYNC_SLOTS = 4, 1_000
_NOT_WATCHED = math.inf
_SEED = 0


class Node:
    """A whole node, except for its processes, its catalog and its web server.

    Attributes:
        engine: The engine of the node.
        api: The API of the node.
        alerts: The alerts that a real node would have sent.
    """

    def __init__(
        self,
        store: Store,
        clock: VirtualClock,
        home: Path,
        code_cache: CodeCache,
        on_commit: Callable[[Batch], None],
        on_notification: Callable[[Notification], None],
    ) -> None:
        slots = Slots(cpu_slots=CPU_SLOTS, async_slots=ASYNC_SLOTS)
        rng = random.Random(_SEED)
        self.engine = engine = Engine(store, slots, clock=clock, random=rng.random)
        engine.timers.check_seconds = math.inf
        self.alerts: list[Alert] = []
        masks = Masks()
        self._tasklog = TaskLog(home / "logs", clock, masks=masks)
        self._answers = QueryHandler(
            store,
            clock,
            still_waits=lambda *task: still_waits(engine.memory, *task),
            masks=masks,
        )
        context = ExecutorContext(
            children=cast(Children, InlineChildren(code_cache, on_notification)),
            code=home / "code",
            results=home / "results",
            tasklog=self._tasklog,
            report=engine.report,
            clock=clock,
            on_query=self._answers.submit,
        )
        self._slot = _unwatched_slots(context)
        self._hosts = HostPool(context, health_seconds=_NOT_WATCHED, idle_seconds=_NOT_WATCHED)
        self._deliveries = OutboxWorker(
            context,
            store,
            pace=Pace(processes=1, per_second=math.inf),
            targets=Targets(),
            restore=_nothing_is_missing,
            on_alert=self.alerts.append,
            needs_values=False,
        )
        self.api = Api(
            engine, store, self._tasklog, clock=clock, home=home, cycle=self._answers.cycle
        )
        dispatcher = engine.dispatcher
        dispatcher.register(
            effect_handlers(self._slot, self._hosts, RemoteExecutors(context, {}, CPU_SLOTS))
        )
        dispatcher.register({DeliverOutbox: self._deliveries.put, RestoreCode: _ignore})
        dispatcher.subscribe(self.api.committed)
        dispatcher.subscribe(self._answers.committed)
        dispatcher.subscribe(lambda batch, _: on_commit(batch))

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled. Signal ``task_status`` when the node accepts requests."""
        async with anyio.create_task_group() as services:
            await services.start(self._tasklog.run)
            await services.start(self._answers.run)
            await services.start(self.engine.run)
            await services.start(self._slot.run)
            await services.start(self._hosts.run)
            await services.start(self._deliveries.run)
            task_status.started()


def _ignore(_: RestoreCode) -> None:
    """Do nothing: all code is in this process."""


async def _nothing_is_missing(_: VersionRow) -> None:
    """Do nothing: all code is in this process."""


def _unwatched_slots(context: ExecutorContext) -> WorkerPool:
    """Return an executor without liveness checks and idle limits: there are no processes."""
    never = math.inf
    return WorkerPool(context, CPU_SLOTS, idle_seconds=never, frozen_seconds=never)


SLACK_SECONDS = 0.05
"""Extra virtual time in which due work is done, because timers are coarse."""

LAST_US = 2_000_000
"""Real time, in µs, that cancelled coroutines get to clean up before the loop is closed."""

T = TypeVar("T")


class NodeCrashed(Exception):
    """The node crashed. Ends all services of the node at once."""


class SimNode:
    """The environment of a node. Its loop runs only while a caller waits for ``run`` or ``do``.

    Args:
        tell: Called with a text that says what the simulation waits for, if that takes real time.

    Attributes:
        home: The home directory of the node.
        clock: The clock on virtual time.
        store: The database, which survives crashes of the node.
        notifications: The notifications that a real node would have sent.
    """

    def __init__(
        self, begins_at: Timestamp, code_cache: CodeCache, tell: Callable[[str], object]
    ) -> None:
        self._code_cache = code_cache
        self._closing = stack = ExitStack()
        self._loop = VirtualLoop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aioflow-sim")
        self.clock = VirtualClock(self._loop, begins_at)
        self._standstill = Standstill(self._loop, lambda: to_datetime(self.clock.now()), tell)
        self.home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aioflow-sim-")))
        for name in ("code", "logs", "results"):
            (self.home / name).mkdir()
        vault = Vault((bytes(KEY_BYTES),))
        self.store = stack.enter_context(open_inline(self.home / "aioflow.db", vault))
        stack.enter_context(threads_are_counted())
        stack.enter_context(wall_clock(self.clock))
        self.notifications: list[Notification] = []
        self._nominal = 0.0
        self._node: Node | None = None
        self._died = asyncio.Event()
        self._born = asyncio.Event()
        self._run_changed = asyncio.Event()
        self._services: anyio.abc.TaskGroup | None = None
        self._life = self._loop.create_task(self._live())

    # ── from outside ────────────────────────────────────────────────────────────────────

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the loop until the coroutine has ended, and return its result. Blocks.

        Raises:
            Stalled: If the coroutine will never end.
            RuntimeError: If called from code that the loop runs: the loop cannot wait for itself.
        """
        if nap_here() is not None:
            raise RuntimeError("a task cannot look at the simulator that runs it")
        return self._standstill.result(self._start(make))

    async def do(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the same as ``run``, but do not block the caller's event loop."""
        return await self._standstill.awaited(self._start(make))

    def _start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        return self._thread.submit(self._turn, make)

    def crash_where(self, crash: Callable[[int, bool], bool]) -> None:
        """Crash the node at the commits that ``crash`` selects.

        Args:
            crash: Called before and after each commit from now on, with the number of the commit
                and whether the commit is still to come; returns whether to crash there.
        """
        count = 0

        def before() -> None:
            nonlocal count
            count += 1
            if crash(count, True):
                raise NodeCrashed

        def after() -> None:
            if crash(count, False):
                raise NodeCrashed

        self.store.before_commit, self.store.after_commit = before, after

    def close(self) -> None:
        """Stop the node and its loop, and release all resources. Idempotent."""
        if not self._loop.is_closed():
            self._thread.submit(self._end).result()
            self._thread.shutdown()
            self._closing.close()

    # ── on the loop ─────────────────────────────────────────────────────────────────────

    async def ask(self, question: Callable[[Node], Awaitable[T]]) -> T:
        """Send a request to the node. If the node crashes first, repeat it at the next node."""
        while True:
            await self._born.wait()
            assert self._node is not None  # noqa: S101 - set before the event
            asking = asyncio.ensure_future(question(self._node))
            dying = asyncio.ensure_future(self._died.wait())
            try:
                await asyncio.wait({asking, dying}, return_when=asyncio.FIRST_COMPLETED)
                if asking.done() and not isinstance(asking.exception(), DaemonStopping):
                    return asking.result()
                await dying
            finally:
                asking.cancel()
                dying.cancel()

    async def run_changed(self) -> None:
        """Return after the next commit that changes the state of a run."""
        await self._run_changed.wait()

    async def stillness(self) -> None:
        """Return when nothing more happens at the present virtual time."""
        await self._loop.stillness()

    async def pass_time(self, seconds: float) -> None:
        """Return when this much time has passed and all due work is done."""
        self._nominal = max(self._nominal, self._loop.time() - SLACK_SECONDS) + seconds
        await asyncio.sleep(self._nominal - self._loop.time())
        await self.stillness()
        await asyncio.sleep(self._nominal + SLACK_SECONDS - self._loop.time())
        await self.stillness()

    async def crash(self) -> None:
        """Crash the node, and start the next one."""
        await self._born.wait()
        assert self._services is not None  # noqa: S101 - set before the event
        died = self._died
        self._services.start_soon(_crash)
        await died.wait()
        await self._born.wait()
        await self.stillness()

    async def _live(self) -> None:
        while True:
            take = self.notifications.append
            node = Node(self.store, self.clock, self.home, self._code_cache, self._committed, take)
            try:
                async with anyio.create_task_group() as self._services:
                    await self._services.start(node.run)
                    self._node = node
                    self._born.set()
                    self._tell_of_change()  # the last node may have died without notifying
                    await anyio.sleep_forever()
            except* NodeCrashed:
                pass
            self._node = None
            self._born.clear()
            self._died.set()
            self._died = asyncio.Event()

    def _committed(self, batch: Batch) -> None:
        if batch.run_changes:
            self._tell_of_change()

    def _tell_of_change(self) -> None:
        self._run_changed.set()
        self._run_changed = asyncio.Event()

    # ── in the thread ───────────────────────────────────────────────────────────────────

    def _turn(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with streams_are_shared():
            wanted = self._loop.create_task(self._before_it_dies(make()))
            try:
                found: T = self._loop.run_until_complete(wanted)
            except Stalled:
                wanted.cancel()
                self._loop.run_until_complete(asyncio.wait({wanted}))
                raise
            return found

    async def _before_it_dies(self, wanted: Coroutine[Any, Any, T]) -> T:
        """Return the result, or raise the error that ended the engine (a bug of aioflow)."""
        task = asyncio.ensure_future(wanted)
        try:
            await asyncio.wait({task, self._life}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else self._life.result()
        finally:
            task.cancel()

    def _end(self) -> None:
        loop = self._loop
        with streams_are_shared():
            for tasks in ({self._life}, asyncio.all_tasks(loop)):
                for task in tasks:
                    task.cancel()
                self._see_them_end(tasks)
            loop.run_until_complete(loop.shutdown_asyncgens())
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        loop.close()

    def _see_them_end(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Run the loop until the tasks are done, but not longer than ``LAST_US``."""
        clock = SystemClock()
        until = clock.monotonic_us() + LAST_US
        while clock.monotonic_us() < until and not all(task.done() for task in tasks):
            self._loop.run_until_complete(asyncio.sleep(0))


async def _crash() -> None:
    raise NodeCrashed
