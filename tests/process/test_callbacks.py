"""Callbacks and alerts of a real daemon: in processes of their own, at least once, told abroad."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess, eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

SIGNED_WITH = "canary-signing-key-77"

DAGS = """
import os
import signal
from pathlib import Path
from time import sleep
from typing import Any

from aioflow import WebhookNotifier, dag, secret, sensor, task


def note(folder: str, name: str, what: object) -> None:
    with open(Path(folder, name), "a") as file:
        file.write(f"{what}\\n")


def slowly(context: dict[str, Any]) -> None:
    folder = context["params"]["folder"]
    note(folder, "keys", context["idempotency_key"])
    while not Path(folder, "go-on").exists():
        sleep(0.01)
    note(folder, "done", os.getpid())


def told(context: dict[str, Any]) -> None:
    print("paging with", secret("SIGNING"))
    note(context["params"]["folder"], "pids", os.getpid())


def raises(context: dict[str, Any]) -> None:
    raise ValueError("the pager is broken")


def dies(context: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


async def hangs(context: dict[str, Any]) -> None:
    import asyncio
    await asyncio.sleep(1e6)


@task(retries=0, on_failure=slowly)
def breaks(folder: str) -> None:
    raise OSError("no")


@dag
def interrupted(folder: str) -> None:
    breaks(folder)


@task(retries=0, secrets=["SIGNING"], on_success=[told])
def well(folder: str) -> int:
    return os.getpid()


@task(retries=0, on_success=raises)
def well_and_raises(after: int) -> None: ...


@task(retries=0, on_success=dies)
def well_and_dies(after: int) -> None: ...


@task(retries=0, on_success=hangs)
def well_and_hangs(after: int) -> None: ...


def of_run(context: dict[str, Any]) -> None:
    print("the run is", context["state"])
    note(context["params"]["folder"], "run", context["run_id"])


@dag(on_success=of_run)
def misbehaving(folder: str) -> None:
    pid = well(folder)
    well_and_raises(pid), well_and_dies(pid), well_and_hangs(pid)


@task(retries=0)
def parts(n: int) -> None:
    raise OSError(f"no {n}")


@dag(on_failure=WebhookNotifier("{url}/hook", signing_secret="SIGNING"))
def signed(folder: str) -> None:
    parts.expand(n=[1, 2])


@sensor(timeout="100ms", interval="50ms")
def never() -> bool:
    return False


@dag
def alerting(folder: str) -> None:
    never()
"""


class Heard:
    """What a webhook was sent; the first of them it has no time for."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    def take(self, headers: dict[str, str], body: bytes) -> int:
        self.posts.append((headers, body))
        return 503 if len(self.posts) <= self.failures else 204


@contextmanager
def listening(failures: int = 1) -> Iterator[Heard]:
    heard = Heard(failures)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            self.send_response(heard.take(headers, body))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    heard.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def prepare(tmp_path: Path, url: str = "http://127.0.0.1:9") -> Path:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "calls.py").write_text(DAGS.replace("{url}", url))
    (tmp_path / "out").mkdir()
    return tmp_path / "dags"


def lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def settings(home: Path, text: str) -> None:
    home.mkdir()
    (home / "aioflow.toml").write_text(text)


def aioflow(*words: str, home: str, told: str = "") -> str:
    command = [sys.executable, "-m", "aioflow", *words, "--home", home]
    done = subprocess.run(command, input=told, text=True, check=True, capture_output=True)
    return done.stdout


def keep_secret(home: Path) -> None:
    aioflow("secrets", "set", "SIGNING", home=str(home), told=SIGNED_WITH)


def nothing_is_owed(daemon: DaemonProcess) -> bool:
    owed: dict[str, int] = daemon.get("/health/ready")[1]["owed"]
    daemon.get("/api/v1/pools")  # the engine answers when what memory said is committed
    return not any(owed.values())


def is_signed(headers: dict[str, str], body: bytes) -> bool:
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(SIGNED_WITH.encode(), content, hashlib.sha256).digest()
    return headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
