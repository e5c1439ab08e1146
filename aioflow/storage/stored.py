"""Results and logs that are stored outside the home: opens their services from the settings."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol, Self, TypeAlias

import anyio
from anyio.abc import TaskStatus

from aioflow._threads import in_thread
from aioflow.clock import Clock
from aioflow.errors import SettingsError, StorageUnavailable, StoreUnavailable
from aioflow.model.ids import TaskNo
from aioflow.model.rows import ResultRow
from aioflow.settings import Settings
from aioflow.settings.home import own_identity
from aioflow.storage.copies import ResultCopies, discard_after_reboot
from aioflow.storage.log_parts import LogParts
from aioflow.storage.log_uploader import LogUploader
from aioflow.storage.objects import ObjectStore, open_objects
from aioflow.storage.result_fetcher import ResultFetcher
from aioflow.storage.result_uploader import ReportSink, ResultUploader
from aioflow.storage.results import ChunkStore, DatabaseResults, ObjectResults, ResultStorage
from aioflow.telemetry.log import Logger
from aioflow.telemetry.task_log import TaskLog

__all__ = ("Mark", "StoredLogs", "StoredResults", "claim_storage")

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 15.0  # seconds between two attempts to use a storage

_log = Logger(__name__)

Mark: TypeAlias = Callable[[str], Awaitable[str]]
"""Returns the stored mark. If there is none yet, the argument becomes the mark."""


async def claim_storage(of_database: Mark, of_storage: Mark, clock: Clock, setting: str) -> None:
    """Wait, however long, until it is known that no other database uses a storage.

    Args:
        of_database: See ``Store.mark_storage``.
        of_storage: See ``ResultStorage.owner``.
        setting: The setting that names the storage, for messages.

    Raises:
        SettingsError: If another database uses the storage.
    """
    delay = _FIRST_DELAY
    while True:
        try:
            mark = await of_database(secrets.token_hex(16))
            if await of_storage(mark) != mark:
                raise SettingsError(
                    f"{setting}: another database is stored there; use another prefix"
                )
        except (StorageUnavailable, StoreUnavailable) as exc:
            _log.warning("nothing can be stored yet", setting=setting, error=str(exc))
        else:
            return
        await clock.sleep(delay)
        delay = min(2 * delay, _LONGEST_DELAY)


class MarkedStore(ChunkStore, Protocol):
    """The methods of the database that are used here; see ``store.Store``."""

    async def mark_storage(self, proposal: str) -> str:
        """See ``Store``."""


class StoredResults:
    """Results that are stored outside the home, and their copies on this machine.

    Attributes:
        storage: Where the results are stored.
        copies: The copies.
        uploader: Stores results before their reports are passed on.
        fetcher: Copies results for processes and the page.
    """

    def __init__(
        self,
        storage: ResultStorage,
        settings: Settings,
        report: ReportSink,
        find: Callable[[TaskNo], Awaitable[ResultRow | None]],
        mark: Mark,
        clock: Clock,
    ) -> None:
        home = settings.results_folder
        self._mark = mark
        self._clock = clock
        self.storage = storage
        self.copies = ResultCopies(settings.result_copies_folder, settings.results_cache_bytes)
        self.uploader = ResultUploader(storage, home, self.copies, report, clock)
        self.fetcher = ResultFetcher(storage, self.copies, home, find, clock)

    @classmethod
    def open(
        cls,
        settings: Settings,
        report: ReportSink,
        find: Callable[[TaskNo], Awaitable[ResultRow | None]],
        store: MarkedStore,
        clock: Clock,
    ) -> Self | None:
        """Open the storage that the settings name. Return ``None`` if that is the home.

        Args:
            report: Called with the reports that may enter the inbox.
            find: Looks up the row of a task's result.
            store: The database.

        Raises:
            SettingsError: If the URL is not valid, or a package is missing.
        """
        if not settings.results_url:
            return None
        storage: ResultStorage
        if settings.results_url == "db":
            storage = DatabaseResults(store, clock)
        else:
            storage = ObjectResults(open_objects(settings.results_url, "results.url"))
        return cls(storage, settings, report, find, store.mark_storage, clock)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Upload and fetch until cancelled. First check that no other database uses the storage.

        Raises:
            SettingsError: If another database stores its results there.
        """
        await in_thread(discard_after_reboot, self.copies.folder)
        async with anyio.create_task_group() as group:
            await group.start(self.fetcher.run)
            await group.start(self.uploader.run)
            task_status.started()
            await claim_storage(self._mark, self.storage.owner, self._clock, "results.url")
            self.uploader.may_store = True


class StoredLogs:
    """Logs that are stored outside the home.

    Args:
        tasklog: From now on, it also reads logs that other homes have stored.
        mark: Returns the mark of the database; see ``Store.mark_storage``.
    """

    def __init__(
        self, objects: ObjectStore, settings: Settings, tasklog: TaskLog, mark: Mark, clock: Clock
    ) -> None:
        home, folder = own_identity(settings.home), settings.logs_folder
        self._objects = objects
        self._copies = settings.log_copies_folder
        self._mark = mark
        self._clock = clock
        parts = LogParts(objects, settings.log_copies_folder, home, clock)
        self._uploader = LogUploader(objects, settings.log_url, parts, tasklog, folder, home, clock)
        tasklog.earlier = parts

    @classmethod
    def open(cls, settings: Settings, tasklog: TaskLog, mark: Mark, clock: Clock) -> Self | None:
        """Open the store that the settings name. Return ``None`` if logs stay in the home.

        Raises:
            SettingsError: If the URL is not valid, or a package is missing.
        """
        if not settings.log_url:
            return None
        return cls(open_objects(settings.log_url, "log.url"), settings, tasklog, mark, clock)

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Store output until cancelled. First check that no other database uses the store.

        Raises:
            SettingsError: If another database uses the store.
        """
        await in_thread(discard_after_reboot, self._copies)
        task_status.started()
        await claim_storage(self._mark, self._objects.owner, self._clock, "log.url")
        await self._uploader.run()
