"""Tasks that misbehave, beside tasks that must not be affected."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from aioflow import Operator, Retry, dag, sensor, task
from aioflow_triggers.files import FileTrigger
from aioflow_triggers.temporal import DateTimeTrigger

ONCE = Retry(tries=1)


def crash() -> None:
    ctypes.string_at(0)


@task(retry=ONCE)
def segfault() -> None:
    crash()


@task(retry=ONCE)
def healthy(number: int) -> int:
    time.sleep(0.02)
    return number


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


@dag
def segfaulting() -> None:
    segfault()
    healthy.expand(number=numbers(20))


@task(retry=ONCE)
async def segfault_in_the_host() -> None:
    await asyncio.sleep(0.05)
    crash()


@sensor(interval="60s", retry=ONCE)
async def suspended(path: Path, number: int) -> bool:
    return path.exists()


@dag
def segfaulting_async() -> None:
    segfault_in_the_host()


@dag
def neighbours(path: Path = Path("/nonexistent")) -> None:
    suspended.partial(path=path).expand(number=numbers(100))


@task(retry=ONCE)
def hungry() -> int:
    return len(bytearray(2_000_000_000))


@dag
def out_of_memory() -> None:
    hungry()
    healthy.expand(number=numbers(5))


@task(retry=ONCE)
def daemonizing(note: Path) -> None:
    """Leave a grandchild in a separate session, and hang."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note.write_text(str(os.getpid()))
            time.sleep(600)
        os._exit(0)
    while not note.exists() or not note.read_text():
        time.sleep(0.01)
    time.sleep(600)


@dag
def daemonizing_then_hanging(note: Path = Path("/nonexistent")) -> None:
    daemonizing.override(execution_timeout="15s")(note)


@dag
def daemonizing_for_good(note: Path = Path("/nonexistent")) -> None:
    daemonizing(note)


@task(retry=ONCE)
def chatty(megabytes: int) -> str:
    line = "x" * 1023 + "\n"
    for _ in range(megabytes):
        sys.stdout.write(line * 1024)
    return "said"


@dag
def printing(megabytes: int = 200) -> None:
    chatty(megabytes)
    healthy.expand(number=numbers(5))


@task(retry=ONCE)
def too_large() -> bytes:
    return bytes(100_000_000)


@task(retry=ONCE)
def unserializable() -> Any:
    return lambda: 1


@dag
def returning() -> None:
    too_large()
    unserializable()


@task(retry=ONCE)
def exits() -> None:
    sys.exit(3)


@task(retry=ONCE)
def exits_hard() -> None:
    os._exit(7)


@task(retry=ONCE)
async def exits_async() -> None:
    sys.exit(4)


@task(retry=ONCE)
def kills_itself() -> None:
    subprocess.run(["kill", "-9", str(os.getpid())], check=True)


@dag
def exiting() -> None:
    exits()
    exits_hard()
    exits_async()
    kills_itself()


@task(map_limit=50)
def each(number: int) -> int:
    return number


@task
def total(values: Sequence[int]) -> int:
    return sum(values)


@dag
def too_wide(count: int = 51) -> None:
    total(each.expand(number=numbers(count)))


class LambdaArgument(Operator):
    """Defers with a trigger that cannot be stored."""

    def execute(self, context: Any) -> None:
        path: Any = (lambda: "/tmp/x",)[0]
        self.defer(trigger=FileTrigger(path=path), method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> None:
        return None


@dag
def lambda_argument() -> None:
    LambdaArgument(task_id="wait", retries=0)


class WaitForFile(Operator):
    """Waits for a file, and returns the payload of the event."""

    def __init__(self, *, path: str, **options: Any) -> None:
        super().__init__(**options)
        self.path = path

    def execute(self, context: Any) -> None:
        trigger = FileTrigger(path=self.path, poll_seconds=0.1)
        self.defer(trigger=trigger, method_name="resumed", kwargs={"n": 1})

    def resumed(self, context: Any, event: Any = None, n: int = 0) -> dict[str, Any]:
        return {"event": event, "n": n}


class WaitForever(Operator):
    """Waits for a time in the far future, but only with a short timeout."""

    def execute(self, context: Any) -> None:
        moment = datetime.now(UTC) + timedelta(days=1)
        self.defer(trigger=DateTimeTrigger(moment=moment), method_name="resumed", timeout="500ms")

    def resumed(self, context: Any, event: Any = None) -> None:
        return None


@dag
def waiting(path: str = "/nonexistent") -> None:
    WaitForFile(task_id="file", path=path)


@dag
def waiting_too_long() -> None:
    WaitForever(task_id="instant", retries=0)


@task
def quick(number: int) -> int:
    return number


@dag
def plain(count: int = 3) -> None:
    total(quick.expand(number=numbers(count)))
