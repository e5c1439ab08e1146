"""Secrets, connections and variables on a real daemon: only where declared, never in plain text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess
from tests.commands import run

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

TOKEN = "canary-token-91f3c7"
PASSWORD = "canary p@ss/w0rd"
KEY = "-----BEGIN KEY-----\ncanary-line-one-aa\ncanary-line-two-bb\n-----END KEY-----"

DAGS = """
import json, os, sys, urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass
from aioflow import *

@task(secrets=["TOKEN", "KEY"], connections=["pg"], variables=["REGION"], retries=0)
def worker() -> list[object]:
    pg = connection("pg")
    print("token", secret("TOKEN"), json.dumps(secret("KEY")))
    print(urllib.parse.quote(pg.password, safe=""))
    for line in secret("KEY").splitlines():
        print("   ", line)
    os.write(1, secret("TOKEN").encode()[:9])
    os.write(1, secret("TOKEN").encode()[9:])
    os.system("printf %s " + secret("TOKEN"))
    return [len(secret("TOKEN")), pg.host, pg.port, repr(pg), variable("REGION")]

@task(secrets=["TOKEN"], connections=["pg"], retries=0)
async def hosted() -> list[object]:
    print("token", secret("TOKEN"), await fetch_secret("TOKEN"))
    token = await step(len, secret("TOKEN"))
    return [token, connection("pg").login]

@task(secrets=["TOKEN"], retries=0)
def fails() -> None:
    raise ValueError(f"no luck with {secret('TOKEN')}")

@task(secrets=["TOKEN"], retries=0)
async def fails_in_a_step() -> None:
    def refuse() -> None:
        raise ValueError("x" * 5000 + secret("TOKEN"), secret("TOKEN"))
    await step(refuse)

@task(retries=0)
def undeclared() -> str:
    return secret("TOKEN")

@task(secrets=["NOBODY"], retries=0)
def unset() -> None:
    print("never")

@task(retries=0)
async def hosted_undeclared() -> str:
    return await fetch_secret("TOKEN")

@dataclass
class Knows(Trigger[int]):
    name: str
    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        token = await fetch_secret(self.name)
        print("trigger", token)
        yield TriggerEvent(len(token))

@task(retries=0)
async def waits() -> int:
    return await wait(Knows("TOKEN"))

@dag
def good() -> None:
    worker(), hosted(), waits()

@dag
def bad() -> None:
    fails(), fails_in_a_step(), undeclared(), unset(), hosted_undeclared()
"""


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.nightly]),
    ]
)
def daemon(daemon_on, request):
    found = daemon_on(request.param)
    found.add("vault.py", DAGS)
    return found


def aioflow(daemon: DaemonProcess, *words: str, told: str = "") -> str:
    done = run(*words, home=daemon.home, given=told)
    assert done.status == 0, done.err
    return done.out + done.err


def keep_all(daemon: DaemonProcess) -> str:
    pg = {"conn_type": "postgresql", "host": "db.example", "login": "ada", "password": PASSWORD}
    return "".join(
        (
            aioflow(daemon, "secrets", "set", "TOKEN", told=f"{TOKEN}\n"),
            aioflow(daemon, "secrets", "set", "KEY", told=KEY),
            aioflow(daemon, "connections", "set", "pg", told=json.dumps({**pg, "port": 5432})),
            aioflow(daemon, "variables", "set", "REGION", "eu-west"),
            *(aioflow(daemon, f"{kind}s", "list") for kind in ("secret", "connection", "variable")),
            *(aioflow(daemon, f"{kind}s", "list", "--json") for kind in ("secret", "connection")),
        )
    )


def tasks_of(daemon: DaemonProcess, dag_id: str) -> dict[str, Any]:
    run_id = daemon.trigger(dag_id)
    daemon.wait(run_id)
    return {task["task_id"]: task for task in daemon.run(run_id)["tasks"]}


def logs_of(daemon: DaemonProcess) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (daemon.home / "logs").rglob("*.log")}


CLEAR = (TOKEN, PASSWORD, "canary%20p%40ss%2Fw0rd", "canary-line-one-aa", "canary-line-two-bb")


def assert_nowhere(texts: dict[str, bytes]) -> None:
    found = [
        (where, text) for where, data in texts.items() for text in CLEAR if text.encode() in data
    ]
    assert not found


def test_a_task_gets_the_values_it_declares_and_they_are_nowhere_in_plain_text(daemon):
    printed, older = keep_all(daemon), logs_of(daemon).keys()

    good, bad = tasks_of(daemon, "good"), tasks_of(daemon, "bad")

    assert {name: task["result"] for name, task in good.items()} == {
        "worker": [
            len(TOKEN), "db.example", 5432, "<Connection postgresql://db.example:5432>", "eu-west"
        ],
        "hosted": [len(TOKEN), "ada"],
        "waits": len(TOKEN),
    }  # fmt: skip
    assert {name: (task["state"], task["error"]["type"]) for name, task in bad.items()} == {
        "fails": ("failed", "ValueError"),
        "fails_in_a_step": ("failed", "ValueError"),
        "undeclared": ("failed", "UnknownValue"),
        "unset": ("failed", "UnknownValue"),
        "hosted_undeclared": ("failed", "UnknownValue"),
    }
    assert bad["fails"]["error"]["message"] == "no luck with ***"
    assert "secrets=['TOKEN']" in bad["undeclared"]["error"]["message"]
    assert "aioflow secrets set NOBODY" in bad["unset"]["error"]["message"]
    assert "does not declare secret 'TOKEN'" in bad["hosted_undeclared"]["error"]["message"]
    logs = {path: data for path, data in logs_of(daemon).items() if path not in older}
    assert b"token *** " in b"".join(logs.values())
    assert b"trigger ***" in b"".join(logs.values())
    assert_nowhere({"commands": printed.encode(), "daemon": daemon.log.read_bytes(), **logs})
    assert_nowhere({"answers": json.dumps([good, bad]).encode()})
    daemon.stop()
    assert_nowhere(everything_in(daemon.home))


def everything_in(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.mark.nightly
def test_a_value_that_was_set_survives_a_kill_and_one_that_was_deleted_stays_so(daemon):
    keep_all(daemon)
    aioflow(daemon, "secrets", "delete", "KEY")
    daemon.kill()
    daemon.start()

    assert [row["name"] for row in daemon.items("/api/v1/secrets")] == ["TOKEN"]
    aioflow(daemon, "secrets", "set", "TOKEN", told="another-canary")
    assert tasks_of(daemon, "good")["waits"]["result"] == len("another-canary")
