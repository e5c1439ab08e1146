"""A schedule whose tasks wait for the previous run, with a real database and crashes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from aioflow import dag, sleep, task
from aioflow.author.dag import forget_registered
from aioflow.testing import Sim


@pytest.fixture(autouse=True)
def _no_dags_of_others():
    forget_registered()


async def test_days_that_take_too_long_follow_one_another_also_over_a_crash(sim: Sim):
    @task(depends_on_past=True)
    async def load() -> None:
        await sleep("36h")

    @dag(schedule="0 0 * * *", start_date=datetime(2026, 1, 2, tzinfo=UTC))
    def daily() -> None:
        load()

    await sim.schedule(daily)
    await sim.advance("2d")
    first, second, *_ = sim.runs(daily)

    def states() -> list[str]:
        return [run["load"].state for run in (first, second)]

    assert states() == ["deferred", "pending"]
    await sim.crash()
    await sim.advance("5m")
    assert states() == ["deferred", "pending"]
    await sim.advance("36h")
    assert states() == ["success", "deferred"]
    await sim.crash()
    await sim.advance("36h")
    assert states() == ["success", "success"]
    assert [run["load"].state for run in sim.runs(daily)[2:4]] == ["deferred", "pending"]
