"""Limits on the memory for logs that clients request but do not read."""

from __future__ import annotations

import tracemalloc
from contextlib import asynccontextmanager

import anyio
import pytest

from aioflow.executors.worker_process import log_key
from aioflow.model.access import HOME, Actor, Role
from aioflow.web import limits
from aioflow.web.app import create_app
from aioflow.web.limits import (
    MAX_RESPONSE_BYTES,
    MAX_RESPONSE_BYTES_PER_CALLER,
    BudgetShare,
    ResponseBudget,
)
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, ask, node

TOKEN = Token("t" * 43)
BEARER = {"authorization": f"Bearer {TOKEN.secret}"}
BY = Actor(name=HOME, role=Role.ADMIN)
LOG = "/api/v1/runs/r/tasks/first/logs"
MIB = 1024 * 1024
OTHERS_MIB = 12
"""Memory that the rest of the daemon may use: a piece per connection, requests, tasks."""


# ── counting ────────────────────────────────────────────────────────────────────────────


async def test_one_who_asks_may_hold_so_much_and_all_together_so_much():
    counted = ResponseBudget(in_all=25, of_one=10)

    for who, size in (("ada", 10), ("ben", 10)):
        assert await counted.take(who, size, patience_seconds=0)
    of_ada = await counted.take("ada", 1, patience_seconds=0)
    of_cid = await counted.take("cid", 6, patience_seconds=0)
    rest = await counted.take("cid", 5, patience_seconds=0)

    assert (of_ada, of_cid) == (None, None)
    assert rest is not None
    assert counted.total == 25


async def test_released_bytes_go_to_a_waiting_client():
    counted = ResponseBudget(in_all=10, of_one=10)
    first = await counted.take("ada", 10, patience_seconds=0)
    got = []

    async def wait():
        got.append(await counted.take("ben", 4, patience_seconds=60))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        first.resize(7)
        await anyio.wait_all_tasks_blocked()
        assert got == []
        first.resize(0)

    (share,) = got
    assert isinstance(share, BudgetShare)
    assert counted.total == 4
    share.resize(0)
    assert counted.total == 0


# ── over the API ────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def app(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="r")
        start = (await n.effects.next_start()).start
        log = n.api._tasklog.open(log_key(start))
        for _ in range(9):
            await log.write(b"a line that is long enough\n" * (MIB // 27))
        with anyio.fail_after(60):
            while n.api._tasklog.written_bytes < 9 * 27 * (MIB // 27):
                await anyio.sleep(0.01)
        yield n, create_app(n.api, TOKEN)


async def viewer(n, name):
    made = await n.api.access.create_token(BY, name, "viewer")
    return {"authorization": f"Bearer {made['token']}"}


class Idle:
    """Clients that request a log and read nothing. It records which of them got a response."""

    def __init__(self, web):
        self._web = web
        self.statuses = []

    async def ask(self, headers):
        own = []

        async def send(message):
            if message["type"] == "http.response.start":
                own.append(message["status"])
                self.statuses.append(message["status"])
            elif own == [200]:
                await anyio.sleep_forever()

        async def receive():
            await anyio.sleep_forever()

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": LOG,
            "raw_path": LOG.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1")]
            + [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 8793),
        }
        await self._web(scope, receive, send)


@pytest.mark.parametrize(
    ("names", "connections", "limit"),
    [
        pytest.param(["ada"], 200, MAX_RESPONSE_BYTES_PER_CALLER, id="one-who-asks-200-times"),
        pytest.param(
            [f"user{n}" for n in range(8)], 25, MAX_RESPONSE_BYTES, id="eight-who-ask-25-times"
        ),
    ],
)
async def test_bytes_of_unread_logs_are_bounded(tmp_path, monkeypatch, names, connections, limit):
    monkeypatch.setattr(limits, "_BUDGET_WAIT_SECONDS", 0.2)
    async with app(tmp_path) as (n, web), anyio.create_task_group() as group:
        idle = Idle(web)
        known = [await viewer(n, name) for name in names]
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for headers in known:
                for _ in range(connections):
                    group.start_soon(idle.ask, headers)
            with anyio.fail_after(120):
                while len(idle.statuses) < len(names) * connections:
                    await anyio.sleep(0.01)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        group.cancel_scope.cancel()

    answered = idle.statuses.count(200)
    assert answered * 4 * MIB == limit
    assert set(idle.statuses) <= {200, 429, 503}
    assert after - before < limit + OTHERS_MIB * MIB
    assert peak - before < limit + (OTHERS_MIB + 8) * MIB  # the piece that is being read


async def test_a_client_that_reads_one_piece_after_the_other_gets_all_of_it(tmp_path):
    async with app(tmp_path) as (n, web):
        headers, data = await viewer(n, "ada"), b""
        while True:
            answer = await ask(web, "GET", f"{LOG}?offset={len(data)}", headers=headers)
            assert answer.status == 200
            assert int(answer.headers["content-length"]) == len(answer.body)
            if not answer.body:
                break
            data += answer.body
            assert answer.headers["x-log-end"] == str(len(data))

    assert data == b"a line that is long enough\n" * (MIB // 27) * 9


async def test_a_client_that_reads_nothing_blocks_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_BUDGET_WAIT_SECONDS", 0.1)
    async with app(tmp_path) as (n, web), anyio.create_task_group() as group:
        idle, ada, ben = Idle(web), await viewer(n, "ada"), await viewer(n, "ben")
        for _ in range(4):
            group.start_soon(idle.ask, ada)
        while len(idle.statuses) < 4:
            await anyio.sleep(0.01)
        refused = await ask(web, "GET", LOG, headers=ada)
        of_another = await ask(web, "GET", LOG, headers=ben)
        unknown = await ask(web, "GET", LOG.replace("/r/", "/x/"), headers=ada)
        group.cancel_scope.cancel()

    assert (refused.status, refused.json["code"]) == (429, "web.too_much_held")
    assert int(refused.headers["retry-after"]) > 0
    assert (of_another.status, len(of_another.body)) == (200, 4 * MIB)
    assert unknown.status == 404
