"""A backfill whose daemon is killed again and again: each fire time gets exactly one run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks.daemon import eventually
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DAYS = 30
DAGS = """
from aioflow import current, dag, task


@task
async def book(path: str, day: str) -> None:
    with open(path, "a") as file:
        file.write(f"{day}\\n")


@dag(schedule="0 3 * * *", max_active_runs=1)
def daily(path: str = "", ds: str = current.ds) -> None:
    book(path, ds)
"""


MADE = "FROM run WHERE backfill IS NOT NULL AND dag_id = ?"


def has_made(daemon: SharedDaemon, dag_id: str, least: int) -> bool:
    with daemon.database() as db:
        found: int = db.execute(f"SELECT count(*) {MADE}", (dag_id,)).fetchone()[0]
    return found >= least


@pytest.mark.parametrize(
    ("dag_id", "kills_at"),
    [
        pytest.param("daily", (9,), id="killed-once"),
        pytest.param("thrice", (3, 9, 18), id="killed-thrice", marks=pytest.mark.nightly),
    ],
)
def test_each_fire_time_has_one_run_though_the_daemon_is_killed_again_and_again(
    killed_daemon: SharedDaemon, tmp_path: Path, dag_id: str, kills_at: tuple[int, ...]
) -> None:
    daemon, booked = killed_daemon, tmp_path / "booked"
    daemon.add(f"{dag_id}.py", DAGS.replace("daily", dag_id))
    body = {
        "from": "2026-01-01",
        "to": "2026-01-30",
        "max_active": 3,
        "reverse": True,
        "conf": {"path": str(booked)},
    }
    daemon.knows(dag_id)
    status, backfill = daemon.request("POST", f"/api/v1/dags/{dag_id}/backfills", body)
    for count in kills_at:
        eventually(partial(has_made, daemon, dag_id, count), 30.0, look_seconds=0.01)
        daemon.kill(whole_tree=True)
        daemon.start()
    path = f"/api/v1/backfills/{backfill['backfill_id']}"
    eventually(lambda: daemon.get(path)[1]["state"] == "done", 60.0)
    _, done = daemon.get(path)
    with daemon.database() as db:
        found = db.execute(f"SELECT logical_date {MADE} ORDER BY run_no", (dag_id,))
        fire_times = [row[0] for row in found]

    assert status == 201
    assert (done["made"], done["runs"]) == (DAYS, {"success": DAYS})
    assert fire_times == sorted(fire_times, reverse=True)
    assert len(set(fire_times)) == DAYS
    assert set(booked.read_text().split()) == {f"2026-01-{day:02}" for day in range(1, DAYS + 1)}
