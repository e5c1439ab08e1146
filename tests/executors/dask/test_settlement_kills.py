"""A settlement day on a Dask cluster whose workers are killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import eventually
from examples.settlement_data import generate
from tests.campaigns.record import record
from tests.daemons import SharedDaemon

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.timeout(1_200),
    pytest.mark.xdist_group("dask"),
]

EXAMPLE = Path(__file__).parents[3] / "examples" / "dags" / "settlements.py"
KILLS = 10
MERCHANTS = 400
MOST_BETWEEN = 50
"""A worker is killed after at most this many successful tasks."""


def settlements_on_dask() -> str:
    """Return the example on Dask. Its bodies are made long enough to be hit by a kill."""
    content, first = EXAMPLE.read_text(), "    gross = fees = Decimal(0)\n"
    for old, new in (
        ("@dag(", '@dag(executor="dask", '),
        (first, f"    time.sleep(0.05)\n{first}"),
    ):
        assert content.count(old) == 1
        content = content.replace(old, new)
    return content


class Day:
    """The run of one day."""

    def __init__(self, daemon: SharedDaemon, folder: Path, day: date) -> None:
        self._daemon = daemon
        self.day, self.folder = day, folder
        self._is_over = False
        self.total = generate(folder, day, merchants=MERCHANTS, transactions=4_000)
        conf = {"folder": str(folder), "day": day.isoformat()}
        self.run_id = daemon.trigger("settlements", conf)

    def goes_on(self, count: int) -> bool:
        """Wait until this many more tasks succeed. Return whether the run is still active."""
        aim = self._successes() + count

        def moved() -> bool:
            run = self._daemon.run(self.run_id, limit=1)
            self._is_over = run["state"] not in {"queued", "running"}
            return self._is_over or self._successes() >= aim

        eventually(moved, 120.0, look_seconds=0.0)
        return not self._is_over

    def _successes(self) -> int:
        return int(self._daemon.run(self.run_id, limit=1)["counts"].get("success", 0))

    def tasks(self) -> Iterator[dict[str, Any]]:
        yield from self._daemon.get(f"/api/v1/runs/{self.run_id}?limit=1000")[1]["tasks"]

    def begun(self) -> Counter[str]:
        """Return how often the body of each merchant has begun."""
        ledger = self.folder / "ledger" / f"{self.day.isoformat()}.txt"
        lines = ledger.read_text().splitlines()
        return Counter(line.split()[1] for line in lines if line.startswith("begin "))

    def starts(self) -> dict[str, int]:
        """Return how often the task of each merchant was sent to a worker."""
        query = (
            "SELECT map_index, start_no FROM task JOIN run USING (run_no) "
            "WHERE run_id = ? AND map_index >= 0 ORDER BY map_index"
        )
        with closing(sqlite3.connect(self._daemon.home / "aioflow.db")) as database:
            rows = database.execute(query, (self.run_id,)).fetchall()
        parts = self.folder / "parts" / self.day.isoformat()
        merchants = sorted(path.name for path in parts.iterdir())
        assert len(merchants) == len(rows)
        return {merchants[map_index]: start_no for map_index, start_no in rows}

    def judge(self) -> tuple[int, int]:
        """Assert the total, and that no try was charged. Return interruptions and repeated bodies.

        Reports that a killed worker has not sent yet are lost with it; on a busy machine, those of
        several tries. A body may therefore be repeated although no interruption was counted.
        """
        run = self._daemon.wait(self.run_id, 300)
        assert run["state"] == "success", run
        tasks = list(self.tasks())
        assert len(tasks) == MERCHANTS + 3
        assert {task["try_number"] for task in tasks} == {1}
        (total,) = [task for task in tasks if task["task_id"] == "daily_total"]
        assert Decimal(total["result"]) == self.total
        begun, starts = self.begun(), self.starts()
        assert begun.keys() == starts.keys()
        assert len(starts) == MERCHANTS
        often = {name: count for name, count in begun.items() if count > starts[name]}
        assert not often, "a body begins at most once for each start of its task"
        # A try begins before the first line of its body, so an interruption may repeat no body.
        return sum(task["interruptions"] for task in tasks), begun.total() - MERCHANTS


def kill_one_of(workers: list[subprocess.Popen[bytes]], dice: random.Random) -> None:
    worker = workers.pop(dice.randrange(len(workers)))
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()


def test_killed_dask_workers_cost_no_try_and_no_amount(own_cluster, tmp_path):
    dice = random.Random(20260101)
    for _ in range(2):
        own_cluster.start_worker()
    folder = tmp_path / "daemon"
    folder.mkdir()
    settings = f'[executors.dask]\naddress = "{own_cluster.address}"\n'
    daemon = SharedDaemon(folder, settings=settings, flags=("--cpu-slots", "1"))
    daemon.add("settlements.py", settlements_on_dask())
    kills = interruptions = repeats = days = 0
    total = Decimal(0)
    with daemon:
        daemon.knows("settlements")
        began = time.monotonic()
        while kills < KILLS:
            day = Day(daemon, tmp_path / "data", date(2026, 1, 1) + timedelta(days=days))
            killed = 0
            while kills + killed < KILLS and day.goes_on(dice.randint(1, MOST_BETWEEN)):
                kill_one_of(own_cluster.workers, dice)
                own_cluster.start_worker()
                killed += 1
            found, repeated = day.judge()
            assert found <= killed, "a killed worker interrupts at most the try that it had begun"
            kills, days, total = kills + killed, days + 1, total + day.total
            interruptions, repeats = interruptions + found, repeats + repeated
        seconds = time.monotonic() - began
    record(
        "dask_settlement_kills",
        kills=kills,
        days=days,
        merchants=days * MERCHANTS,
        interruptions=interruptions,
        bodies_repeated=repeats,
        seconds=round(seconds, 1),
        total=str(total),
    )
    print(
        f"{kills} kills in {days} days of {MERCHANTS} merchants: {interruptions} interruptions, "
        f"{repeats} bodies repeated, {seconds:.0f} s, total {total}"
    )
