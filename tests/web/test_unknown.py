"""Unknown and impossible names in the paths of all routes, through the router."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, cast

import pytest
from fastapi.routing import APIRoute

from aioflow.web.app import create_app
from aioflow.web.permissions import each_route
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, ask, node

TOKEN = Token("t" * 43)
HEADERS = {"authorization": f"Bearer {TOKEN.secret}", "content-type": "application/json"}

NUMBERS = {
    *("audit_id", "backfill_id", "decision_id", "event_id", "node"),
    *("session_id", "token_id", "trigger_id"),
}
NO_NUMBERS = ("x", "-1", "1.5", "99999999999999999999", "7;drop", "%00", "nan")
NO_NAMES = ("%00", "a%0Ab", "n" * 3_000, "%F0%9F%92%A9", "..%2F..", "' OR 1=1", "{{7*7}}")

MAKES = {
    ("PUT", "/api/v1/pools/{name}"),
    ("PUT", "/api/v1/secrets/{name:path}"),
    ("PUT", "/api/v1/connections/{name:path}"),
    ("PUT", "/api/v1/variables/{name:path}"),
    ("POST", "/api/v1/events/{name:path}"),
}
"""Routes for which the named object need not exist yet."""

ANY_POOL = {
    ("DELETE", "/api/v1/pools/{name}"),
    ("GET", "/api/v1/pools/{name}/holders"),
    ("GET", "/api/v1/pools/{name}/usage"),
    ("GET", "/api/v1/pools/{name}/waiters"),
}
"""Pool routes: a pool without a limit exists as well, and need not be created first."""

BODIES = {
    ("POST", "/api/v1/dags/{dag_id}/backfills"): b'{"from": "2026-01-01", "to": "2026-01-02"}',
    ("POST", "/api/v1/decisions/{decision_id}/answer"): b'{"answer": true}',
    ("POST", "/api/v1/runs/{run_id}/mark"): b'{"state": "success"}',
    ("PUT", "/api/v1/runs/{run_id}/note"): b'{"text": "seen"}',
    ("PUT", "/api/v1/runs/{run_id}/tasks/{task_id}/note"): b'{"text": "seen"}',
}


def routes(app: Any) -> list[tuple[str, str]]:
    """Return the method and path of each route with a name in its path."""
    found = cast("Iterator[APIRoute]", each_route(app._app.routes))
    return sorted(
        (method, route.path)
        for route in found
        for method in route.methods or ()
        if route.path.startswith("/api/") and "{" in route.path
    )


def filled(path: str, number: str, name: str) -> str:
    """Return the address of a route with these values in its path."""
    return re.sub(r"{(\w+)(:path)?}", lambda part: number if part[1] in NUMBERS else name, path)


async def asked(app: Any, route: tuple[str, str], *, number: str = "7", name: str = "nothing"):
    method, path = route
    body = b"" if method == "GET" else BODIES.get(route, b"{}")
    return await ask(app, method, filled(path, number, name), headers=HEADERS, body=body)


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_unknown_names_get_404_and_a_specific_code(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        app = create_app(n.api, TOKEN)
        found = routes(app)
        answers = {route: await asked(app, route) for route in found}

    assert len(found) > 40
    for route, answer in answers.items():
        if route in ANY_POOL:
            assert answer.status == 200, route
        elif route not in MAKES:
            assert answer.status == 404, (route, answer.body)
            assert answer.json["code"].startswith("request.unknown_"), (route, answer.json)


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_task_that_its_run_does_not_have_is_as_unknown_as_a_run(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="nothing")
        app = create_app(n.api, TOKEN)
        of_tasks = [route for route in routes(app) if "{task_id}" in route[1]]
        answers = [await asked(app, route) for route in of_tasks]

    assert [(answer.status, answer.json["code"]) for answer in answers] == [
        (404, "request.unknown_task")
    ] * len(of_tasks)
    assert len(of_tasks) == 9


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_impossible_numbers_and_names_are_bad_requests_and_never_defects(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        app = create_app(n.api, TOKEN)
        found = routes(app)
        numbers = {
            (route, text): await asked(app, route, number=text)
            for route in found
            for text in NO_NUMBERS
            if any(f"{{{name}}}" in route[1] for name in NUMBERS)
        }
        names = {
            (route, text): await asked(app, route, name=text)
            for route in found
            for text in NO_NAMES
        }

    assert {answer.status for answer in numbers.values()} == {422}
    for place, answer in names.items():
        known = place[0] in ANY_POOL or place[0] in MAKES
        assert answer.status in ({200, 201, 404, 422, 400} if known else {404, 422, 400}), place
        assert answer.status < 400 or answer.json["code"], place
