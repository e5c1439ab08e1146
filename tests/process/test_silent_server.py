"""A server that never responds delays no wait for another server, on a real daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, TCPServer, ThreadingTCPServer
from typing import Any

import pytest

from aioflow_triggers.http_client import CONNECTIONS_PER_ORIGIN
from benchmarks.daemon import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DAGS = """
from aioflow import *
from aioflow_triggers.http import HttpTrigger


@task(retry=Retry(tries=1))
async def asks(url: str) -> int:
    return (await wait(HttpTrigger(url, timeout="1h")))["status"]


@task
async def places(url: str, count: int) -> list[str]:
    return [url] * count


@dag
def patient(url: str, count: int) -> None:
    asks.expand(url=places(url, count))


@dag
def brisk(url: str, count: int) -> None:
    asks.expand(url=places(url, count))
"""


class Answers(BaseHTTPRequestHandler):
    """Answers every request with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def serving(server: TCPServer) -> Iterator[str]:
    """Serve in a thread. Yield the URL."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def tarpit() -> Iterator[tuple[str, list[object]]]:
    """Serve without ever responding. Yield the URL, and a list that grows with each request."""
    asked: list[object] = []

    class Silent(BaseRequestHandler):
        def handle(self) -> None:
            while piece := self.request.recv(65_536):
                asked.append(piece)

    server = ThreadingTCPServer(("127.0.0.1", 0), Silent)
    server.daemon_threads = True  # a test that fails leaves its clients waiting
    with serving(server) as url:
        yield url, asked


def test_a_hundred_waits_for_a_silent_server_delay_none_for_another(shared_daemon):
    daemon = shared_daemon
    daemon.add("silent.py", DAGS)
    with (
        tarpit() as (silent, asked),
        serving(ThreadingHTTPServer(("127.0.0.1", 0), Answers)) as healthy,
    ):
        stuck = daemon.trigger("patient", {"url": silent, "count": 110})
        eventually(
            lambda: daemon.run(stuck, limit=1)["counts"].get("deferred") == 110,
            60,
            lambda: str(daemon.run(stuck, limit=1)),
            look_seconds=0.1,
        )
        eventually(lambda: len(asked) >= CONNECTIONS_PER_ORIGIN, 60)
        for dag in ("patient", "brisk"):
            run = daemon.wait(daemon.trigger(dag, {"url": healthy, "count": 5}), timeout=60)
            assert run["state"] == "success", run
        assert daemon.run(stuck, limit=1)["counts"] == {"success": 1, "deferred": 110}
        assert len(asked) == CONNECTIONS_PER_ORIGIN
        daemon.request("POST", f"/api/v1/runs/{stuck}/cancel", status=None)
        daemon.wait(stuck)
