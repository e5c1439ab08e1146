"""Daemons killed between the upload of a result, its report and its commit.

Each kill hits an exact moment of an upload: before the store has the object, before the daemon gets
the reply, or a few milliseconds after the reply, when the report is on its way to the commit.
"""

from __future__ import annotations

import random
import re
import sqlite3
import threading
import time
from contextlib import closing
from http.client import HTTPException
from pathlib import Path

import httpx2
import pytest

from benchmarks.daemon import DaemonProcess, eventually, put
from tests.campaigns.record import record
from tests.storage.conftest import bucket, proxy, s3_environment  # noqa: F401 - fixtures
from tests.storage.fault_proxy import FaultProxy
from tests.storage.test_daemon import node

WIDTH = 12
SIZE = 100_000
KILLS_OF_CASE = 10
CASES = 50
START_SECONDS = 300.0
"""Start-up limit. On a machine with much other work, a daemon takes minutes to start."""

MOMENTS = ("asked", "stored", "answered")

DAG = f"""
from aioflow import dag, task

@task
def numbers():
    return list(range({WIDTH}))

@task
def large(n):
    return f"{{n:04}}" * {SIZE // 4}

@task
async def large_too(n):
    return f"{{n:04}}" * {SIZE // 4}

@task
def check(found, others):
    for texts in (found, others):
        assert [text[:4] for text in texts] == [f"{{n:04}}" for n in range({WIDTH})]
        assert all(text == text[:4] * {SIZE // 4} for text in texts)
    return len(found) + len(others)

@dag
def killed():
    items = numbers()
    check(large.expand(n=items), large_too.expand(n=items))
"""


class Killer:
    """Kills a daemon at a chosen moment of a chosen upload."""

    def __init__(self, daemon: DaemonProcess, of_store: FaultProxy, seed: int) -> None:
        self._daemon = daemon
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.arm()
        of_store.watch = self._watch

    def arm(self) -> None:
        """Draw the moment of the next kill."""
        self.moment = self._random.choice(MOMENTS)
        self._left = self._random.randint(1, WIDTH)
        self._delay = self._random.uniform(0, 0.02) if self.moment == "answered" else 0.0
        self.has_killed = False

    def _watch(self, method: str, moment: str) -> None:
        if method != "PUT" or moment != self.moment or self.has_killed:
            return
        with self._lock:
            self._left -= 1
            if self._left or self.has_killed:
                return
            self.has_killed = True
        time.sleep(self._delay)
        self._daemon.process.kill()


def committed(home: Path) -> set[str]:
    """Return the committed results that are stored outside their rows."""
    with closing(sqlite3.connect(f"file:{home / 'aioflow.db'}?mode=ro", uri=True)) as database:
        found = database.execute(
            "SELECT task_no, start_no FROM result WHERE body IS NULL AND size > 0"
        )
        return {f"{task_no}.{start_no}" for task_no, start_no in found}


def objects(moto: str, name: str) -> set[str]:
    """Return the results that the object store contains."""
    found: set[str] = set()
    more = ""
    while True:
        page = httpx2.get(
            f"{moto}/{name}",
            params={
                "list-type": "2",
                "prefix": "results/",
                **({"start-after": more} if more else {}),
            },
            timeout=60,
        ).text
        keys = re.findall(r"<Key>([^<]*)</Key>", page)
        found.update(key.rpartition("/")[2] for key in keys)
        if len(keys) < 1_000:
            return found
        more = keys[-1]


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(CASES))
def test_no_committed_result_is_without_its_object(
    seed,
    tmp_path,
    bucket,  # noqa: F811
    s3_environment,  # noqa: F811
    proxy,  # noqa: F811
    moto,
):
    put(tmp_path / "dags" / "killed.py", DAG)
    name = bucket.removeprefix("s3://")
    daemon = node(tmp_path, "home", bucket, s3_environment)
    killer = Killer(daemon, proxy, seed)
    runs: list[str] = []
    kills = dict.fromkeys(MOMENTS, 0)
    seen = 0
    try:
        while sum(kills.values()) < KILLS_OF_CASE:
            killer.arm()
            try:
                daemon.start(START_SECONDS)
                for run_id in runs[-1:]:  # or its tasks would be tried alone: they may be to blame
                    daemon.request("POST", f"/api/v1/runs/{run_id}/cancel", status=None)
                runs.append(daemon.trigger("killed"))
                eventually(lambda: not daemon.is_alive, 180, lambda: daemon.log.read_text()[-3000:])
            except (AssertionError, OSError, HTTPException):
                if not killer.has_killed:
                    raise
            daemon.process.wait(60)
            kills[killer.moment] += killer.has_killed
            rows = committed(daemon.home)
            assert rows <= objects(moto, name), "committed, but not stored"
            seen = max(seen, len(rows))
        proxy.watch = lambda *_: None
        daemon.start(START_SECONDS)
        assert daemon.wait(daemon.trigger("killed"), 300)["state"] == "success"
        stray = objects(moto, name) - committed(daemon.home)
    finally:
        if daemon.is_alive:
            daemon.kill(whole_tree=True)
    record("result_kills", seed=seed, **kills, runs=len(runs), results=seen, orphans=len(stray))
