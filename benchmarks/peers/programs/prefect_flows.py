"""The flows for Prefect."""

from __future__ import annotations

import asyncio
from typing import Any

import serving
from prefect import flow, runtime, task
from prefect.cache_policies import INPUTS
from prefect.task_runners import ThreadPoolTaskRunner

THREADS = 8


@task
async def noop(number: int) -> int:
    return number


@task
def noop_def(number: int) -> int:
    return number


@task
async def double(number: int) -> int:
    return 2 * number


@task
async def total(numbers: list[int]) -> int:
    return sum(numbers)


@flow
async def many(count: int) -> str:
    await asyncio.gather(*(noop(number) for number in range(count)))
    return str(runtime.flow_run.id)


@flow(task_runner=ThreadPoolTaskRunner(max_workers=THREADS))
async def many_def(count: int) -> str:
    for future in noop_def.map(list(range(count))):
        future.result()
    return str(runtime.flow_run.id)


@flow
async def chain(hops: int) -> str:
    number = 0
    for _ in range(hops):
        number = await noop(number)
    return str(runtime.flow_run.id)


@flow
async def fan(count: int) -> tuple[str, int]:
    doubled = await asyncio.gather(*(double(number) for number in range(count)))
    return str(runtime.flow_run.id), await total(doubled)


@task(persist_result=True, cache_policy=INPUTS)
async def in_flight(number: int, ledger: str) -> int:
    serving.mark(ledger, f"start {number}")
    await asyncio.sleep(serving.task_seconds(number))
    serving.mark(ledger, f"end {number}")
    return number


def named(number: int) -> Any:
    """Return the task, with a name by which its record can be found."""
    return in_flight.with_options(task_run_name=f"flight-{number}")


@flow
async def flight(count: int, ledger: str) -> None:
    await asyncio.gather(*(named(number)(number, ledger) for number in range(count)))
