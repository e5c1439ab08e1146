"""Responses to requests that are in flight when the daemon stops."""

from __future__ import annotations

import logging
import socket
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest
import structlog.testing

from aioflow import web
from aioflow.errors import DaemonStopping, StoreUnavailable
from aioflow.protocol.inputs import Drain
from aioflow.settings import Settings
from aioflow.web import server
from aioflow.web.app import create_app
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, ask, node

TOKEN = Token("t" * 43)
BEARER = {"authorization": f"Bearer {TOKEN.secret}"}
JSON = {"content-type": "application/json"}


class Away:
    """A database that accepts no more commits."""

    def __init__(self, store):
        self._store = store
        self.is_asked = anyio.Event()

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def commit(self, batch):
        self.is_asked.set()
        raise StoreUnavailable("it is away")


async def test_pending_requests_fail_at_once_when_the_engine_ends(tmp_path):
    told = {}

    async def change(app):
        told["answer"] = await ask(
            app, "POST", "/api/v1/dags/chain/runs", headers=BEARER | JSON, body=b"{}"
        )

    async with anyio.create_task_group() as group, node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        app = create_app(n.api, TOKEN)
        n.engine._store = away = Away(n.store)
        group.start_soon(change, app)
        await away.is_asked.wait()
    answer = told["answer"]
    assert (answer.status, answer.json["code"]) == (503, "daemon.stopping")
    assert answer.headers["retry-after"] == "5"


async def test_an_ended_engine_is_not_reported_as_an_unavailable_database(tmp_path):
    async with node(tmp_path) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="r")
        app = create_app(n.api, TOKEN)
        n.engine._pending_requests.end()  # as the circle does, whatever has ended it
        shown = await ask(app, "GET", "/api/v1/runs/r", headers=BEARER)
        why = await ask(app, "GET", "/api/v1/runs/r/why", headers=BEARER)
        with pytest.raises(DaemonStopping):
            await n.api.trigger("chain")

    assert [(one.status, one.json["code"]) for one in (shown, why)] == [
        (503, "daemon.stopping")
    ] * 2


async def test_tasks_that_wait_for_a_slot_of_a_draining_daemon_wait_for_its_next_start(tmp_path):
    async with node(tmp_path, cpu_slots=1) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        await n.api.trigger("chain", run_id="runs")
        await n.effects.next_start()
        n.engine.report([Drain()])
        await n.api.trigger("chain", run_id="waits")
        app = create_app(n.api, TOKEN)
        shown = await ask(app, "GET", "/api/v1/runs/waits", headers=BEARER)

    waits = shown.json["tasks"][0]["waiting_on"]
    assert (waits["kind"], "is stopping" in waits["detail"]) == ("slot", True)


# ── over a socket ───────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def served(home):
    async with node(home) as n:
        n.define(CHAIN)
        await n.api.set_paused("chain", paused=False)
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            settings = Settings.read(home, {"web.port": 0})
            url = urlsplit(await group.start(web.serve, n.api, settings, stop))
            yield n, url, stop


def request_of(url, head, *headers):
    token = url.query.removeprefix("token=")
    lines = (head, "Host: 127.0.0.1", f"Authorization: Bearer {token}", *headers)
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_client_that_hangs_when_the_daemon_ends_gets_a_response_and_one_log_line(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(server, "_GRACE_SECONDS", 0.3)
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as lines:
        async with served(tmp_path) as (_, url, stop):
            # The head of a change without its body. The server waits for the body for half a
            # minute.
            head = request_of(
                url,
                "POST /api/v1/dags/chain/runs HTTP/1.1",
                "Content-Type: application/json",
                "Content-Length: 10",
            )
            client = await anyio.to_thread.run_sync(
                socket.create_connection, (url.hostname, url.port), 10
            )
            with client:
                await anyio.to_thread.run_sync(client.sendall, head)
                await anyio.to_thread.run_sync(_is_heard, url)
                stop.set()
                answer = await anyio.to_thread.run_sync(_all_of, client)

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"daemon.stopping" in answer
    (line,) = [line for line in lines if "requests cancelled" in line["event"]]
    assert line["count"] == 1
    assert line["paths"] == ["/api/v1/dags/chain/runs"]
    assert "Traceback" not in caplog.text
    assert [record for record in caplog.records if record.exc_info] == []
    assert "graceful" not in caplog.text


def _is_heard(url):
    """Wait until another connection gets a response: by then, earlier data has been processed."""
    with socket.create_connection((url.hostname, url.port), timeout=10) as other:
        other.sendall(b"GET /health/live HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        _all_of(other)


def _all_of(client):
    received = b""
    while piece := client.recv(65_536):
        received += piece
    return received


async def test_nothing_is_logged_if_no_client_hangs(tmp_path):
    with structlog.testing.capture_logs() as lines:
        async with served(tmp_path) as (_, url, stop):
            await anyio.to_thread.run_sync(_is_heard, url)
            stop.set()

    assert [line for line in lines if "requests cancelled" in line["event"]] == []
