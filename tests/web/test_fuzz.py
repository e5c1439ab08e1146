"""Random requests: no response is a defect, and each matches the OpenAPI document."""

from __future__ import annotations

import anyio.to_thread
import pytest

from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.tokens import Token
from tests.web.fuzz import ask_everything
from tests.web.node import CHAIN, FAN, ask, node


@pytest.mark.nightly
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_requests_for_every_third_path_are_answered_as_described(tmp_path):
    ended = await fuzz(tmp_path, 1, every=3)

    assert ended["all"] >= 20
    assert ended["2xx"] >= 10
    assert ended["4xx"] >= 10


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_1500_requests_of_all_kinds_are_answered_as_described(tmp_path):
    ended = await fuzz(tmp_path, 1_500)

    assert ended["all"] >= 1_200
    assert ended["2xx"] >= 200
    assert ended["4xx"] >= 200


async def fuzz(home, count: int, *, every: int = 1):
    async with node(home) as n:
        n.define(CHAIN, FAN)
        await n.api.set_paused("chain", paused=False)
        await n.api.set_pool("tight", 1)
        await n.api.trigger("chain", run_id="r")
        await n.succeed({"a": 1})
        web = Trusted(create_app(n.api, Token("t" * 43)))
        described = (await ask(web, "GET", "/api/v1/openapi.json")).json
        described["paths"] = dict(list(described["paths"].items())[::every])
        return await anyio.to_thread.run_sync(ask_everything, web, described, count)
