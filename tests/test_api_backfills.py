"""Backfills in the API, with a real engine and a real database."""

from __future__ import annotations

import pytest

from aioflow.api.backfills import BackfillView
from aioflow.model.dag import DagSpec, ScheduleSpec, TaskSpec
from tests.turns import until
from tests.web.node import Node, node

DAILY = DagSpec(
    dag_id="daily",
    file="daily.py",
    tasks=(TaskSpec(task_id="work"),),
    schedule=ScheduleSpec(cron="0 0 * * *"),
)


async def known(n: Node) -> None:
    """Define a paused DAG, whose schedule therefore starts no runs beside those of a backfill."""
    n.define(DAILY)
    await n.api.set_paused("daily", paused=True)


async def shown(n: Node, number: int, state: str = "running", **counts: int) -> BackfillView:
    """Return a backfill once it and its runs have the given state and counts."""
    views: list[BackfillView] = []

    async def stands_so() -> bool:
        views.append(await n.api.backfills.show(number))
        return (views[-1].state, views[-1].runs) == (state, counts)

    await until(n.engine, stands_so)
    return views[-1]


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_backfill_is_done_as_far_as_its_runs_have_ended(tmp_path, reverse):
    async with node(tmp_path, cpu_slots=4) as n:
        await known(n)
        made, _ = await n.api.backfills.start(
            "daily", first="2026-01-01", last="2026-01-04", max_active=4, reverse=reverse
        )
        number = made.backfill_id
        views = [await shown(n, number, running=4)]
        await n.succeed()
        views.append(await shown(n, number, running=3, success=1))
        for _ in range(3):
            await n.succeed()
        views.append(await shown(n, number, "done", success=4))

    assert [(view.state, view.next_fire_time, view.progress) for view in views] == [
        ("running", None, 0.0),
        ("running", None, 0.25),
        ("done", None, 1.0),
    ]


async def test_a_backfill_with_fire_times_to_come_counts_those_behind_it(tmp_path):
    async with node(tmp_path, cpu_slots=4) as n:
        await known(n)
        made, _ = await n.api.backfills.start(
            "daily", first="2026-01-01", last="2026-01-04", max_active=1
        )
        await shown(n, made.backfill_id, running=1)
        await n.succeed()
        view = await shown(n, made.backfill_id, running=1, success=1)

    assert view.progress == pytest.approx(2 / 4 * 1 / 2, abs=0.01)
