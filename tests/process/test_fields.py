"""Hidden trigger fields are in no response to a viewer, in no command's output, and in no log."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from aioflow.api.trigger_details import CATALOGUE_FIELDS
from aioflow.cli import command_parser
from benchmarks.daemon import eventually
from tests.commands import run, words_of
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

CANARY = "c4n4ry-of-fields"

DAGS = """
import dataclasses, datetime, typing
import aioflow_triggers
from aioflow import *
from aioflow_triggers.http import JsonIs

HIDDEN = "c4n4ry" + "-of-fields"  # the page of the code shows this file
PLACE = "{place}"
OFTEN = {{"interval": 0.5}}
DAY = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)


def url(path):
    return f"http://me:{{HIDDEN}}@{{PLACE}}/{{path}}?token={{HIDDEN}}"


PUBLIC = {{
    "EventTrigger": dict(name="never"),
    "RunTrigger": dict(dag="hidden", run_id="never"),
    "TasksTrigger": dict(dag="hidden", logical_date=DAY),
    "FileGoneTrigger": dict(path=__file__),
    "FileTrigger": dict(path="/tmp/never-there"),
    "FilesTrigger": dict(pattern="/tmp/never-there-*"),
    "NewFiles": dict(pattern="/tmp/never-there-*"),
    "HttpTrigger": dict(url=url("busy"), **OFTEN),
    "HttpPagesTrigger": dict(url=url("busy-pages"), page_parameter="p", **OFTEN),
    "NewObjects": dict(url="s3://busy-folder/*.csv", **OFTEN),
    "ObjectTrigger": dict(url="s3://busy-object/a.csv", **OFTEN),
    "CronTrigger": dict(expression="0 0 29 2 *"),
    "DateTimeTrigger": dict(moment=DAY),
    "TimeDeltaTrigger": dict(delta="9999 h"),
}}
DENIED = {{
    "HttpTrigger": dict(url=url("denied")),
    "HttpPagesTrigger": dict(url=url("denied-pages"), page_parameter="p"),
    "ObjectTrigger": dict(url="s3://denied-object/a.csv"),
}}
OPTIONS = {{"endpoint": f"http://{{PLACE}}", "region": HIDDEN}}
KEYS = {{"access_key_id": HIDDEN, "secret_access_key": HIDDEN, "token": HIDDEN}}
VALUES = {{
    "headers": {{"Authorization": f"Bearer {{HIDDEN}}", HIDDEN: HIDDEN}},
    "options": OPTIONS | KEYS,
    "body": HIDDEN,
    "until": JsonIs(HIDDEN, equals=HIDDEN),
    "fail_if": JsonIs(HIDDEN, one_of=[HIDDEN]),
}}


def made(name, public):
    cls = getattr(aioflow_triggers, name)
    hidden = {{field.name for field in dataclasses.fields(cls)}} - {{*cls.public_fields}}
    return cls(**public, **{{field: VALUES[field] for field in hidden}})


@task(retry=Retry(tries=1))
async def waits(name: str) -> None:
    await wait(made(name, PUBLIC[name]))


@task(retry=Retry(tries=1))
async def refused(name: str) -> None:
    await wait(made(name, DENIED[name]))


@dag
def hidden() -> None:
    waits.expand(name={names}), refused.expand(name=sorted(DENIED))


@dag(schedule=made("HttpPagesTrigger", dict(url=url("busy-stream"), page_parameter="p", **OFTEN)))
def pages() -> None:
    waits("EventTrigger")


@dag(schedule=made("NewObjects", dict(url="s3://busy-arrivals/*.csv", **OFTEN)))
def arrivals() -> None:
    waits("EventTrigger")
