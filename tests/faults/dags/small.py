"""Small runs with one of everything: a fan-out, a coroutine, a deferral, a retry, and a total."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aioflow import Operator, Retry, TriggerEvent, current, dag, task
from aioflow_triggers.files import FileSeen, FileTrigger
from aioflow_triggers.temporal import TimeDeltaTrigger

PATIENT = Retry(tries=3, delay="0.05s", jitter=False)


def note(ledger: Path, *words: object) -> None:
    """Append one whole line to the ledger, which is independent of any database."""
    with ledger.open("a") as file:
        file.write(" ".join(map(str, (*words, os.getpid(), time.time_ns()))) + "\n")


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


@task
def square(
    number: int,
    ledger: Path,
    seconds: float,
    run_id: str = current.run_id,
    index: int = current.map_index,
) -> int:
    note(ledger, "begin", run_id, "square", index)
    time.sleep(seconds)
    note(ledger, "end", run_id, "square", index)
    return number * number


@task
async def nap(ledger: Path, seconds: float, run_id: str = current.run_id) -> int:
    note(ledger, "begin", run_id, "nap", -1)
    await asyncio.sleep(max(seconds, 0.02))
    return 1


class Pause(Operator):
    """Waits a moment without a slot."""

    def __init__(self, *, ledger: Path, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self.ledger = ledger
        self.seconds = seconds

    def execute(self, context: Any) -> None:
        trigger = TimeDeltaTrigger(delta=max(self.seconds, 0.02))
        self.defer(trigger=trigger, method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> int:
        note(Path(self.ledger), "begin", context["run_id"], "pause", -1)
        return 1


@task(retry=PATIENT)
def stumble(
    ledger: Path, run_id: str = current.run_id, try_number: int = current.try_number
) -> int:
    note(ledger, "begin", run_id, "stumble", -1)
    if try_number == 1:
        raise RuntimeError("the first step")
    return 1


@task
def total(
    squares: Sequence[int],
    rest: list[int],
    ledger: Path,
    run_id: str = current.run_id,
) -> int:
    note(ledger, "begin", run_id, "total", -1)
    return sum(squares) + sum(rest)


@dag
def small(ledger: Path, count: int = 8, seconds: float = 0.0, padding: str = "") -> None:
    squares = square.partial(ledger=ledger, seconds=seconds).expand(number=numbers(count))
    napped = nap(ledger, seconds)
    paused = Pause(task_id="pause", ledger=ledger, seconds=seconds).output
    total(squares, [napped, paused, stumble(ledger)], ledger)


@dataclass(frozen=True)
class NotedFile(FileTrigger):
    """A file trigger that records each of its assignments."""

    ledger: str = ""
    run_id: str = ""
    number: int = 0

    async def run(self) -> AsyncIterator[TriggerEvent[FileSeen]]:
        note(Path(self.ledger), "hosted", self.run_id, "deferred", self.number)
        async for event in super().run():
            yield event


class Deferred(Operator):
    """Waits for a file, for at most an hour."""

    def __init__(self, *, number: int, ledger: Path, gate: Path, **options: Any) -> None:
        super().__init__(**options)
        self.number = number
        self.ledger = ledger
        self.gate = gate

    def execute(self, context: Any) -> None:
        trigger = NotedFile(
            path=str(self.gate),
            ledger=str(self.ledger),
            run_id=context["run_id"],
            number=self.number,
        )
        self.defer(trigger=trigger, method_name="resumed", timeout="1h")

    def resumed(self, context: Any, event: Any = None) -> int:
        note(Path(self.ledger), "begin", context["run_id"], "deferred", self.number)
        return 1


@task(execution_timeout="1h")
def busy(number: int, ledger: Path, gate: Path, run_id: str = current.run_id) -> int:
    """Run until the gate file exists."""
    note(ledger, "begin", run_id, "busy", number)
    while not gate.exists():
        time.sleep(0.05)
    return 1


@task(execution_timeout="1h")
async def awake(ledger: Path, gate: Path, run_id: str = current.run_id) -> int:
    note(ledger, "begin", run_id, "awake", -1)
    while not gate.exists():
        await asyncio.sleep(0.05)
    return 1


@dag
def deferred(ledger: Path, gate: Path, count: int = 20, running: int = 1) -> None:
    """Run deferred tasks and running tasks until the gate file exists."""
    waits = Deferred.partial(task_id="deferred", ledger=ledger, gate=gate)
    waits.expand(number=numbers(count))
    busy.partial(ledger=ledger, gate=gate).expand(number=numbers(running))
    awake(ledger, gate)


@task(retry=Retry(tries=1))
def hungry(mebibytes: int) -> int:
    """Allocate memory, all of it in use."""
    return len(bytearray(b"x") * (mebibytes * 2**20))


@dag
def starving(ledger: Path, mebibytes: int = 1024) -> None:
    hungry(mebibytes)
    square.partial(ledger=ledger, seconds=0.1).expand(number=numbers(8))


@task(execution_timeout="2s", retry=Retry(tries=1))
def of_a_worker(ledger: Path, mebibytes: int, run_id: str = current.run_id) -> bytes:
    note(ledger, "begin", run_id, "of_a_worker", -1)
    return os.urandom(mebibytes * 2**20)


@task(execution_timeout="2s", retry=Retry(tries=1))
async def of_a_host(ledger: Path, mebibytes: int, run_id: str = current.run_id) -> bytes:
    note(ledger, "begin", run_id, "of_a_host", -1)
    return os.urandom(mebibytes * 2**20)


@task
def size(one: bytes, other: bytes) -> int:
    return len(one) + len(other)


@dag
def large(ledger: Path, mebibytes: int = 4) -> None:
    """Make a large result in each kind of host. Neither may be computed twice."""
    size(of_a_worker(ledger, mebibytes), of_a_host(ledger, mebibytes))
