"""A backfill whose daemon is killed again and again: each slot gets its run, and one only."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks.daemon import DaemonProcess, eventually

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


def has_made(daemon: DaemonProcess, least: int) -> bool:
    with daemon.database() as db:
        found: int = db.execute("SELECT count(*) FROM run WHERE backfill IS NOT NULL").fetchone()[0]
    return found >= least


def test_each_slot_has_one_run_though_the_daemon_is_killed_again_and_again(tmp_path: Path) -> None:
    dags, booked = tmp_path / "dags", tmp_path / "booked"
    dags.mkdir()
    (dags / "daily.py").write_text(DAGS)
    with DaemonProcess(tmp_path / "home", dags) as daemon:
        body = {
            "from": "2026-01-01",
            "to": "2026-01-30",
            "max_active": 3,
            "reverse": True,
            "conf": {"path": str(booked)},
        }
        known = "/api/v1/dags/daily"  # once its file has been parsed
        eventually(lambda: daemon.get(known, status=None)[0] == 200, 30.0)
        status, backfill = daemon.request("POST", f"{known}/backfills", body)
        for count in (3, 9, 18):
            eventually(partial(has_made, daemon, count), 30.0, look_seconds=0.01)
            daemon.kill(whole_tree=True)
            daemon.start()
        path = f"/api/v1/backfills/{backfill['backfill_id']}"
        eventually(lambda: daemon.get(path)[1]["state"] == "done", 60.0)
        _, done = daemon.get(path)
        with daemon.database() as db:
            slots = [row[0] for row in db.execute("SELECT logical_date FROM run ORDER BY run_no")]

    assert status == 201
    assert (done["made"], done["runs"]) == (DAYS, {"success": DAYS})
    assert slots == sorted(slots, reverse=True)
    assert len(set(slots)) == DAYS
    assert set(booked.read_text().split()) == {f"2026-01-{day:02}" for day in range(1, DAYS + 1)}
