"""Mistakes that type checkers find before anything runs. Every ignore must be needed."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedExpression=false

from __future__ import annotations

from datetime import date

from aioflow import DAG, Retry, current, sensor, task


@task
def listed(day: date) -> list[str]:
    return [str(day)]


@task
async def awaited(merchant: str, ds: str = current.ds) -> int:
    return len(merchant + ds)


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
