"""Permissions of every route for every kind of caller. The routes are taken from the router."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Route

from aioflow.model.access import HOME, Actor, Role
from aioflow.web.app import create_app
from aioflow.web.guard import EXEMPT, OPEN
from aioflow.web.permissions import check_routes, each_route, permission_of
from aioflow.web.static import router as page
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, FAN, ask, node

TOKEN = Token("t" * 43)
JSON = {"content-type": "application/json"}
BY = Actor(name=HOME, role=Role.ADMIN)
PASSWORD = "a horse, a battery"

VALUES = {
    "dag_id": "chain",
    "run_id": "r1",
    "task_id": "first",
    "trigger_id": "7",
    "backfill_id": "7",
    "decision_id": "7",
    "session_id": "7",
    "token_id": "7",
    "name:path": "some",
    "name": "some",
    "class_path": "some:Class",
}


class Place(NamedTuple):
    method: str
    path: str
    role: Role | None
    of: str | None
    is_own: bool

    @property
    def target(self):
        path = self.path
        for name, value in VALUES.items():
            path = path.replace(f"{{{name}}}", value)
        return path


def places(app):
    found = []
    for route in cast("Iterator[APIRoute]", each_route(app.routes)):
        permission = permission_of(route)
        found.extend(
            Place(method, route.path, permission.role, permission.of, permission.is_own)
            for method in sorted(route.methods or ())
        )
    return found


@asynccontextmanager
async def app(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN, FAN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="r1")
        guard = create_app(n.api, TOKEN)
        yield n, guard, cast(Any, guard)._app


async def token(n, name, role, **more):
    made = await n.api.access.create_token(BY, name, role, **more)
    return {"authorization": f"Bearer {made['token']}", **JSON}, made["token_id"]


async def statuses(web, found, headers):
    """Request every route, those that delete last. Return the statuses."""
    order = sorted(found, key=lambda place: place.method == "DELETE")
    answers = {}
    for place in order:
        body = b"" if place.method == "GET" else b"{}"
        answer = await ask(web, place.method, place.target, headers=headers, body=body)
        answers[place] = answer.status
    return answers


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_an_unauthenticated_client_gets_only_health_and_the_login(tmp_path):
    async with app(tmp_path) as (_, web, inner):
        found = places(inner)
        answers = await statuses(web, found, JSON)

    of_page = {
        (method, route.path)
        for route in page.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    open_to_all = {(place.method, place.path) for place in found if place.role is None}
    assert open_to_all == {("GET", path) for path in EXEMPT} | OPEN | of_page
    is_open = {p: p.role is None and p.path != "/static/{name}" for p in found}  # no such file
    wrong = {p: status for p, status in answers.items() if (status == 401) == is_open[p]}
    assert wrong == {}
    assert len(found) > 50


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("role", list(Role), ids=lambda role: role.label)
async def test_each_role_gets_as_far_as_each_route_says(tmp_path, role):
    async with app(tmp_path) as (n, web, inner):
        headers, _ = await token(n, "one", role.label)
        answers = await statuses(web, places(inner), headers)

    for place, status in answers.items():
        if place.role is not None:
            assert status != 401, place
            assert (status == 403) == (role < place.role), (place, status)
        assert status < 500, (place, status)


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_token_that_is_revoked_or_expired_is_none(tmp_path):
    async with app(tmp_path) as (n, web, inner):
        revoked, number = await token(n, "revoked", "admin")
        await n.api.access.revoke_token(BY, number)
        expired, number = await token(n, "expired", "admin", expires_at="2100-01-01")
        row = n.api.access.auth_cache._tokens[number]
        n.api.access.auth_cache._tokens[number] = type(row)(
            **{name: getattr(row, name) for name in row.__struct_fields__} | {"expires_at": 1}
        )
        found = [place for place in places(inner) if place.role is not None]
        answers = [await statuses(web, found, headers) for headers in (revoked, expired)]

    assert [set(each.values()) for each in answers] == [{401}, {401}]


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_token_for_another_dag_gets_nowhere_and_one_for_this_dag_to_this_dag(tmp_path):
    async with app(tmp_path) as (n, web, inner):
        found = [place for place in places(inner) if place.role is not None]
        for name in ("chai", "chainn", "Chain", "fan", "chain "):
            headers, _ = await token(n, f"n{len(name)}{name.strip()}", "admin", scopes=[name])
            answers = await statuses(web, found, headers)
            assert {p.path for p, status in answers.items() if status != 403} == {
                "/api/v1/me",
                "/api/v1/sessions",
                "/api/v1/sessions/current",
            }, name
        headers, _ = await token(n, "own", "admin", scopes=["chain"])
        reading = [place for place in found if place.method == "GET"]
        own = await statuses(web, reading, headers)
        listed = await ask(web, "GET", "/api/v1/runs?dag=chain", headers=headers)
        others = await ask(web, "GET", "/api/v1/runs?dag=fan", headers=headers)
        both = await ask(web, "GET", "/api/v1/runs?dag=chain&dag=fan", headers=headers)
        unknown = await ask(web, "GET", "/api/v1/runs/nobody", headers=headers)

    assert {p.of for p, status in own.items() if status == 200} == {"dag", "run", None}
    assert all(p.is_own for p, status in own.items() if status == 200 and p.of is None)
    assert (listed.status, others.status, both.status, unknown.status) == (200, 403, 403, 403)


async def test_a_route_that_declares_nothing_is_not_served():
    silent = FastAPI(openapi_url=None)

    @silent.get("/quiet")
    async def quiet() -> None:
        return None

    with pytest.raises(RuntimeError, match="/quiet declares no permission"):
        check_routes(silent.routes)
    with pytest.raises(RuntimeError, match="/plain declares no permission"):
        check_routes([Route("/plain", quiet)])


METHODS = ("GET", "HEAD", "OPTIONS", "TRACE", "POST")
TRICKS = (
    "/run/health",
    "/x/ready",
    "/anything/configs",
    "//api/v1/dags",
    "/api/../health/live",
    "/api/%2e%2e/health/live",
    "/health/live/",
    "/health/live/.",
    "/health/live;x",
    "/health/live ",
    "/HEALTH/live",
    "/health/live\x00",
    "/health/ready/x",
    "/api/v1/sessions/",
    "/static/x",
    "/metrics",
    "/api/v1/openapi.json",
    "/api/v1/stream",
    "http://127.0.0.1:8793/health/live",
)


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_no_trick_with_a_path_or_a_method_gets_past_the_guard(tmp_path):
    headers = {"x-http-method-override": "GET"}
    async with node(tmp_path) as n:
        web = create_app(n.api, TOKEN)
        statuses = {
            (method, path): (await ask(web, method, path, headers=headers)).status
            for method in METHODS
            for path in TRICKS
        }

    assert {trick: s for trick, s in statuses.items() if s not in {400, 401}} == {}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_an_address_of_the_page_returns_the_page_to_any_client_and_nothing_else(
    tmp_path, method
):
    async with node(tmp_path) as n:
        web = create_app(n.api, TOKEN)
        page = await ask(web, "GET", "/")
        answer = await ask(web, method, "/runs/health", headers={"x-http-method-override": "GET"})

    assert answer.status == {"GET": 200, "HEAD": 200, "POST": 401}.get(method, 405)
    assert answer.body == page.body or answer.status != 200


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_every_change_leaves_a_line_of_the_audit_done_or_refused(tmp_path):
    async with app(tmp_path) as (n, web, inner):
        headers, _ = await token(n, "one", "admin")
        for place in places(inner):
            if place.method == "GET" or place.role is None:
                continue
            before = len(await n.api.access.list_audit(limit=1000))
            answer = await ask(web, place.method, place.target, headers=headers, body=b"{}")
            await n.api.access._write()
            lines = await n.api.access.list_audit(limit=1000)
            done = answer.status < 400
            assert len(lines) > before, (place, answer.status)
            assert lines[0].actor == "token:one", place
            assert lines[0].outcome == ("done" if done else "refused"), (place, lines[0])
            assert done or lines[0].code == answer.json["code"]
