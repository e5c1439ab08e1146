"""The targets of alerts, read again from the settings file while the daemon runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.errors import SettingsError
from aioflow.notifications import Targets
from aioflow.settings import FILE_NAME, Settings
from aioflow.telemetry.log import Logger

__all__ = ("POLL_SECONDS", "AlertSettings", "targets_of")

POLL_SECONDS = 5.0
"""Interval between two checks of the settings file."""

_log = Logger(__name__)


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
    """Reads the settings again when their file changes, and passes on the alert targets.

    An invalid file changes nothing; the log says what is wrong with it.

    Args:
        settings: The settings read when the daemon started.
        redirect: Called with new targets.
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
        known = await in_thread(_stamp, file)
        task_status.started()
        while True:
            await self._clock.sleep(POLL_SECONDS)
            stamp = await in_thread(_stamp, file)
            if stamp != known:
                known = stamp
                await self._read()

    async def _read(self) -> None:
        try:
            settings = await in_thread(Settings.read, self._home)
        except SettingsError as exc:
            _log.error("the settings are wrong: alerts go where they went", error=str(exc))
            return
        targets = targets_of(settings)
        if targets != self._targets:
            self._targets = targets
            self._redirect(targets)
            _log.info("alerts go where the settings file says now")


def _stamp(file: Path) -> tuple[int, int, int]:
    """Return a fingerprint that changes when the file is written or replaced; zeros without one."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size
