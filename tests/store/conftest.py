"""An open store on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from aioflow.store import Store, open_store
from tests.store.samples import VAULT


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """Return a claimed store on an empty database."""
    async with open_store(store_url, VAULT) as opened:
        await opened.claim()
        yield opened
