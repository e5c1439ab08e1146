"""Read-only access to the database of a home without a running daemon."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from aioflow.clock import SystemClock
from aioflow.crypto import KEY_BYTES, Vault, read_keys
from aioflow.errors import DaemonAway, SettingsError
from aioflow.settings import Settings
from aioflow.store import Store, open_store
from aioflow.telemetry.task_log import TaskLog

__all__ = ("ask_database", "opened")


def ask_database(home: Path, question: Callable[[Any], Awaitable[Any]]) -> Any:
    """Return the result of an ``Api`` call as JSON-compatible data; bytes are returned unchanged.

    Raises:
        DaemonAway: If there is no database yet.
    """

    async def ask() -> Any:
        settings = Settings.of_database(home)
        async with opened(settings) as store:
            from aioflow.api import Api  # slow to import, so only if there is a database

            tasklog = TaskLog(settings.logs_folder, SystemClock())
            answer = await question(Api.offline(store, tasklog, home=home))
        return answer if isinstance(answer, bytes) else msgspec.to_builtins(answer)

    return anyio.run(ask)


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Store]:
    """Open the database of a home for reading.

    Raises:
        DaemonAway: If there is no database yet.
    """
    scheme, _, path = settings.db.partition(":///")
    if scheme == "sqlite" and not await anyio.Path(path).exists():
        raise DaemonAway(str(settings.home), settings.shown_db)
    vault = await anyio.to_thread.run_sync(_vault, settings.key_file)
    async with open_store(settings.db, vault, exclusive=False) as store:
        yield store


def _vault(path: Path) -> Vault:
    """Return a vault with the keys of the home, or with a random key if there is no key file.

    A reader can decrypt as much as the daemon, but must not create a key file.
    """
    try:
        return Vault(read_keys(path))
    except SettingsError:
        return Vault([os.urandom(KEY_BYTES)])
