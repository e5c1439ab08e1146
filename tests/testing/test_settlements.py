"""The pipeline from the documentation, and the test shown there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal

import anyio

from aioflow import Retry, current, dag, sensor, task
from aioflow.testing import Sim


@sensor(timeout="14h", interval="60s")
async def npci_file(day: date) -> bool:
    return await anyio.Path(f"/incoming/{day}/settlements.csv").exists()


@task
def list_merchants(day: date) -> list[str]: ...  # type: ignore[empty-body]


@task(
    retry=Retry(tries=5, delay="1s", factor=2, max_delay="5m"),
    execution_timeout="10m",
    pool="ledger",
    map_limit=1_000_000,
)
def settle(merchant: str) -> Decimal: ...  # type: ignore[empty-body]


@task(trigger_rule="all_done")
def daily_total(amounts: Sequence[Decimal]) -> Decimal:
    return sum(amounts, Decimal(0))


@dag(schedule="0 3 * * *", timezone="Asia/Kolkata", catchup=False, max_active_runs=1)
def settlements(day: date = current.logical_day) -> None:
    merchants = list_merchants(day).after(npci_file(day))
    daily_total(settle.expand(merchant=merchants))


async def test_settlements(sim: Sim):
    run = await sim.start(settlements, day=date(2026, 1, 1))
    await sim.advance("13h")
    assert run["npci_file"].state == "sensing"
    sim.replace(settle, lambda merchant: Decimal(1))
    await run.finished()


async def test_a_file_that_comes_lets_the_merchants_be_settled(sim: Sim):
    is_there = False
    sim.replace(npci_file, lambda day: is_there)
    sim.replace(list_merchants, lambda day: ["anna", "bert", "carl"])
    sim.replace(settle, lambda merchant: Decimal(len(merchant)) / 3)
    run = await sim.start(settlements, day=date(2026, 1, 1))
    await sim.advance("13h")
    assert run.state == "running"

    is_there = True
    await sim.advance("60s")

    assert run.state == "success"
    assert run["settle"].result == [Decimal(4) / 3] * 3
    assert run["daily_total"].result == 3 * (Decimal(4) / 3)
