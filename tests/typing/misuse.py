"""Mistakes that type checkers find before anything runs. Every ``ignore`` must be needed."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedExpression=false

from __future__ import annotations

from datetime import date

from aioflow import DAG, Retry, all_of, any_of, current, sensor, sleep, step, task, wait


@task
def listed(day: date) -> list[str]:
    return [str(day)]


@task
async def awaited(merchant: str, ds: str = current.ds) -> int:
    return len(merchant + ds)


def counted(text: str, times: int = 1) -> int:
    return len(text) * times


async def durable_mistakes() -> None:
    await step(counted)  # type: ignore[call-overload]
    await step(counted, 5)  # type: ignore[call-overload]
    await step(counted, "a", many=2)  # type: ignore[call-arg, arg-type]
    total: str = await step(counted, "a")  # type: ignore[call-overload]
    await wait("5m")  # type: ignore[call-overload]
    await sleep([])  # type: ignore[arg-type]
    any_of(total)  # type: ignore[call-overload]
    all_of(5)  # type: ignore[call-overload]
    task(on_code_change="ignore")  # type: ignore[call-overload]


def mistakes() -> None:
    listed("today")  # type: ignore[arg-type]
    listed()  # type: ignore[call-arg]
    awaited(merchant="m", color="red")  # type: ignore[call-arg]
    awaited.expand(merchant=5)  # type: ignore[arg-type]
    awaited.override(pol="ledger")  # type: ignore[call-arg]
    awaited.override(trigger_rule="all_sucess")  # type: ignore[arg-type]
    task(retry=3)  # type: ignore[call-overload]
    sensor(interval=[])  # type: ignore[call-overload]
    DAG("made", schedule=5)  # type: ignore[arg-type]
    Retry(5)  # type: ignore[call-arg]
    awaited(listed(date(2026, 1, 1)))
