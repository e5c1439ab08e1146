"""Limits on the number of connections, and on the time for a request head or body."""

from __future__ import annotations

import functools
import socket
import time
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from aioflow import web
from aioflow.settings import Settings
from aioflow.web import limits, server
from aioflow.web.limits import HEAD_BYTES, Connections
from tests.web.node import CHAIN, node

pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])


@asynccontextmanager
async def served(home, monkeypatch, **limits):
    monkeypatch.setattr(server, "Connections", functools.partial(Connections, **limits))
    async with node(home) as n:
        n.define(CHAIN)
        stop = anyio.Event()
        async with anyio.create_task_group() as group:
            url = await group.start(web.serve, n.api, Settings.read(home, {"web.port": 0}), stop)
            yield int(url.split(":")[2].split("/")[0]), url.partition("token=")[2]
            stop.set()


def talk(port, *pieces, seconds=60.0):
    """Send pieces. Return everything that is received until the other end closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        for piece in pieces:
            connection.sendall(piece)
        received = b""
        while piece := connection.recv(65_536):
            received += piece
        return received


async def in_thread(function, *arguments, **more):
    return await anyio.to_thread.run_sync(functools.partial(function, *arguments, **more))


async def test_a_slow_head_is_cut_off_and_delays_no_other(tmp_path, monkeypatch):
    async with served(tmp_path, monkeypatch, head_seconds=3) as (port, _):
        began = time.monotonic()
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for connection in slow:
            connection.sendall(b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\nx-a: ")
        live = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
        answered = await in_thread(talk, port, live)
        took = time.monotonic() - began
        ends = [await in_thread(_end_of, connection) for connection in slow]

    assert b"200 OK" in answered
    assert took < 60  # one after the other they would keep it for 300
    assert ends == [b""] * 100


@pytest.mark.nightly
async def test_a_second_head_on_a_connection_may_not_dawdle_either(tmp_path, monkeypatch):
    live = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    async with served(tmp_path, monkeypatch, head_seconds=3) as (port, _):
        received = await in_thread(_ask_then_dawdle, port, live)

    assert received.count(b"200 OK") == 1


def _ask_then_dawdle(port, live):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(live)
        received = connection.recv(65_536)
        connection.sendall(b"GET /he")
        return received + _end_of(connection)


def _end_of(connection):
    connection.settimeout(60)
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except ConnectionResetError:
        pass
    finally:
        connection.close()
    return received


async def test_a_head_is_so_large_at_most(tmp_path, monkeypatch):
    async with served(tmp_path, monkeypatch) as (port, _):
        head = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"x: " + b"y" * HEAD_BYTES
        refused = await in_thread(talk, port, head)

    assert refused.startswith(b"HTTP/1.1 4")


def head_of(size, *, close=True):
    """Return a request head of exactly this many bytes, including its empty line."""
    end = b"\r\nconnection: close\r\n\r\n" if close else b"\r\n\r\n"
    begin = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\nx: "
    return begin + b"y" * (size - len(begin) - len(end)) + end


@pytest.mark.parametrize("size", [HEAD_BYTES + 1, 17_000, 40_000])
@pytest.mark.parametrize("before", [b"", head_of(200, close=False)], ids=["alone", "pipelined"])
async def test_a_head_that_comes_whole_is_no_larger_either(tmp_path, monkeypatch, size, before):
    async with served(tmp_path, monkeypatch) as (port, _):
        received = await in_thread(talk, port, before + head_of(size))

    assert received.count(b"HTTP/1.1 200") == (1 if before else 0)
    assert received.count(b"HTTP/1.1 431") == 1
    assert b"web.too_large" in received


async def test_a_request_whose_body_is_malformed_is_refused_and_not_carried_out(
    tmp_path, monkeypatch, caplog
):
    async with served(tmp_path, monkeypatch) as (port, token):
        head = (
            b"POST /api/v1/dags/chain/runs HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            b"content-type: application/json\r\ntransfer-encoding: chunked\r\n"
            b"authorization: Bearer %b\r\n\r\n2\r\n{}\r\n" % token.encode()
        )
        answer = await in_thread(talk, port, head, b"no size\r\n")
        runs = b"GET /api/v1/runs HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        made = await in_thread(
            talk, port, runs + b"authorization: Bearer %b\r\n\r\n" % token.encode()
        )

    assert answer.startswith(b"HTTP/1.1 400")
    assert made.startswith(b"HTTP/1.1 200")
    assert b"run_id" not in made
    assert [record for record in caplog.records if record.exc_info] == []


async def test_an_invalid_body_of_an_answered_request_ends_the_connection_and_fills_no_log(
    tmp_path, monkeypatch, caplog
):
    head = (
        b"POST /api/v1/dags/chain/runs HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    async with served(tmp_path, monkeypatch) as (port, _):
        answer = await in_thread(_ask_then_send, port, head, b"no size\r\n")

    assert answer.startswith(b"HTTP/1.1 401")
    assert answer.count(b"HTTP/1.1") == 1
    assert caplog.records == []


def _ask_then_send(port, head, rest):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head)
        received = connection.recv(65_536)
        connection.sendall(rest)
        return received + _end_of(connection)


async def test_a_body_may_take_longer_than_a_head(tmp_path, monkeypatch):
    async with served(tmp_path, monkeypatch, head_seconds=1) as (port, token):
        head = (
            b"POST /api/v1/dags/chain/runs HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: 4\r\n"
            b"authorization: Bearer " + token.encode() + b"\r\n\r\n"
        )
        answer = await in_thread(_send_slowly, port, head, b"{", b" ", b" ", b"}")

    assert answer.startswith(b"HTTP/1.1 201")


def _send_slowly(port, *pieces):
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.5)
        return _end_of(connection)


async def test_a_head_of_just_that_size_is_heard_alone_and_behind_another(tmp_path, monkeypatch):
    heads = head_of(HEAD_BYTES, close=False), head_of(HEAD_BYTES)
    async with served(tmp_path, monkeypatch) as (port, _):
        received = await in_thread(talk, port, b"".join(heads))

    assert received.count(b"HTTP/1.1 200") == 2


async def test_a_body_is_larger_than_a_head_may_be(tmp_path, monkeypatch):
    async with served(tmp_path, monkeypatch) as (port, token):
        body = b'{"conf": {}}' + b" " * 3 * HEAD_BYTES
        head = (
            b"POST /api/v1/dags/chain/runs HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n"
            b"authorization: Bearer %b\r\n\r\n" % (len(body), token.encode())
        )
        answer = await in_thread(talk, port, head + body)

    assert answer.startswith(b"HTTP/1.1 201")


async def test_an_address_has_so_many_connections_and_gets_new_ones_for_those_it_ends(
    tmp_path, monkeypatch
):
    live = b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    async with served(tmp_path, monkeypatch, from_one=3) as (port, _):
        budget = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        busy = await in_thread(talk, port)
        for connection in budget:
            connection.close()
        answers = [await in_thread(talk, port, live) for _ in range(5)]

    assert busy.startswith(b"HTTP/1.1 503")
    assert b"200 OK" in answers[-1]


async def test_a_body_with_two_ends_is_none_and_nothing_behind_it_is_heard(tmp_path, monkeypatch):
    async with served(tmp_path, monkeypatch) as (port, token):
        head = (
            b"POST /api/v1/dags/chain/runs HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            b"content-type: application/json\r\ncontent-length: 2\r\n"
            b"transfer-encoding: chunked\r\nauthorization: Bearer " + token.encode() + b"\r\n\r\n"
            b"0\r\n\r\nGET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
        )
        answer = await in_thread(talk, port, head)

    assert answer.startswith(b"HTTP/1.1 400")
    assert b"200 OK" not in answer


async def test_invalid_http_fills_no_log(tmp_path, monkeypatch, caplog):
    async with served(tmp_path, monkeypatch) as (port, _):
        for _ in range(20):
            assert await in_thread(talk, port, b"\x16\x03\x01 no such thing\r\n\r\n")

    assert "Invalid HTTP request" not in caplog.text


async def test_a_body_that_dawdles_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_BODY_SECONDS", 0.3)
    async with served(tmp_path, monkeypatch) as (port, token):
        head = (
            b"POST /api/v1/dags/chain/runs HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: 9\r\n"
            b"authorization: Bearer " + token.encode() + b"\r\n\r\n{"
        )
        answer = await in_thread(talk, port, head)

    assert answer.startswith(b"HTTP/1.1 408")
    assert b"web.slow" in answer
