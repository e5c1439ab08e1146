"""Results in an object store: how fast they are stored, and how many requests a fan-out needs.

Method: a real daemon at ``durability=full``. moto serves S3 in the process of the benchmark, on the
same processors. Children return 1 MiB each; the time is that of the run's row. Yardstick: the same
objects stored by the driver alone, 8 at a time. Then a list is expanded, the daemon is started
again without its copies, and all children are cleared; the server counts the requests that read
results.

    python -m benchmarks.objects --results 1000 --items 100000
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.harness import Figure, command, report

FULL = {"results": 1_000, "items": 100_000}
TINY = {"results": 10, "items": 200}

BUCKET = "benchmark"
MIB = 1024 * 1024
PUTS_AT_ONCE = 8

DAGS = f"""
import os

from aioflow import dag, task


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


@task(map_limit=1_000_000)
def large(n: int) -> bytes:
    return os.urandom({MIB})


@task(map_limit=1_000_000)
def nothing(n: int) -> None:
    pass


@dag
def stored(count: int) -> None:
    large.expand(n=numbers(count))


@dag
def read(count: int) -> None:
    nothing.expand(n=numbers(count))
"""


class Requests(logging.Handler):
    """Counts the lines of the server's log about requests that read results."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count one request."""
        text = record.getMessage()
        self.reads += "GET " in text and "/results/" in text


@contextmanager
def served() -> Iterator[tuple[str, Requests]]:
    """Serve S3 with one bucket; yield the address, and the counter of requests."""
    from moto.server import ThreadedMotoServer  # type: ignore[import-not-found, unused-ignore]

    requests = Requests()
    log = logging.getLogger("werkzeug")
    log.addHandler(requests)
    log.propagate = False
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        made = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(made).close()
        yield url, requests
    finally:
        server.stop()
        log.removeHandler(requests)


def measure(folder: Path, *, results: int, items: int) -> dict[str, Any]:
    """Store results, and expand a list; report rate and requests."""
    (folder / "dags").mkdir()
    (folder / "dags" / "objects.py").write_text(DAGS)
    home = folder / "home"
    home.mkdir()
    (home / "aioflow.toml").write_text(f'[results]\nurl = "s3://{BUCKET}/p"\n')
    with served() as (url, requests):
        bare = results / _bare(url, results)
        daemon = DaemonProcess(home, folder / "dags", flags=("--cpu-slots", "2"))
        daemon.environment = {**os.environ, **_variables(url)}
        with daemon:
            _took(daemon, "stored", 2)  # warm-up
            rate = results / _took(daemon, "stored", results)
            run_id = daemon.trigger("read", {"count": items})
            daemon.wait(run_id, 3_600)
        shutil.rmtree(home / "cache")
        before = requests.reads
        with daemon:
            body = {"tasks": ["nothing"]}
            daemon.request("POST", f"/api/v1/runs/{run_id}/clear", body)
            daemon.wait(run_id, 3_600)
        reads = requests.reads - before
    return report(
        "objects",
        figures=[
            Figure(
                "results of 1 MiB stored", rate, "1/s", bare, "the driver alone", None, 0.7 * bare
            ),
            Figure("reads per 100 children", 100 * reads / items, "", None, "", 2.0),
        ],
        results=results,
        items=items,
        reads=reads,
        durability="full",
        fsync_ms=fsync_ms(folder),
    )


def _variables(url: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }


def _took(daemon: DaemonProcess, dag_id: str, count: int) -> float:
    """Return the duration of one run in seconds, according to its row."""
    run_id = daemon.trigger(dag_id, {"count": count})
    assert daemon.wait(run_id, 3_600)["state"] == "success", dag_id
    with daemon.database() as database:
        (took,) = database.execute(
            "SELECT ended_at - started_at FROM run WHERE run_id = ?", (run_id,)
        ).fetchone()
    return float(took) / 1e6


def _bare(url: str, count: int) -> float:
    """Return the seconds that the driver alone takes to store as many objects."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        config={
            "endpoint": url,
            "region": "us-east-1",
            "access_key_id": "key",
            "secret_access_key": "secret",
        },
        client_options={"allow_http": True},
    )

    async def put_all() -> None:
        numbers = iter(range(count))

        async def put_each() -> None:
            for number in numbers:
                await obstore.put_async(store, f"bare/{number}", os.urandom(MIB))

        await asyncio.gather(*(put_each() for _ in range(PUTS_AT_ONCE)))

    began = time.perf_counter()
    asyncio.run(put_all())
    return time.perf_counter() - began


if __name__ == "__main__":
    command(__doc__, measure, FULL)
