"""Triggers that misbehave, beside a thousand others that only have to be on time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aioflow import Operator, Retry, Trigger, TriggerEvent, dag, stream, task
from aioflow_triggers.files import FileTrigger
from aioflow_triggers.temporal import DateTimeTrigger

ONCE = Retry(tries=1)


@dataclass
class Sleeps(Trigger[int]):
    seconds: float

    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        time.sleep(self.seconds)  # noqa: ASYNC251
        yield TriggerEvent(1)


class Spins(Trigger[int]):
    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        number = 0
        while number >= 0:
            number += 1
        yield TriggerEvent(number)


class Exits(Trigger[int]):
    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        await asyncio.sleep(0.1)
        raise SystemExit(3)
        yield TriggerEvent(1)


class Swallows(Trigger[int]):
    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
            yield TriggerEvent(1)


class NeverCleansUp(Trigger[int]):
    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        yield TriggerEvent(1)

    async def cleanup(self, reason: str = "") -> None:
        await asyncio.sleep(3600)


class BlocksInCleanup(Trigger[int]):
    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        yield TriggerEvent(1)

    async def cleanup(self, reason: str = "") -> None:
        time.sleep(30.0)  # noqa: ASYNC251


class Floods(Trigger[int]):
    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        for number in range(1_000_000):
            yield TriggerEvent(number, key=str(number))


@dataclass
class Swells(Trigger[bytes]):
    mebibytes: int

    async def run(self) -> AsyncIterator[TriggerEvent[bytes]]:
        yield TriggerEvent(bytes(self.mebibytes * 2**20))


class Waits(Operator):
    """Waits for the trigger that it was created with."""

    def __init__(self, *, trigger: Trigger[Any], **options: Any) -> None:
        super().__init__(**options)
        self.trigger = trigger

    def execute(self, context: Any) -> None:
        self.defer(trigger=self.trigger, method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> int:
        return 1


@dag
def sleeps() -> None:
    Waits(task_id="waits", retry=ONCE, trigger=Sleeps(30.0))


@dag
def spins() -> None:
    Waits(task_id="waits", retry=ONCE, trigger=Spins())


@dag
def exits() -> None:
    Waits(task_id="waits", retry=ONCE, trigger=Exits())


@dag
def swallows() -> None:
    Waits(task_id="waits", retry=ONCE, trigger=Swallows())


@dag
def never_cleans_up() -> None:
    Waits(task_id="waits", retry=ONCE, trigger=NeverCleansUp())


@dag
def blocks_in_cleanup() -> None:
    Waits(task_id="waits", retry=ONCE, trigger=BlocksInCleanup())


@dag
def floods() -> None:
    Waits(task_id="waits", retry=ONCE, trigger=Floods())


@dag
def swells() -> None:
    Waits(task_id="waits", retry=ONCE, trigger=Swells(100))


@task(retry=ONCE)
async def sips(gate: Path) -> int:
    taken = 0
    async for event in stream(Floods()):
        assert event == taken
        taken += 1
        await asyncio.sleep(0.2)
        if gate.exists():
            break
    return taken


@dag
def floods_a_stream(gate: Path) -> None:
    sips(gate)


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


class OnTime(Operator):
    """Waits for its time or for its file, and records how late it resumed."""

    def __init__(
        self,
        *,
        number: int,
        count: int,
        begin: float,
        seconds: float,
        ledger: Path,
        files: str = "",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.number, self.ledger, self.files = number, Path(ledger), files
        self.due = begin + seconds * number / count

    def execute(self, context: Any) -> None:
        trigger: Trigger[Any] = DateTimeTrigger(datetime.fromtimestamp(self.due, UTC))
        if self.files:
            trigger = FileTrigger(path=f"{self.files}/{self.number}", stable=0)
        self.defer(trigger=trigger, method_name="resumed", kwargs={"due": self.due})

    def resumed(self, context: Any, event: Any = None, due: float = 0.0) -> int:
        late = time.time() - due
        with self.ledger.open("a") as file:
            file.write(f"{context['run_id']} {self.task_id} {self.number} {late:.6f}\n")
        return 1


@dag
def on_time(
    ledger: Path,
    files: str,
    begin: float,
    seconds: float,
    instants: int = 700,
    arrivals: int = 300,
) -> None:
    """Wait for times, and for files written by the test, both spread evenly over the seconds."""
    told = {"begin": begin, "seconds": seconds, "ledger": ledger, "retry": ONCE}
    OnTime.partial(task_id="instant", count=instants, **told).expand(
        number=numbers.override(task_id="instants")(instants)
    )
    OnTime.partial(task_id="arrival", count=arrivals, files=files, **told).expand(
        number=numbers.override(task_id="arrivals")(arrivals)
    )
