"""Credentials of a trigger are in no log and no failure, even of its client library."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aioflow.author.codec import encode
from aioflow.protocol.commands import StartTrigger
from aioflow.protocol.reports import Output, TriggerEnded, TriggerFired
from tests.worker.peer import VERSION, write_version

pytestmark = pytest.mark.process

CANARY = "c4n4ry"
THEIRS = "l1nn3t"
"""A text in the server's responses. The task may get it as data, but no error may contain it."""
SINCE = 1_767_225_600_000_000


class Site(http.server.BaseHTTPRequestHandler):
    """Responds with the status in the path, and redirects to a host that no client may visit."""

    def do_GET(self) -> None:
        word = self.path.partition("?")[0].strip("/")
        status = int(word) if word.isdecimal() else 403
        body = f'{{"items": [1], "next": "http://other.example/?key={THEIRS}"}}'.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if status == 302:
            self.send_header("location", f"http://other.example/?key={THEIRS}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, args=(0.05,)).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_no_log_and_no_failure_names_what_it_asks_with(home, spawn, port):
    write_version(home)
    host = spawn("triggers")

    def url(path: str, port: int = port) -> str:
        return f"http://me:{CANARY}@127.0.0.1:{port}/{path}?token={CANARY}"

    headers = {"authorization": f"Bearer {CANARY}"}
    web = {"headers": headers, "interval": 0.1, "timeout": 2.0}
    options = {"endpoint": f"http://127.0.0.1:{port}", "access_key_id": CANARY}
    store = {"url": "s3://bucket/name", "options": {**options, "secret_access_key": CANARY}}
    paths = ("401", "302", "200")
    asked: list[tuple[str, dict[str, Any]]] = [
        *(("http:HttpTrigger", {**web, "url": url(path), "body": CANARY}) for path in paths),
        ("http:HttpTrigger", {**web, "url": url("x", 1)}),
        ("http:HttpTrigger", {**web, "url": url("x").replace("http", "ftp")}),
        ("http:HttpTrigger", {**web, "url": url("200"), "body_limit": 1}),
        *(("pages:HttpPagesTrigger", {**web, "url": url(path)}) for path in ("401", "500")),
        (
            "pages:HttpPagesTrigger",
            {**web, "url": url("200"), "items": "items", "next_link": "next"},
        ),
        ("objects:ObjectTrigger", {**store, "interval": 0.1}),
        ("objects:ObjectTrigger", {**store, "url": f"nothing://me:{CANARY}@b/n?sig={CANARY}"}),
    ]
    for fields in (fields for path, fields in asked if path.startswith("pages")):
        fields.setdefault("next_link", "link")

    for number, (path, fields) in enumerate(asked):
        kwargs = encode(fields, "")
        host.send(
            StartTrigger(
                number, 1, 1, 100, VERSION, f"aioflow_triggers.{path}", kwargs, SINCE, None
            )
        )

    ended, said = set(), set()
    # These triggers keep waiting, and log that: a port without a listener, and a server that
    # answers 500.
    waiting = {3, 7}
    while len(ended | said) < len(asked):
        report = host.expect((TriggerFired, TriggerEnded, Output))
        assert CANARY not in repr(report), report
        assert isinstance(report, TriggerFired) or THEIRS not in repr(report), report
        if isinstance(report, Output):
            said |= {report.task_no} & waiting
        else:
            ended.add(report.trigger_no)
    host.close()
    assert CANARY.encode() not in host.output()
    assert THEIRS.encode() not in host.output()
