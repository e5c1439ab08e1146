"""The code of versions that may still run is restored from the database, even by a standby."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import anyio
from msgspec.structs import replace

from aioflow.catalog.snapshot import Snapshots
from aioflow.errors import StoreUnavailable
from aioflow.maintenance.code_restore import KEEP_SECONDS, keep_restoring
from aioflow.model.rows import VersionRow
from aioflow.store import Store
from tests.store.samples import VERSION
from tests.test_takeover import Clock

SOURCES = {"flows.py": b"import aioflow\n"}


class Versions:
    """The versions in a database that may be unavailable."""

    def __init__(self) -> None:
        self.rows: dict[str, VersionRow] = {}
        self.is_away = False
        self.asked = 0

    def add(self, version: str) -> None:
        self.rows[version] = replace(VERSION, version=version, sources=SOURCES)

    async def list_needed_version_names(self) -> list[str]:
        self.asked += 1
        if self.is_away:
            raise StoreUnavailable("away")
        return sorted(self.rows)

    async def find_version(self, version: str) -> VersionRow | None:
        return self.rows.get(version)


async def test_a_standby_keeps_the_code_that_it_would_need(tmp_path: Path) -> None:
    versions, clock = Versions(), Clock()
    versions.add("ab12")
    clock.plans = [
        (KEEP_SECONDS, lambda: setattr(versions, "is_away", True)),
        (2 * KEEP_SECONDS, lambda: setattr(versions, "is_away", False)),
        (2 * KEEP_SECONDS, lambda: versions.add("cd34")),
    ]
    async with anyio.create_task_group() as group:
        group.start_soon(keep_restoring, cast(Store, versions), Snapshots(tmp_path), clock)
        while not (tmp_path / "cd34").exists():
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()

    assert (tmp_path / "ab12" / "flows.py").read_bytes() == SOURCES["flows.py"]
    assert versions.asked >= 3
