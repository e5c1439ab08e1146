"""A daemon with DAGs of every outcome, started and queried only with commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.daemon import eventually
from tests.commands import Done, run

__all__ = ("DAGS", "TALK", "Daemon")

DAGS = """
import sys
import time
from pathlib import Path

from aioflow import Asset, Retry, dag, sensor, task, wait
from aioflow_triggers.events import EventTrigger
from aioflow_triggers.external import RunTrigger

once = Retry(tries=1)


@task
def numbers(n: int) -> list[int]:
    print("counting to", n)
    return list(range(n))


@task
def square(i: int) -> int:
    print("square of", i)
    return i * i


@task
def total(values: list[int]) -> int:
    return sum(values)


@task(outlets=[Asset('ledger')], retry=once)
def bad() -> int:
    raise ValueError("no money \\x1b[31m today")


@task(retry=Retry(tries=3, delay="0.3s"))
def noisy(try_number: int) -> None:
    for line in range(200):
        print("line", line, "\\u202e\\x1b]0;owned\\x07\\x9b31m\\r\\u2066 in", try_number)
        time.sleep(0.001)
    print("the end of", try_number, end="")
    if try_number < 3:
        raise ValueError("again")


@task(trigger_rule="all_done")
def after(value: int | None) -> str:
    return "done"


@sensor(interval="0.2s")
async def arrived(path: str) -> bool:
    return Path(path).exists()


@task
async def other(dag_id: str, run_id: str) -> None:
    await wait(RunTrigger(dag_id, run_id=run_id))


@dag
def hen() -> None:
    other("egg", "egg-1")


@dag
def egg() -> None:
    other("hen", "hen-1")


@task
async def approved() -> str:
    return await wait(EventTrigger("approved"))


@dag
def approval() -> None:
    approved()


@dag
def sums(n: int = 3) -> None:
    total(square.expand(i=numbers(n)))


@dag
def breaks() -> None:
    bad()


@dag
def noise() -> None:
    noisy()


@dag
def halves() -> None:
    after(bad())


@dag(schedule="0 5 * * *", timezone="Asia/Kolkata")
def rolls(n: int = 1) -> None:
    numbers(n)


@dag(schedule="0 3 * * *")
def waits(path: str = "/nonexistent/file") -> None:
    total([arrived(path)])
"""

TALK = """
from aioflow import dag, task, wait
from aioflow_triggers.events import EventTrigger


@task
async def talk() -> None:
    print("I wait", flush=True)
    await wait(EventTrigger("never"))


@dag
def talks() -> None:
    talk()
"""


class Daemon:
    """A process of ``aioflow --json``, with a home and a folder of DAG files beside it.

    Args:
        files: Name and content of each DAG file.
    """

    def __init__(self, folder: Path, **files: str) -> None:
        self.home = folder / "home"
        self.dags = folder / "dags"
        self.log = folder / "daemon.log"
        self.dags.mkdir()
        for name, content in files.items():
            (self.dags / f"{name}.py").write_text(content)
        words = [sys.executable, "-m", "aioflow", "--json", "--home", str(self.home)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*words, "--dags", str(self.dags), "--port", "0"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.facts: dict[str, Any] = json.loads(self.process.stdout.readline())
        try:
            eventually(lambda: {f"{name}.py" for name in files} <= self._told(), 60.0)
        except BaseException:
            self.kill()  # a daemon that failed to start is stopped by nothing else
            raise

    def _told(self) -> set[str]:
        """Return the files parsed so far. A slow daemon may be ready before all are parsed."""
        return {Path(dag["file"]).name for dag in self.run("dags", "list", "--json").json}

    def run(self, *words: object, given: str = "") -> Done:
        """Run a command for its home in this process, with the given standard input."""
        return run(*words, home=self.home, given=given)

    def stop(self) -> int:
        """Stop the daemon. Return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def kill(self) -> None:
        """Kill the daemon with ``kill -9``."""
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status
