"""A task with three durable steps in a pool of one slot, and a gate before the last step."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aioflow import dag, step, task


def note(ledger: str, run: str, name: str) -> str:
    """Append a line to the ledger, which is independent of any database."""
    with Path(ledger).open("a") as file:
        file.write(f"{name} {run}\n")
    return name


@task(pool="narrow", retries=0)
async def stepping(ledger: str, gate: str, run: str) -> list[str]:
    first = await step(note, ledger, run, "first")
    second = await step(note, ledger, run, "second")
    note(ledger, run, "between")
    while not Path(gate).exists():
        await asyncio.sleep(0.02)
    third = await step(note, ledger, run, "third")
    return [first, second, third]


@dag
def stepped(ledger: str, gate: str, run: str) -> None:
    stepping(ledger, gate, run)
