"""A schedule that fires every second."""

from __future__ import annotations

from aioflow import Every, dag, task


@task
async def tick() -> None:
    return None


@dag(schedule=Every("1s"), catchup=False, max_active_runs=4)
def ticks() -> None:
    tick()