"""

NAMES = [path.rpartition(":")[2] for path in CATALOGUE_FIELDS]
FLOWS = ("hidden", "pages", "arrivals")
DENIED = 3
ASKED = {
    *("/busy", "/busy-pages", "/busy-folder", "/busy-object/a.csv"),
    *("/denied", "/denied-pages", "/denied-object/a.csv"),
    *("/busy-stream", "/busy-arrivals"),
}


@contextmanager
def site() -> Iterator[tuple[str, set[str]]]:
    """Serve HTTP: some requests are refused, all others are answered with a status to retry.

    Yields:
        The address, and the paths that were requested with the canary.
    """
    asked: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if CANARY in f"{self.path}{self.headers}":
                asked.add(urlsplit(self.path).path.rstrip("/"))
            self.send_response(403 if self.path.startswith("/denied") else 503)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - the name that the class requires

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Viewer:
    """A client that sends requests over the network with a viewer's token."""

    def __init__(self, daemon: SharedDaemon) -> None:
        words = ("tokens", "create", "looks-at-fields", "--role", "viewer", "--json")
        self._token = run(*words, home=daemon.home).json["token"]
        said = daemon.log.read_text(errors="replace").split()
        page = next(word for word in said if word.startswith("http://"))  # the banner is first
        self._place = urlsplit(page).netloc

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and body of a response, or of an endless one the first part."""
        connection = http.client.HTTPConnection(self._place, timeout=60)
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {self._token}"})
            answer = connection.getresponse()
            is_endless = "event-stream" in (answer.headers["content-type"] or "")
            body = answer.read() if not is_endless else _first(answer)
        finally:
            connection.close()
        return answer.status, body.decode()


def _first(answer: http.client.HTTPResponse) -> bytes:
    """Return the first event of a stream, or the first heartbeat."""
    lines: list[bytes] = []
    while not lines or lines[-1].strip():
        lines.append(answer.readline())
    return b"".join(lines)


def addresses(document: Any, run_id: str, ids: list[int]) -> Iterator[str]:
    """Yield the address of each read route, for each DAG, task and trigger that it can name."""
    tasks = [("waits", n) for n in range(len(NAMES))] + [("refused", n) for n in range(DENIED)]
    for path, verbs in document["paths"].items():
        for dag in FLOWS if "{dag_id}" in path else ("",):
            for task, index in tasks if "{task_id}" in path else [("", -1)]:
                for number in ids if "{trigger_id}" in path else [0]:
                    if "get" not in verbs:
                        continue
                    named = {"dag_id": dag, "run_id": run_id, "task_id": task}
                    filled = _filled(path, {**named, "trigger_id": str(number)})
                    offered = {one["name"] for one in verbs["get"].get("parameters", ())}
                    query: dict[str, Any] = {"map": index, "limit": 100}
                    if "/logs" in path:
                        del query["limit"]  # there it counts bytes
                    if path.endswith("/stream"):
                        query["since"] = 1
                    yield f"{filled}?{urlencode({k: query[k] for k in query if k in offered})}"


def _filled(path: str, named: dict[str, str]) -> str:
    return re.sub(r"{(\w+)(:path)?}", lambda part: named.get(part[1], "1"), path)


def printed(daemon: SharedDaemon, run_id: str) -> dict[str, str]:
    """Run each command that lists or shows something. Return the output of each command."""
    verbs = words_of(command_parser(), "aioflow")
    lists = [noun.split()[1:] for noun, words in verbs.items() if "list" in words]
    commands = [[*noun, "list"] for noun in lists]
    assert len(commands) > 10
    commands += [["runs", "show", run_id], ["dags", "show", "pages"], ["dags", "show", "arrivals"]]
    commands += [["dags", "show", "hidden"], ["triggers", "slow"], ["runs", "why", run_id]]
    found = {}
    for words in commands:
        for flags in ((), ("--json",)):
            done = run(*words, *flags, home=daemon.home)
            assert done.status == 0, (words, done.err)
            found[" ".join((*words, *flags))] = done.out + done.err
    return found


def test_no_viewer_command_or_log_is_shown_a_field_that_is_not_public(shared_daemon):
    daemon, logged = shared_daemon, shared_daemon.log_size
    with site() as (place, asked):
        try:
            daemon.add("hidden.py", DAGS.format(place=place, names=NAMES))
            run_id = daemon.trigger("hidden")
            tasks = eventually(
                lambda: settled(daemon, run_id),
                60,
                lambda: states(daemon, run_id),
                look_seconds=0.2,
            )
            eventually(
                lambda: asked == ASKED,
                60,
                lambda: f"not asked for: {ASKED - asked}",
                look_seconds=0.1,
            )
            eventually(
                lambda: {"busy-stream", "busy-arrivals"} <= named(daemon.log_from(logged)), 60
            )
            viewer = Viewer(daemon)
            listed = json.loads(viewer.get("/api/v1/triggers?limit=1000")[1])["items"]
            ids = [view["trigger_id"] for view in listed if view["dag_id"] in FLOWS]
            document = json.loads(viewer.get("/api/v1/openapi.json")[1])
            routes = [*addresses(document, run_id, ids), "/metrics", "/health/ready"]
            answers = {address: viewer.get(address) for address in routes}
            shown = {address: body for address, (_, body) in answers.items()}
            shown |= printed(daemon, run_id)
            shown["the daemon's log"] = daemon.log_from(logged)
            for path in (daemon.home / "logs").rglob("*"):
                if path.is_file():
                    shown[str(path)] = path.read_bytes().decode(errors="replace")
        finally:
            (daemon.dags / "hidden.py").unlink()
    assert {view["task_id"] for view in tasks} == {"waits", "refused"}
    odd = {address: told for address, told in answers.items() if told[0] not in {200, 403, 404}}
    assert not odd
    assert sum(status == 200 for status, _ in answers.values()) > 100
    for name in NAMES:
        assert f"{name}(" in shown["triggers list --json"], name
    leaks = [where for where, text in shown.items() if CANARY in text]
    assert not leaks, (leaks, shown[leaks[0]])


def settled(daemon: SharedDaemon, run_id: str) -> list[dict[str, Any]] | None:
    """Return the tasks once all of them have reached their state: waiting or refused."""
    tasks = [view for view in daemon.run(run_id)["tasks"] if view["map_index"] >= 0]
    ends = {"waits": "deferred", "refused": "failed"}
    is_so = all(view["state"] == ends[view["task_id"]] for view in tasks)
    return tasks if is_so and len(tasks) == DENIED + len(NAMES) else None


def named(log: str) -> set[str]:
    """Return the paths of the site that a log contains."""
    return set(re.findall(r"busy-[a-z]+", log))


def states(daemon: SharedDaemon, run_id: str) -> str:
    """Return the state of each task."""
    tasks = daemon.run(run_id)["tasks"]
    return str([(view["map_label"], view["state"], view["error"]) for view in tasks])
