"""Callbacks and alerts of a real daemon: in separate processes, at least once, to webhooks."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from functools import partial
from pathlib import Path

import pytest

from benchmarks.daemon import DaemonProcess, eventually
from tests.commands import run
from tests.process.listening import listening

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

SIGNED_WITH = "canary-signing-key-77"

DAGS = """
import os
import signal
from pathlib import Path
from time import sleep
from typing import Any

from aioflow import dag, secret, sensor, task


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


@sensor(timeout="100ms", interval="50ms")
def never() -> bool:
    return False


@dag
def alerting(folder: str) -> None:
    never()
"""


HOOKS = """
from aioflow import WebhookNotifier, dag, task


@task(retries=0)
def parts(n: int) -> None:
    raise OSError(f"no {n}")


@dag(on_failure=WebhookNotifier("{url}/hook", signing_secret="SIGNING"))
def signed() -> None:
    parts.expand(n=[1, 2])
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def aioflow(*words: str, home: Path, told: str = "") -> str:
    done = run(*words, home=home, given=told)
    assert done.status == 0, done.err
    return done.out


def keep_secret(home: Path) -> None:
    aioflow("secrets", "set", "SIGNING", home=home, told=SIGNED_WITH)


def nothing_is_owed(daemon: DaemonProcess) -> bool:
    owed: dict[str, int] = daemon.get("/health/ready")[1]["owed"]
    daemon.get("/api/v1/pools")  # the engine answers when the decided state is committed
    return not any(owed.values())


def is_signed(headers: dict[str, str], body: bytes) -> bool:
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(SIGNED_WITH.encode(), content, hashlib.sha256).digest()
    return headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    "database",
    ["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.nightly])],
)
def test_a_kill_between_a_call_and_its_record_calls_once_more_with_the_same_key(
    daemon_on, out, database
):
    daemon = daemon_on(database)
    daemon.add("calls.py", DAGS)
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


def failed_callbacks(daemon: DaemonProcess) -> float:
    [found] = re.findall(
        r"^aioflow_callbacks_failed_total (.+)$", daemon.get("/metrics")[1], re.MULTILINE
    )
    return float(found)


@pytest.mark.nightly
def test_callbacks_that_raise_die_or_hang_cost_their_own_process_alone(shared_daemon, out):
    daemon = shared_daemon
    daemon.add("calls.py", DAGS)
    keep_secret(daemon.home)
    logged, failed = daemon.log_size, failed_callbacks(daemon)
    run_id = daemon.trigger("misbehaving", {"folder": str(out)})
    ended = daemon.wait(run_id)
    eventually(partial(nothing_is_owed, daemon), 90.0)
    home, pid = daemon.home, daemon.process.pid
    log = aioflow("runs", "logs", run_id, "well", home=home)
    raised = aioflow("runs", "logs", run_id, "well_and_raises", home=home)
    of_run = aioflow("runs", "logs", run_id, "@run", home=home)

    assert ended["state"] == "success"
    assert lines(out / "run") == [run_id]
    assert "paging with ***" in log
    assert "ValueError: the pager is broken" in raised
    assert of_run == "[aioflow: on_success]\nthe run is success\n"
    assert daemon.log_from(logged).count("a callback failed") == 3
    assert failed_callbacks(daemon) == failed + 3
    (own,) = lines(out / "pids")
    results = {task["task_id"]: task["result"] for task in ended["tasks"]}
    assert int(own) not in {pid, results["well"]}


def test_a_webhook_is_signed_and_repeated_with_one_key_until_it_is_taken(shared_daemon):
    with listening() as heard:
        shared_daemon.add("hooks.py", HOOKS.replace("{url}", heard.url))
        keep_secret(shared_daemon.home)
        run_id = shared_daemon.trigger("signed")
        eventually(lambda: len(heard.posts) == 2)
        eventually(partial(nothing_is_owed, shared_daemon))

    assert all(is_signed(*post) for post in heard.posts)
    assert len({headers["idempotency-key"] for headers, _ in heard.posts}) == 1
    said = json.loads(heard.posts[-1][1])
    assert (said["event"], said["state"], said["run_id"]) == ("failure", "failed", run_id)


def test_alerts_go_where_the_settings_say(shared_daemon, alerts):
    def heard() -> list[tuple[dict[str, str], bytes]]:
        return [post for post in alerts.posts if json.loads(post[1])["run_id"] == run_id]

    shared_daemon.add("calls.py", DAGS)
    run_id = shared_daemon.trigger("alerting", {"folder": ""})
    eventually(heard)
    eventually(partial(nothing_is_owed, shared_daemon))

    ((headers, body),) = heard()
    said = json.loads(body)
    assert (said["event"], said["state"], said["task_id"]) == ("alert", "sensor_timeout", "never")
    assert said["run_id"] == run_id
    assert said["text"].startswith(f"sensor_timeout: never of {run_id} of alerting: ")
    assert headers["idempotency-key"].startswith("alert/")
