"""The outbox worker: runs callbacks, and sends alerts to the targets of the settings file.

It works at a limited rate, in processes that are started on demand. A delivery is reported first,
and only then is its outbox row deleted. If a crash happens in between, it is delivered a second
time, under the same number. The alert targets are read again when the settings file changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.core.tasks.retry import redelivery_delay
from aioflow.errors import InterpreterUnusable, SettingsError, StoreUnavailable
from aioflow.executors.executor_context import ExecutorContext
from aioflow.model.decisions import DecisionRow
from aioflow.model.rows import VersionRow
from aioflow.notifications.callback_process import Caller, calling
from aioflow.notifications.delivery import (
    DeliveryQueue,
    ImpossibleDelivery,
    Job,
    PreparedDelivery,
    Preparing,
    Targets,
)
from aioflow.processes import NoHeadroom
from aioflow.protocol.effects import DeliverOutbox
from aioflow.protocol.inputs import OutboxDelivered
from aioflow.protocol.outbox import ALERT, Alert, Asked
from aioflow.protocol.reports import CallbackReturned
from aioflow.settings import FILE_NAME, Settings
from aioflow.store import Store
from aioflow.telemetry.log import Logger

__all__ = (
    "SETTINGS_POLL_SECONDS",
    "AlertSettings",
    "OutboxWorker",
    "Pace",
    "Targets",
    "targets_of",
)

_log = Logger(__name__)

IDLE_SECONDS = 10.0
"""Seconds for which an idle process waits for its next job before it exits."""

_STORE_AGAIN_SECONDS = 1.0
_INTERPRETER_AGAIN_SECONDS = 5.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for concurrent deliveries and for their rate.

    Attributes:
        per_second: Maximum number of deliveries started per second, over all processes.
        timeout_seconds: Timeout of one delivery.
    """

    processes: int = 2
    per_second: float = 100.0
    timeout_seconds: float = 60.0


