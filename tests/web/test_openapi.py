"""The OpenAPI document is complete, and matches the API."""

from __future__ import annotations

from contextlib import asynccontextmanager

from aioflow.web.app import create_app
from aioflow.web.guard import Trusted
from aioflow.web.openapi import ANSWERS, TEXTS
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, ask, node


@asynccontextmanager
async def app(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        yield n, Trusted(create_app(n.api, Token("t" * 43)))


async def test_every_route_says_what_it_answers(tmp_path):
    async with app(tmp_path) as (_, web):
        described = (await ask(web, "GET", "/api/v1/openapi.json")).json

    operations = [one for methods in described["paths"].values() for one in methods.values()]
    names = [one["operationId"] for one in operations]
    assert len(names) == len(set(names))
    assert set(names) == set(ANSWERS) | set(TEXTS)
    assert all(one["description"] for one in operations)
    assert all("default" in one["responses"] for one in operations)
    references = set(_references(described))
    assert references <= {
        f"#/components/schemas/{name}" for name in described["components"]["schemas"]
    }


def _references(part):
    if isinstance(part, dict):
        yield from ([part["$ref"]] if isinstance(part.get("$ref"), str) else [])
        for inner in part.values():
            yield from _references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from _references(inner)


async def test_the_docs_page_shows_every_route_and_loads_nothing_from_elsewhere(tmp_path):
    async with app(tmp_path) as (_, web):
        described = (await ask(web, "GET", "/api/v1/openapi.json")).json
        page = await ask(web, "GET", "/docs")
        style = await ask(web, "GET", "/docs/style.css")

    text = page.body.decode()
    assert page.headers["content-type"].startswith("text/html")
    assert all(path in text for path in described["paths"])
    assert "<script" not in text
    assert "http:" not in text
    assert "https:" not in text
    assert style.headers["content-type"].startswith("text/css")