def test_a_kill_between_a_call_and_its_record_calls_once_more_with_the_same_key(
    tmp_path, request, database
):
    dags, out = prepare(tmp_path), tmp_path / "out"
    db = request.getfixturevalue("postgres_url") if database == "postgres" else None
    with DaemonProcess(tmp_path / "home", dags, db=db) as daemon:
        run_id = daemon.trigger("interrupted", {"folder": str(out)})
        eventually(lambda: lines(out / "keys"))
        daemon.kill(whole_tree=True)
        daemon.start()
        eventually(lambda: len(lines(out / "keys")) == 2)
        (out / "go-on").touch()
        eventually(partial(nothing_is_owed, daemon))
        daemon.kill(whole_tree=True)
        daemon.start()
        assert nothing_is_owed(daemon)
        assert daemon.run(run_id)["state"] == "failed"

    first, second = lines(out / "keys")
    assert first == second
    assert first.startswith(f"{run_id}/breaks/failure/")
    assert len(lines(out / "done")) == 1


def test_callbacks_that_raise_die_or_hang_cost_their_own_process_alone(tmp_path):
    dags, out = prepare(tmp_path), tmp_path / "out"
    settings(tmp_path / "home", "[callbacks]\ntimeout_seconds = 15")
    with DaemonProcess(tmp_path / "home", dags) as daemon:
        keep_secret(tmp_path / "home")
        run_id = daemon.trigger("misbehaving", {"folder": str(out)})
        ended = daemon.wait(run_id)
        eventually(partial(nothing_is_owed, daemon), 90.0)
        home, pid = str(tmp_path / "home"), daemon.process.pid
        log = aioflow("runs", "logs", run_id, "well", home=home)
        raised = aioflow("runs", "logs", run_id, "well_and_raises", home=home)
        of_run = aioflow("runs", "logs", run_id, home=home)
        metrics = daemon.get("/metrics")[1]

    assert ended["state"] == "success"
    assert lines(out / "run") == [run_id]
    assert "paging with ***" in log
    assert "ValueError: the pager is broken" in raised
    assert of_run == "[aioflow: on_success]\nthe run is success\n"
    assert daemon.log.read_text().count("a callback failed") == 3
    assert "aioflow_callbacks_failed_total 3.0" in metrics
    (own,) = lines(out / "pids")
    results = {task["task_id"]: task["result"] for task in ended["tasks"]}
    assert int(own) not in {pid, results["well"]}


def test_a_webhook_is_signed_and_repeated_with_one_key_until_it_is_taken(tmp_path):
    with listening() as heard:
        dags = prepare(tmp_path, heard.url)
        with DaemonProcess(tmp_path / "home", dags) as daemon:
            keep_secret(tmp_path / "home")
            run_id = daemon.trigger("signed", {"folder": ""})
            eventually(lambda: len(heard.posts) == 2)
            eventually(partial(nothing_is_owed, daemon))

    assert all(is_signed(*post) for post in heard.posts)
    assert len({headers["idempotency-key"] for headers, _ in heard.posts}) == 1
    said = json.loads(heard.posts[-1][1])
    assert (said["event"], said["state"], said["run_id"]) == ("failure", "failed", run_id)


def test_alerts_go_where_the_settings_say(tmp_path):
    with listening(failures=0) as heard:
        dags = prepare(tmp_path)
        settings(tmp_path / "home", f'[alerts]\nwebhook = "{heard.url}/oncall"')
        with DaemonProcess(tmp_path / "home", dags) as daemon:
            run_id = daemon.trigger("alerting", {"folder": ""})
            eventually(lambda: heard.posts)
            eventually(partial(nothing_is_owed, daemon))

    ((headers, body),) = heard.posts
    said = json.loads(body)
    assert (said["event"], said["state"], said["task_id"]) == ("alert", "sensor_timeout", "never")
    assert said["run_id"] == run_id
    assert said["text"].startswith(f"sensor_timeout: never of {run_id} of alerting: ")
    assert headers["idempotency-key"].startswith("alert/")
