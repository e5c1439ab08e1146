"""The daemon is down for three days while forty schedules fire every minute."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aioflow.store.sqlite.database_file import open_reader
from benchmarks.daemon import eventually
from tests.faults import tools
from tests.faults.ground import Ground, Victim

__all__ = ("three_days_down",)

MINUTE = 60
DOWN_SECONDS = 3 * 86_400
POLICIES = ("skip", "latest", "all")
DAGS = 40
ASKED = ("/api/v1/dags", "/api/v1/runs?limit=100", "/health/ready", "/metrics")

_FILE = """
from datetime import datetime
from aioflow import dag, task


@task
async def tick() -> None:
    return None


for number in range({dags}):
    policy = {policies!r}[number % 3]

    @dag(
        f"{{policy}}-{{number:02}}",
        schedule="* * * * *",
        catchup=policy,
        start_date=datetime.fromisoformat("{start}"),
        max_active_runs=2,
    )
    def minutely() -> None:
        tick()
"""


def three_days_down(folder: Path, *, minutes: int) -> dict[str, Any]:
    """Check the runs after three days of downtime.

    Each fire time has one run, live fire times are run on time, and responses are prompt.

    Args:
        minutes: How many live fire times to wait for after the restart.
    """
    shim, ground, dags = tools.ClockShim(folder), Ground(folder), folder / "dags"
    dags.mkdir()
    start = datetime.now(UTC).replace(microsecond=0).isoformat()
    (dags / "ticks.py").write_text(_FILE.format(dags=DAGS, policies=POLICIES, start=start))
    with ground.daemon(dags=dags).wrap((), **shim.environment) as daemon:
        eventually(lambda: len(daemon.items("/api/v1/dags")) == DAGS, 30.0)
        stopped = shim.now(0)
        assert daemon.stop() == 0
        # The daemon restarts half a minute before a fire time.
        offset = DOWN_SECONDS + round(MINUTE / 2 - stopped % MINUTE)
        shim.set(offset)
        began = shim.now(offset)
        daemon.start()
        first_live = round(began + MINUTE) // MINUTE * MINUTE
        slowest = _ask_until(daemon, shim, offset, first_live + (minutes - 1) * MINUTE + 10)
        assert f"aioflow_schedules_late_total {DAGS}.0" in daemon.get("/metrics")[1]
        runs = _runs(ground.database)
        alerts = _alerts(daemon)
    late = _judge(runs, stopped, began, first_live, minutes)
    assert set(alerts.values()) == {1}, alerts
    assert len(alerts) == DAGS
    ground.judge_database()
    ground.judge_nobody_left()
    caught_up = sum(len(fire_times) for name, fire_times in runs.items() if name.startswith("all"))
    return {
        "dags": DAGS,
        "caught_up": caught_up,
        "live_late_seconds": round(late, 3),
        "slowest_answer_seconds": round(slowest, 3),
    }


def _ask_until(daemon: Victim, shim: tools.ClockShim, offset: int, until: float) -> float:
    """Send requests until the given time. Return how long the slowest response took."""
    slowest = 0.0
    while shim.now(offset) < until:
        for path in ASKED:
            asked = time.monotonic()
            daemon.request("GET", path)
            slowest = max(slowest, time.monotonic() - asked)
    return slowest


def _runs(database: Path) -> dict[str, list[tuple[float, float]]]:
    """Return the fire times of each DAG, with the times at which their runs were created."""
    connection = open_reader(database)
    try:
        rows = connection.execute(
            "SELECT dag_id, logical_date, created_at FROM run WHERE cause = 'schedule'"
            " ORDER BY run_no"
        ).fetchall()
    finally:
        connection.close()
    found: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for dag_id, fire_time, made in rows:
        found[dag_id].append((fire_time / 1e6, made / 1e6))
    return found


def _judge(
    runs: dict[str, list[tuple[float, float]]],
    stopped: float,
    began: float,
    first_live: int,
    minutes: int,
) -> float:
    """Assert that each DAG had the runs its policy wants. Return how late the live ones were."""
    live = {first_live + n * MINUTE for n in range(minutes)}
    latest = 0.0
    assert len(runs) == DAGS
    for dag_id, made in runs.items():
        fire_times = [fire_time for fire_time, _ in made]
        assert max(Counter(fire_times).values()) == 1, f"a fire time of {dag_id} has two runs"
        assert fire_times == sorted(fire_times), f"fire times of {dag_id} are out of order"
        missed = [fire_time for fire_time in fire_times if stopped < fire_time < began]
        if dag_id.startswith("all"):
            steps = {later - fire_time for fire_time, later in itertools.pairwise(fire_times)}
            assert steps == {MINUTE}, f"{dag_id} left fire times out: {steps}"
            continue
        # There was a fire time half a minute before the start. Under any policy it may have been
        # run.
        assert len(missed) <= 1, f"{dag_id} ran {len(missed)} missed fire times"
        assert dag_id.startswith("skip") or missed, f"{dag_id} did not run the latest"
        assert live <= set(fire_times), f"{dag_id} had no run for a live fire time"
        latest = max([latest, *(at - fire_time for fire_time, at in made if fire_time in live)])
    return latest


def _alerts(daemon: Victim) -> Counter[str]:
    """Return the number of alerts per DAG that its schedule is late."""
    found: Counter[str] = Counter()
    for line in daemon.log.read_text(errors="replace").splitlines():
        if "schedule_late" in line and line.startswith("{"):
            found[json.loads(line)["dag_id"]] += 1
    return found
