"""20,000 valid and invalid requests generated from the OpenAPI document."""

from __future__ import annotations

import pytest

from tests.campaigns.record import record
from tests.web.test_fuzz import fuzz

REQUESTS = 20_000


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_20000_requests_are_answered_as_described_and_none_by_a_defect(tmp_path):
    ended = await fuzz(tmp_path, 2 * REQUESTS)  # routes without parameters take few

    record("requests", **dict(sorted(ended.items())))
    assert ended["all"] >= REQUESTS
