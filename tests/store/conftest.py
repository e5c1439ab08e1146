"""Fixtures of store tests, for each database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aioflow.store import Store, open_store
from tests.databases import DATABASES
from tests.store.samples import VAULT


@pytest.fixture(params=DATABASES)
def empty_store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database that was never opened, for each kind of database in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/aioflow.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a database without any row of ours, for each kind of database in turn."""
    url: str = request.getfixturevalue(f"migrated_{request.param}_url")
    return url


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """Return a claimed store on an empty database."""
    async with open_store(store_url, VAULT) as opened:
        await opened.claim()
        yield opened
