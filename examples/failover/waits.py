"""Many waits, each of which notes when it is over: ``aioflow demo --failover`` runs them."""

from __future__ import annotations

import time
from pathlib import Path

from aioflow import current, dag, sleep, task


@task
def list_waits(count: int) -> list[int]:
    """Return the number of each wait."""
    return list(range(count))


@task
async def wait_once(
    number: int, seconds: float, ledger: Path, start: str = current.idempotency_key
) -> None:
    """Wait for a part of the time, which differs from wait to wait, and note the end."""
    await sleep(1.0 + seconds * (number * 0.618034 % 1.0))
    with ledger.open("a") as file:
        file.write(f"begin W{number:06} {start} {time.time_ns()}\n")
        file.write(f"end W{number:06} {start} {time.time_ns()}\n")


@dag
def waits(ledger: Path, count: int = 10_000, seconds: float = 60.0) -> None:
    """Hold ``count`` waits, which end one after the other within ``seconds``."""
    wait_once.partial(seconds=seconds, ledger=ledger).expand(number=list_waits(count))
