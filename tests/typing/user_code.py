"""A file as users write it that uses the whole API. Type checkers read it, and a test runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, assert_type
from uuid import UUID

from aioflow import (
    DAG,
    Context,
    Cron,
    Every,
    Fail,
    NotReady,
    Operator,
    PokeReturnValue,
    Ref,
    Retry,
    RetryAfter,
    Sensor,
    Skip,
    TaskDeferred,
    Trigger,
    TriggerEvent,
    TriggerRule,
    all_of,
    any_of,
    chain,
    current,
    dag,
    now,
    run_ending,
    sensor,
    sleep,
    step,
    task,
    task_group,
    uuid,
    wait,
)

# ── a pipeline ──────────────────────────────────────────────────────────────────────────


@sensor(timeout="14h", interval="60s")
async def npci_file(day: date) -> bool:
    return await asyncio.to_thread(Path(f"/incoming/{day}/settlements.csv").exists)


@task
def list_merchants(day: date) -> list[str]:
    return [f"merchant of {day}"]


@task(
    retry=Retry(tries=5, delay="1s", factor=2, max_delay="5m"),
    execution_timeout="10m",
    max_wait="2h",
    pool="ledger",
    map_limit=1_000_000,
)
def settle(merchant: str) -> Decimal:
    return Decimal(len(merchant))


@task(trigger_rule="all_done")
def daily_total(amounts: Sequence[Decimal]) -> Decimal:
    return sum(amounts, Decimal(0))


@dag(schedule="0 3 * * *", timezone="Asia/Kolkata", catchup=False, max_active_runs=1)
def settlements(day: date = current.logical_day) -> None:
    merchants = list_merchants(day).after(npci_file(day))
    daily_total(settle.expand(merchant=merchants))


# ── tasks ───────────────────────────────────────────────────────────────────────────────


@dataclass
class Order:
    number: int
    placed: datetime


@task
async def fetch(url: str, ds: str = current.ds) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"url": len(url), "day": len(ds)}


@task(retries=2, retry_delay=timedelta(seconds=5), slots=2, priority=3, window=10)
def pick(count: int, orders: list[Order], ds: str | None = None) -> Order | None:
    if count > 3:
        raise RetryAfter("30s")
    if count < 0:
        raise Fail("no such count")
    if not orders:
        raise Skip(f"nothing on {ds}")
    return orders[0]


@task
def orders_of(day: date, key: str = current.idempotency_key) -> list[Order]:
    return []


@task
def add(x: int, y: int = 1, *, scale: float = 1.0) -> float:
    return (x + y) * scale


@task
def report(rows: list[Any], named: dict[str, Any]) -> None: ...


@sensor
def by_slot(path: str) -> bool:
    if path == "/later":
        raise NotReady(recheck_in=60)
    return Path(path).exists()


@sensor(backoff=2, max_interval="10m", on_timeout="skip", on_error="ignore")
async def newest(folder: str) -> PokeReturnValue[str]:
    return PokeReturnValue(is_done=True, xcom_value=folder)


# ── classes ─────────────────────────────────────────────────────────────────────────────


@dataclass
class QueueDepthTrigger(Trigger[int]):
    url: str
    below: int
    every: float = 30.0

    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        self.log.info("waits since %s", self.since)
        while self.below < 0:
            await asyncio.sleep(self.every)
        yield TriggerEvent(self.below, key="only")


@dataclass(frozen=True)
class AfterRun(Trigger[str]):
    dag_id: str

    async def run(self) -> AsyncIterator[TriggerEvent[str]]:
        ending = await run_ending(self.dag_id, since=self.since)
        yield TriggerEvent(ending.state)

    async def cleanup(self, reason: str) -> None:
        assert reason


class Export(Operator):
    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(**options)
        self.path = path

    def execute(self, context: Context) -> str:
        self.defer(
            trigger=QueueDepthTrigger("http://queue", below=5),
            method_name="resume",
            kwargs={"n": 1},
            timeout="2h",
        )

    def resume(self, context: Context, event: int, n: int = 0) -> str:
        if event > 5:
            raise TaskDeferred(trigger=AfterRun("settlements"), method_name="resume")
        return f"{self.path} {n}"


class Arrived(Sensor):
    def __init__(self, path: str, **options: Any) -> None:
        super().__init__(**options)
        self.path = path

    async def poke(self, context: Context) -> bool:
        return bool(context["ds"])


# ── waits inside a task ─────────────────────────────────────────────────────────────────


def looked_up(key: str, *, times: int = 1) -> dict[str, int]:
    return {key: times}


async def told(order: Order) -> bool:
    return order.number > 0


@task(on_code_change="keep")
async def approval(order: Order) -> dict[str, int]:
    depth = QueueDepthTrigger("http://queue", below=5)
    assert_type(await wait(depth, timeout="2h"), int)
    row = await step(looked_up, "a", times=2)
    assert_type(row, dict[str, int])
    assert_type(await step(told, order), bool)
    await sleep("5m")
    assert_type(await now(), datetime)
    assert_type(await uuid(), UUID)
    index, first = await wait(any_of(depth, QueueDepthTrigger("http://other", 1)))
    assert_type(index, int)
    assert_type(first, int)
    assert_type(await wait(all_of(depth, depth), timeout=60), list[int])
    match await wait(any_of(depth, AfterRun("settlements")), timeout="1d"):
        case (0, _):
            return row
        case (_, state):
            print(state)
    return {}


# ── DAGs of every kind ──────────────────────────────────────────────────────────────────


@dag("orders", schedule=Every("15m"), tags=["shop"], start_date=date(2026, 1, 1), catchup=True)
def orders(day: date = current.logical_day, count: int = 3) -> None:
    """Orders of a day."""
    placed = orders_of(day)
    assert_type(placed, Ref[list[Order]])
    first = pick(count, placed)
    fetched = fetch("http://shop")
    assert_type(fetched, Ref[dict[str, int]])
    total = add(fetched["url"], scale=2.0)
    assert_type(total, Ref[float])
    sums = add.partial(y=5).expand(x=[1, 2, 3])
    assert_type(sums, Ref[Sequence[float]])
    report([first, sums, 4], {"total": total, "name": current.params["count"]})
    chain(first, [total, sums], by_slot("/there"))
    path = newest("/in")
    assert_type(path, Ref[str])
    again = fetch.override(task_id="again", trigger_rule="one_success", retries=0)(path)
    assert_type(again >> total, Ref[float])
    approval.expand(order=placed.after(fetched))
    assert_type([first, fetched] >> path, Ref[str])
    path << by_slot.override(task_id="gate")("/gate")
    approval(placed[0])


@task_group(until=lambda total: total > 9, max_rounds=5)
def refined(total: float, previous: float = 0) -> Ref[float]:
    return add(1, scale=previous)


@dag
def looped() -> None:
    last = refined(1.5)
    assert_type(last.rounds, Ref[Sequence[float]])
    report([last, last.rounds], {})


@dag
def bare() -> None:
    by_slot("/there")


with DAG(
    "classic", schedule=Cron("@daily"), default_args={"retries": 1}, params={"limit": 10}
) as classic:
    arrived = Arrived(task_id="arrived", path="/in", poke_interval=30, soft_fail=True)
    export = Export(task_id="export", path="/out", trigger_rule=TriggerRule.ALL_DONE)
    arrived >> export >> fetch(export.output)
    exports = Export.partial(task_id="exports", pool="wide").expand(path=["/a", "/b"])
    report([exports], {})

settlements()
assert_type(settle.fn("m"), Any)
