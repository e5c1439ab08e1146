"""The web server on real sockets, inside our task group."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import stat
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import pytest

from aioflow import web
from aioflow.cli.client import connect_home
from aioflow.errors import DaemonAway, HomeBusy, PortInUse, SettingsError
from aioflow.protocol.requests import ShowPools
from aioflow.settings import Settings, socket_path
from aioflow.web.tokens import Token
from tests.web.node import CHAIN, node


@asynccontextmanager
async def served(home, **overrides):
    async with node(home) as n:
        n.define(CHAIN)
        await n.engine.ask(ShowPools())  # earlier inputs are committed
        settings = Settings.read(home, {"web.port": 0, **overrides})
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            url = await group.start(web.serve, n.api, settings, stop)
            yield n, urlsplit(url)
            stop.set()


def get(address, path, **headers):
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


async def test_it_answers_on_both_sockets_and_closes_them_when_stopped(tmp_path):
    async with served(tmp_path) as (_, address):
        token = address.query.removeprefix("token=")
        refused, _ = await anyio.to_thread.run_sync(get, address, "/api/v1/dags")
        allowed, _ = await anyio.to_thread.run_sync(
            lambda: get(address, "/api/v1/dags", Authorization=f"Bearer {token}")
        )
        over_unix = await anyio.to_thread.run_sync(connect_home(tmp_path).items, "dags")
        mode = stat.S_IMODE(socket_path(tmp_path).stat().st_mode)

    assert (refused, allowed) == (401, 200)
    assert over_unix[0]["dag_id"] == "chain"
    assert mode == 0o600
    assert not socket_path(tmp_path).exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port))
    with pytest.raises(DaemonAway):
        connect_home(tmp_path).get("dags")


async def test_cancelled_it_releases_its_port_as_well(tmp_path):
    async with node(tmp_path) as n:
        settings = Settings.read(tmp_path, {"web.port": 0})
        async with anyio.create_task_group() as group:
            url = await group.start(web.serve, n.api, settings, anyio.Event())
            group.cancel_scope.cancel()

    address = urlsplit(url)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address.hostname, address.port))


async def test_signals_stay_ours(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    async with served(tmp_path):
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_a_port_in_use_is_reported(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = await _refused(tmp_path, {"web.port": port}, PortInUse)
    assert str(port) in str(error)


async def test_an_address_this_machine_does_not_have_is_reported(tmp_path):
    overrides = {"web.host": "192.0.2.1", "web.allow_remote": True}
    assert "192.0.2.1" in str(await _refused(tmp_path, overrides, SettingsError))


async def test_a_socket_that_a_dead_daemon_left_is_replaced(tmp_path):
    path = socket_path(tmp_path)
    path.parent.mkdir(parents=True, mode=0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()

    async with served(tmp_path):
        assert await anyio.to_thread.run_sync(connect_home(tmp_path).items, "dags")


async def test_a_socket_that_a_living_daemon_holds_is_not_taken_from_it(tmp_path):
    async with served(tmp_path):
        await _refused(tmp_path, {"web.port": 0}, HomeBusy)
        assert await anyio.to_thread.run_sync(connect_home(tmp_path).items, "dags")


async def test_the_home_may_have_a_long_name(tmp_path):
    home = tmp_path / ("h" * 120)

    async with served(home):
        assert socket_path(home).parent.name == f"aioflow-{os.getuid()}"
        assert await anyio.to_thread.run_sync(connect_home(home).get, "dags")
    assert not socket_path(home).exists()


async def _refused(home, overrides, error):
    settings = Settings.read(home, overrides)
    async with node(home / "other") as n:
        with pytest.raises(error) as caught:
            await web.serve(n.api, settings, anyio.Event())
    return caught.value


# ── the token ───────────────────────────────────────────────────────────────────────────


def test_the_first_token_is_made_once_for_the_owner_alone(tmp_path):
    path = tmp_path / "token"

    first, second = Token.open(path), Token.open(path)

    assert first.secret == second.secret
    assert len(first.secret) >= 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("text", ["", "short", "x" * 40 + " y", "\xff" * 40, "secret" * 8])
def test_a_damaged_token_opens_nothing(tmp_path, text):
    path = tmp_path / "token"
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)

    with pytest.raises(SettingsError):
        Token.open(path)


def test_a_token_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "token"
    Token.open(path)
    path.chmod(0o644)

    with pytest.raises(SettingsError, match="chmod 600"):
        Token.open(path)


def test_a_link_is_no_token(tmp_path):
    Token.open(tmp_path / "elsewhere")
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(SettingsError):
        Token.open(tmp_path / "token")
