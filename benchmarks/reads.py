"""Duration of each read of the API beside a run with 100,000 tasks, all of them deferred.

Claim under test: no response takes longer than 500 ms, a quarter of the 2 s timeout of a query.

Method: a real daemon at ``durability=full`` runs the triggers of one run whose children are all
deferred. Every readable path in ``openapi.json`` is requested over the Unix socket, one after the
other, with existing names filled in. Paths with paging or filters are also requested at their
largest page and farthest offset. Endless streams are left out. Each path is requested ``rounds``
times; the figure is the longest time from the first byte sent to the last byte read. Yardstick: as
many requests for ``/me``, which reads nothing from the database.

    python -m benchmarks.reads --tasks 100000 --rounds 5
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from benchmarks.daemon import DaemonProcess, eventually, fsync_ms
from benchmarks.harness import Figure, command, report
from benchmarks.latency import DAGS
from benchmarks.waiting import TASK_DEFERRED

FULL = {"tasks": 100_000, "rounds": 5}
TINY = {"tasks": 20, "rounds": 1}
AT_MOST_MS = 500.0
YARDSTICK = "/me"

ENDLESS = frozenset({"/stream", "/runs/{run_id}/tasks/{task_id}/logs/stream"})
WIDER = (
    "/overview",
    "/dags?limit=1000",
    "/dags/recent?dag=waits&dag=burst",
    "/dags/{dag_id}/grid?limit=100",
    "/events?limit=1000",
    "/runs?limit=1000",
    "/runs?state=running",
    "/runs/{run_id}?limit=1",
    "/runs/{run_id}?offset={middle}&limit=1000",
    "/runs/{run_id}/gantt?limit=1000&offset={middle}",
    "/runs/{run_id}/tasks?task={task_id}&limit=1000&offset={middle}",
    "/runs/{run_id}/tasks?state=deferred&limit=1000",
    "/runs/{run_id}/tasks?state=deferred&limit=1000&offset={middle}",
    "/runs/{run_id}/tasks?state=failed&limit=1000",
    "/runs/{run_id}/tasks/{task_id}/why?map={middle}",
    "/runs/{run_id}/tasks/{task_id}/show?map={middle}",
    "/runs/{run_id}/tasks/{task_id}/logs?map={middle}",
    "/schedules?hours=8784",
    "/triggers?limit=1000",
    "/triggers?limit=1000&after={trigger_id}",
    "/triggers?kind=time&limit=1000",
    "/triggers?kind=file",
    "/triggers?kind=Nothing",
    "/triggers?dag={dag_id}&limit=1000",
    "/triggers?state=waiting&limit=1000",
    "/triggers?state=stopped",
    "/triggers?state=trigger_capacity",
    "/triggers?state=fired",
    "/audit?limit=1000",
)
BESIDE = ("/health/ready", "/metrics", "/docs")


def readable(daemon: DaemonProcess) -> list[str]:
    """Return every readable path, with placeholders for names."""
    described = daemon.get("/api/v1/openapi.json")[1]["paths"]
    paths = [
        path.removeprefix("/api/v1")
        for path, methods in described.items()
        if "get" in methods and path.startswith("/api/v1/")
    ]
    return sorted({*paths, *WIDER} - ENDLESS) + list(BESIDE)


def names(daemon: DaemonProcess, run_id: str, tasks: int) -> dict[str, object]:
    """Return the values of the placeholders in the paths."""
    with daemon.database() as database:
        (trigger_no,) = database.execute(
            "SELECT trigger_no FROM task_trigger ORDER BY trigger_no LIMIT 1 OFFSET ?",
            (tasks // 2,),
        ).fetchone()
    event = daemon.request("POST", "/api/v1/events/something", None)[1]["event_id"]
    shown = daemon.run(run_id, limit=3)["tasks"]
    wide = next(task["task_id"] for task in shown if task["map_index"] >= 0)
    return {
        "dag_id": "waits",
        "run_id": run_id,
        "task_id": wide,
        "trigger_id": trigger_no,
        "event_id": event,
        "name": "default",
        "middle": tasks // 2,
    }


def longest_ms(daemon: DaemonProcess, path: str, rounds: int) -> tuple[float, int]:
    """Return the longest response time in milliseconds, and the status."""
    worst, status = 0.0, 0
    for _ in range(rounds):
        began = time.perf_counter()
        status, _ = daemon.get(path, status=None)
        worst = max(worst, time.perf_counter() - began)
    return round(worst * 1000, 1), status


def defer(daemon: DaemonProcess, tasks: int) -> str:
    """Start a run and wait until all of its children are deferred; return its id."""
    run_id = daemon.trigger("waits", {"count": tasks})
    with daemon.database() as database:

        def deferred() -> bool:
            sql = "SELECT count(*) FROM task WHERE state = ?"
            return bool(database.execute(sql, (TASK_DEFERRED,)).fetchone()[0] == tasks)

        eventually(deferred, 60 + tasks / 100, look_seconds=0.5)
    return run_id


def measure(folder: Path, *, tasks: int, rounds: int) -> dict[str, Any]:
    """Request every path and report each."""
    flags = ("--cpu-slots", "2", "--trigger-capacity", str(max(tasks, 1_000)))
    with DaemonProcess(folder / "home", DAGS, flags=flags) as daemon:
        run_id = defer(daemon, tasks)
        given = names(daemon, run_id, tasks)
        bare, _ = longest_ms(daemon, f"/api/v1{YARDSTICK}", rounds)
        figures, statuses = [], {}
        for path in readable(daemon):
            # Other placeholders get 1, an object that does not exist. To find that out may take as
            # long.
            filled = re.sub(r"{(\w+)}", lambda part: str(given.get(part[1], 1)), path)
            target = filled if path in BESIDE else f"/api/v1{filled}"
            took, statuses[path] = longest_ms(daemon, target, rounds)
            figures.append(
                Figure(path, took, "ms", bare, f"the longest {YARDSTICK}", at_most=AT_MOST_MS)
            )
        assert set(statuses.values()) <= {200, 404}, statuses
    figures.sort(key=lambda figure: -figure.value)
    return report(
        "reads",
        figures=figures,
        tasks=tasks,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync_ms(folder),
        absent=sorted(path for path, status in statuses.items() if status == 404),
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
