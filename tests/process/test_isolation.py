"""A DAG file that changes its process has its own hosts, and does not affect other DAGs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.changes import CHANGES
from tests.commands import run

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

EYES = """
import decimal, gc, hashlib, http.client, locale, logging, os, pathlib, resource, signal, socket
import sqlite3, ssl, sys, threading, warnings, xml.dom
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec
from aioflow import Trigger, TriggerEvent, dag, task, wait
from aioflow import current


def look() -> list[str]:
    with open("/proc/self/status") as status:
        umask = [line for line in status if line.startswith("Umask")]
    seen = [
        os.getpid(), dict(os.environ), sys.path[:1], pathlib.Path.cwd(), umask,
        os.getpriority(os.PRIO_PROCESS, 0), resource.getrlimit(resource.RLIMIT_STACK),
        signal.getsignal(signal.SIGUSR1), signal.getitimer(signal.ITIMER_REAL)[0] > 0,
        locale.setlocale(locale.LC_ALL), socket.getdefaulttimeout(), sys.getrecursionlimit(),
        sys.getswitchinterval(), sys.get_int_max_str_digits(), threading.stack_size(),
        sys.getprofile(), gc.isenabled(), logging.getLogger().level,
        [rule[0] for rule in warnings.filters].count("error"),
        decimal.Decimal("1.2345") + 1, decimal.DefaultContext.prec, decimal.ExtendedContext.prec,
        sqlite3.connect, getattr(hashlib, "sha256", None), pathlib.Path.exists,
        ssl._create_default_https_context,
        sys.excepthook, threading.excepthook, msgspec.field, http.client.HTTPConnection.request,
        xml.dom.getDOMImplementation, hasattr(hashlib, "md5"),
    ]
    return [f"{type(one).__name__} {getattr(one, '__name__', one)}" for one in seen]
"""

FLOW = """

@dataclass
class Sees(Trigger):
    async def run(self) -> AsyncIterator[TriggerEvent[list[str]]]:
        yield TriggerEvent(look())


@task
async def see(path: str) -> None:
    here = look()
    there = await wait(Sees())
    with open(path, "wb") as file:
        file.write(msgspec.json.encode([here, there]))


@dag
def {}(path: str) -> None:
    see(path)
"""


def seen(daemon, dag_id: str, path: Path) -> list[list[str]]:
    """Return what a coroutine and a trigger of a DAG see of their processes, with the ids first."""
    run_id = daemon.trigger(dag_id, conf={"path": str(path)})
    daemon.wait(run_id)
    run = daemon.run(run_id)
    assert run["state"] == "success", run["tasks"][0]["error"]
    return msgspec.json.decode(path.read_bytes())


def test_nothing_that_a_file_changes_in_its_process_reaches_a_dag_beside_it(
    shared_daemon, tmp_path
):
    changes = "\n".join(CHANGES.values())
    shared_daemon.add("eyes.py", EYES + FLOW.format("eyes"))
    before = seen(shared_daemon, "eyes", tmp_path / "before")
    shared_daemon.add("changing.py", changes + EYES + FLOW.format("changing"))

    changed = seen(shared_daemon, "changing", tmp_path / "changed")
    after = seen(shared_daemon, "eyes", tmp_path / "after")

    assert after == before
    for own, shared in zip(changed, before, strict=True):
        assert own[0] != shared[0]
        same = [one for one, other in zip(own, shared, strict=True) if one == other]
        assert same == []
    reasons = " ".join(shared_daemon.get("/api/v1/dags/changing")[1]["isolated"])
    assert "os.environ['AWS_PROFILE']" in reasons
    assert shared_daemon.get("/api/v1/dags/eyes")[1]["isolated"] == []
    shown = run("dags", "show", "changing", home=shared_daemon.home).out
    told = [line for line in shown.splitlines() if line.startswith("runs in separate hosts: ")]
    assert any("os.environ['AWS_PROFILE']" in line for line in told)
