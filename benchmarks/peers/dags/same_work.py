"""The tasks of the measurements that ``benchmarks/dags`` has no DAG for."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime
from typing import Any

from aioflow import Operator, dag, task
from aioflow_triggers.temporal import DateTimeTrigger


def mark(file: str, text: str) -> None:
    """Append a line to the ledger, in one write, so that lines of several processes do not mix."""
    descriptor = os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


@task
def hop(number: int) -> int:
    return number + 1


@dag
def hops_2() -> None:
    hop(hop(0))


@dag
def hops_5() -> None:
    last = hop(0)
    for _ in range(4):
        last = hop(last)


@dag
def hops_40() -> None:
    last = hop(0)
    for _ in range(39):
        last = hop(last)


@task(map_limit=100_000)
async def numbers(count: int) -> list[int]:
    return list(range(count))


@task
async def in_flight(number: int, ledger: str) -> None:
    mark(ledger, f"start {number}")
    await asyncio.sleep(0.5 + number % 101 / 50)
    mark(ledger, f"end {number}")


@dag
def flight(count: int = 500, ledger: str = "") -> None:
    in_flight.partial(ledger=ledger).expand(number=numbers(count))


class Over(Operator):
    """Waits until a time that has already passed."""

    def __init__(self, *, number: int, **options: Any) -> None:
        super().__init__(**options)
        self.number = number

    def execute(self, context: Any) -> None:
        moment = datetime.fromtimestamp(time.time() - 1, UTC)
        self.defer(trigger=DateTimeTrigger(moment=moment), method_name="resumed")

    def resumed(self, context: Any, event: Any = None) -> None:
        return None


@dag
def immediate(count: int = 1_000) -> None:
    Over.partial(task_id="over").expand(number=numbers(count))
