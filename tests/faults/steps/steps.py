"""Tasks with three waits and two steps each, which write to a ledger outside any database."""

from __future__ import annotations

import uuid
from pathlib import Path

from aioflow import dag, sleep, step, task, wait
from aioflow_triggers.files import FileTrigger


def effect(ledger: str, number: int, name: str) -> str:
    """Write a mark that is unique to this execution of the step, and return it."""
    mark = uuid.uuid4().hex
    with Path(ledger).open("a") as file:
        file.write(f"{number} {name} {mark}\n")
    return mark


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


@task(retries=0)
async def stepping(number: int, ledger: str, gate: str, seconds: float) -> list[str]:
    await sleep(seconds / 2 * (number % 17) / 17)
    first = await step(effect, ledger, number, "first")
    await sleep(seconds / 2 * (number % 13) / 13)
    second = await step(effect, ledger, number, "second")
    await wait(FileTrigger(path=gate, poll_seconds=0.5, stable=0))
    return [first, second]


@dag
def steps(ledger: str = "", gate: str = "", count: int = 10, seconds: float = 1.0) -> None:
    stepping.partial(ledger=ledger, gate=gate, seconds=seconds).expand(number=numbers(count))
