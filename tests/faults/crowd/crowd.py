"""Many waits of every kind that last until the gate file exists, and some streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aioflow import (
    Operator,
    Trigger,
    TriggerEvent,
    any_of,
    current,
    dag,
    sensor,
    sleep,
    step,
    stream,
    task,
    wait,
)
from aioflow_triggers.files import FileTrigger
from aioflow_triggers.temporal import TimeDeltaTrigger

ROUNDS = 4
"""Number of short waits of each task before it waits for the gate."""


def note(ledger: Path, *words: object) -> None:
    """Append one whole line to the ledger, which is independent of any database."""
    with ledger.open("a") as file:
        file.write(" ".join(map(str, (*words, time.time_ns()))) + "\n")


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


def pause(number: int, seconds: float) -> float:
    """Return the duration of a short wait. They vary, so that some waits end at any time."""
    return seconds / ROUNDS * (0.5 + number % 17 / 17)


def opened(gate: Path) -> FileTrigger:
    return FileTrigger(path=str(gate), poll_seconds=0.5, stable=0)


class Deferring(Operator):
    """Defers again and again, and is a new instance after each wait."""

    def __init__(
        self, *, number: int, ledger: Path, gate: Path, seconds: float, **options: Any
    ) -> None:
        super().__init__(**options)
        self.number, self.seconds = number, seconds
        self.ledger, self.gate = Path(ledger), Path(gate)

    def execute(self, context: Any) -> None:
        self.resumed(context, done=0)

    def resumed(self, context: Any, event: Any = None, done: int = 0) -> int:
        note(self.ledger, context["run_id"], "deferring", self.number, done)
        if done > ROUNDS:
            return done
        trigger: Trigger[Any] = opened(self.gate)
        if done < ROUNDS:
            trigger = TimeDeltaTrigger(pause(self.number, self.seconds))
        self.defer(trigger=trigger, method_name="resumed", kwargs={"done": done + 1})
        raise AssertionError("unreachable")


def did(ledger: Path, run_id: str, what: str, number: int, done: int) -> int:
    note(ledger, run_id, what, number, done)
    return done


@task(retries=0)
async def durable(
    number: int, ledger: Path, gate: Path, seconds: float, run_id: str = current.run_id
) -> list[int]:
    done = []
    for count in range(ROUNDS):
        done.append(await step(did, ledger, run_id, "durable", number, count))
        match (number + count) % 3:
            case 0:
                await sleep(pause(number, seconds))
            case 1:
                await wait(TimeDeltaTrigger(pause(number, seconds)))
            case _:
                never = opened(gate.with_name("never"))
                await wait(any_of(never, TimeDeltaTrigger(pause(number, seconds))))
    await wait(any_of(opened(gate.with_name("never")), opened(gate)))
    done.append(await step(did, ledger, run_id, "durable", number, ROUNDS))
    return done


@sensor(interval=1, timeout="1h", retries=0)
async def gate_is_open(number: int, gate: Path) -> bool:
    return gate.exists()


@dataclass
class Counting(Trigger[int]):
    """Counts up to its end, starting after its last event or, each time it is assigned, at 0."""

    count: int
    every: float  # seconds
    goes_on: bool

    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        goes_on = self.goes_on and self.last is not None
        first = int(self.last.key or 0) + 1 if goes_on and self.last is not None else 0
        for number in range(first, self.count):
            yield TriggerEvent(number, key=str(number))
            await asyncio.sleep(self.every)


@task(retries=0)
async def following(
    number: int, ledger: Path, count: int, every: float, run_id: str = current.run_id
) -> list[int]:
    return [
        await step(did, ledger, run_id, "following", number, event)
        async for event in stream(Counting(count, every, goes_on=number % 2 == 0))
    ]


@task
def intervals(events: int, seconds: float) -> float:
    return seconds / events


@dag
def crowd(
    ledger: Path,
    gate: Path,
    deferred: int = 80,
    coroutines: int = 80,
    sensors: int = 40,
    streams: int = 5,
    events: int = 50,
    seconds: float = 10.0,
) -> None:
    """Run the given number of tasks of each kind.

    All short waits of a task together last ``seconds``, and so does a stream.
    """
    told = {"ledger": ledger, "gate": gate, "seconds": seconds}
    Deferring.partial(task_id="deferring", retries=0, **told).expand(
        number=numbers.override(task_id="first")(deferred)
    )
    durable.partial(**told).expand(number=numbers.override(task_id="second")(coroutines))
    gate_is_open.partial(gate=gate).expand(number=numbers.override(task_id="third")(sensors))
    every = intervals(events, seconds)
    following.partial(ledger=ledger, count=events, every=every).expand(
        number=numbers.override(task_id="fourth")(streams)
    )