class OutboxWorker:
    """Delivers this node's callbacks and alerts from the outbox.

    Args:
        restore: Recreates a version's source folder if it is missing.
        on_alert: Called with each alert, once per alert while this process lives.
        needs_values: Whether declared secrets, connections and variables must exist.
        describe: Describes an open decision for a message, with its links.
        public_url: The address of the web page, for links in messages; empty for none.
    """

    def __init__(
        self,
        context: ExecutorContext,
        store: Store,
        *,
        pace: Pace,
        targets: Targets,
        restore: Callable[[VersionRow], Awaitable[None]],
        on_alert: Callable[[Alert], None],
        needs_values: bool = True,
        describe: Callable[[DecisionRow], Asked] = Asked.about,
        public_url: str = "",
    ) -> None:
        self._context = context
        self._pace = pace
        self._on_alert = on_alert
        self._preparing = Preparing(
            store,
            context.tasklog.masks,
            targets,
            restore,
            needs_values=needs_values,
            describe=describe,
            public_url=public_url,
        )
        self._queue = DeliveryQueue()
        self._changed = anyio.Event()
        self._at_work = 0
        self._is_draining = False
        self._next_us = 0
        self._services: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled."""
        async with anyio.create_task_group() as self._services:
            for _ in range(self._pace.processes):
                self._services.start_soon(self._work)
            task_status.started()

    def put(self, effect: DeliverOutbox) -> None:
        """Queue an effect. Its result is reported as ``OutboxDelivered``."""
        self._put(Job(effect))

    def redirect_alerts(self, targets: Targets) -> None:
        """Send alerts to these targets from now on, including alerts that are waiting."""
        self._preparing.targets = targets

    def drain(self) -> None:
        """Start no further deliveries. The next daemon delivers the rest."""
        self._is_draining = True

    async def quiet(self) -> None:
        """Wait until no delivery runs and, unless ``drain`` was called, none is queued."""
        while self._at_work or (self._queue and not self._is_draining):
            await self._changed.wait()

    # ── processing ──────────────────────────────────────────────────────────────────────

    async def _work(self) -> None:
        while True:
            ready = await self._next("")
            while ready is not None:
                ready = await self._serve(ready)

    async def _serve(self, ready: PreparedDelivery) -> PreparedDelivery | None:
        """Run a process for one version. Return the first delivery of another version."""
        waiting: PreparedDelivery | None = ready
        try:
            async with (
                calling(self._context, ready.version, ready.interpreter) as caller,
                anyio.create_task_group() as group,
            ):
                group.start_soon(caller.watch)
                waiting = None
                waiting = await self._call_all(caller, ready)
                group.cancel_scope.cancel()
        except* NoHeadroom:
            await self._context.children.wait_for_headroom()
        except* InterpreterUnusable:
            waiting = None  # deliveries of other interpreters need not wait
            self._again(ready.job, _INTERPRETER_AGAIN_SECONDS, attempts=ready.job.attempts)
        except* OSError as exc:
            _log.error("no callback process can be started", error=str(exc.exceptions))
            await self._context.clock.sleep(_STORE_AGAIN_SECONDS)
        return waiting

    async def _call_all(self, caller: Caller, ready: PreparedDelivery) -> PreparedDelivery | None:
        while True:
            await self._keep_pace()
            self._take_in(ready, await caller.call(ready, self._pace.timeout_seconds))
            if not caller.is_alive:
                return None
            following = None
            with anyio.move_on_after(IDLE_SECONDS):
                following = await self._next(ready.job.effect.kind)
            if following is None or following.version != caller.version:
                return following
            ready = following

    async def _keep_pace(self) -> None:
        clock = self._context.clock
        now = clock.monotonic_us()
        begins_us = max(now, self._next_us)
        self._next_us = begins_us + round(1e6 / self._pace.per_second)
        if begins_us > now:
            await clock.sleep((begins_us - now) / 1e6)

    async def _next(self, like: str) -> PreparedDelivery | None:
        """Return the next delivery, prepared. Wait until there is one."""
        while True:
            job = None if self._is_draining else self._queue.take(like)
            if job is None:
                await self._changed.wait()
                continue
            self._at_work += 1
            ready = None
            with anyio.CancelScope(shield=True):  # else a cancelled job is lost until a restart
                ready = await self._prepare(job)
            if ready is not None:
                return ready

    async def _prepare(self, job: Job) -> PreparedDelivery | None:
        """Prepare a job. Return ``None`` if it is not to be delivered, or cannot be now."""
        is_alert = job.effect.kind == ALERT
        if is_alert and not job.attempts:
            self._on_alert(msgspec.msgpack.decode(job.effect.body, type=Alert))
        try:
            preparing = self._preparing
            ready = await (preparing.alert(job) if is_alert else preparing.callback(job))
        except StoreUnavailable:
            self._again(job, _STORE_AGAIN_SECONDS, attempts=job.attempts)
        except ImpossibleDelivery as exc:
            _log.warning(
                "an outbox entry cannot be processed", kind=job.effect.kind, error=str(exc)
            )
            self._done(job, is_failed=True)
        else:
            if ready is None:
                self._done(job)
            return ready
        return None

    def _take_in(self, ready: PreparedDelivery, called: CallbackReturned) -> None:
        job, failure = ready.job, called.failure
        if failure is None:
            self._done(job)
            return
        facts = {**ready.what, "error": f"{failure.type}: {failure.message}"}
        delay = redelivery_delay(job.attempts) if called.may_pass else None
        if delay is not None:
            _log.warning("a callback failed, retrying", **facts, seconds=delay)
            self._again(job, delay, attempts=job.attempts + 1)
            return
        _log.warning("a callback failed", **facts)
        self._done(job, is_failed=True)

    def _done(self, job: Job, *, is_failed: bool = False) -> None:
        self._at_work -= 1
        self._context.report([OutboxDelivered(job.effect.outbox_no, is_failed)])
        self._tell_of_change()

    def _again(self, job: Job, seconds: float, *, attempts: int) -> None:
        assert self._services is not None  # noqa: S101 - called only by services
        self._at_work -= 1
        self._services.start_soon(self._put_later, Job(job.effect, attempts), seconds)
        self._tell_of_change()

    async def _put_later(self, job: Job, seconds: float) -> None:
        await self._context.clock.sleep(seconds)
        self._put(job)

    def _put(self, job: Job) -> None:
        self._queue.put(job)
        self._tell_of_change()

    def _tell_of_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


SETTINGS_POLL_SECONDS = 5.0
"""Interval between two checks of the settings file."""


def targets_of(settings: Settings) -> Targets:
    """Return the alert targets of the settings."""
    return Targets(
        webhook=settings.alert_webhook,
        webhook_secret=settings.alert_webhook_secret,
        signing_secret=settings.alert_signing_secret,
        email=settings.alert_email,
        sender=settings.alert_sender,
        connection=settings.alert_connection,
    )


class AlertSettings:
    """Reads the settings again when their file changes, and reports changed alert targets.

    An invalid file changes nothing; the log says what is wrong with it.

    Args:
        settings: The settings read when the daemon started.
        redirect: Called with the new targets.
    """

    def __init__(
        self, settings: Settings, clock: Clock, redirect: Callable[[Targets], None]
    ) -> None:
        self._home = settings.home
        self._targets = targets_of(settings)
        self._clock = clock
        self._redirect = redirect

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Check the file until cancelled."""
        file = self._home / FILE_NAME
        known = await in_thread(_file_stamp, file)
        task_status.started()
        while True:
            await self._clock.sleep(SETTINGS_POLL_SECONDS)
            stamp = await in_thread(_file_stamp, file)
            if stamp != known:
                known = stamp
                await self._read()

    async def _read(self) -> None:
        try:
            settings = await in_thread(Settings.read, self._home)
        except SettingsError as exc:
            _log.error("the settings are invalid: the alert targets are unchanged", error=str(exc))
            return
        targets = targets_of(settings)
        if targets != self._targets:
            self._targets = targets
            self._redirect(targets)
            _log.info("alert targets were reloaded from the settings")


def _file_stamp(file: Path) -> tuple[int, int, int]:
    """Return a fingerprint that changes when the file is written or replaced; zeros if missing."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size
