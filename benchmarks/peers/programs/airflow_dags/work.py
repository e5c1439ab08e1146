"""The DAGs for Airflow."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import serving
from airflow.sdk import DAG, task
from airflow_waits import Late

OPTIONS: dict[str, Any] = {
    "schedule": None,
    "start_date": datetime(2025, 1, 1),  # noqa: DTZ001 - Airflow gives it its own zone
    "catchup": False,
    "max_active_tasks": 20_000,
    "max_active_runs": 50,
    "params": {"count": 10, "ledger": "", "dues": [], "file": ""},
    "default_args": {"retries": 2, "retry_delay": timedelta(seconds=1)},
}


@task
def numbers(params: Any = None) -> list[int]:
    return list(range(params["count"]))


@task
async def noop(number: int) -> None:
    return None


@task(task_id="noop")
def noop_def(number: int) -> None:
    return None


@task
def double(number: int) -> int:
    return 2 * number


@task
def total(doubled: Any) -> int:
    return sum(doubled)


@task
def hop(number: int) -> int:
    return number + 1


@task
def in_flight(number: int, params: Any = None) -> None:
    serving.mark(params["ledger"], f"start {number}")
    time.sleep(serving.task_seconds(number))
    serving.mark(params["ledger"], f"end {number}")


@task
def waits(params: Any = None) -> list[dict[str, Any]]:
    return [{"due": due, "file": params["file"]} for due in params["dues"]]


with DAG("fan_async", **OPTIONS) as fan_async:
    noop.expand(number=numbers())

with DAG("fan_def", **OPTIONS) as fan_def:
    noop_def.expand(number=numbers())

with DAG("fan_in", **OPTIONS) as fan_in:
    total(double.expand(number=numbers()))

for hops in (2, 5, 40):
    with DAG(f"hops_{hops}", **OPTIONS) as chain:
        last = hop(0)
        for _ in range(hops - 1):
            last = hop(last)
    globals()[f"hops_{hops}"] = chain

with DAG("flight", **OPTIONS) as flight:
    in_flight.expand(number=numbers())

with DAG("late", **OPTIONS) as late:
    Late.partial(task_id="late").expand_kwargs(waits())
