"""The days before the recording, as the pictures show them: runs copied from recorded ones.

All counts and histories in the pictures are computed from the same list of runs, so that no two
numbers contradict each other.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from statistics import median, quantiles
from typing import Any

__all__ = ("NOW", "drawn_up", "text_of", "time_of")

NOW = datetime(2026, 1, 5, 9, 41, tzinfo=UTC)
"""The time in all pictures, a Monday morning."""

RUNS = "/runs?limit=200"
GRID = "/dags/warehouse/grid?limit=25"

MISSED = 12
BROKE = 20
LATE = (6, 27)
"""How many days ago the warehouse missed a fire time, failed, and was late."""

TILLS = {17: 3, 18: 6, 19: 9, 20: 11, 21: 7, 22: 2}
"""How many shops close their tills in each hour of yesterday's evening."""


def drawn_up(shown: dict[str, Any]) -> None:
    """Add the days before the recording, and a daemon without lag, to the responses."""
    runs = shown[RUNS]["items"]
    runs += [*_housekeeping(runs), *_tills(runs), *_warehouse(runs)]
    runs.sort(key=lambda run: str(run["started_at"]), reverse=True)
    _histories(shown, runs)
    _grid(shown[GRID], runs)
    shown["/run-facets"] |= _facets(runs)
    for key in [key for key in shown if key.startswith("/dags/recent?")]:
        shown[key] = {dag: _recent(runs, dag) for dag in shown[key]}
    for key in [key for key in shown if re.fullmatch(r"/pools/[^/]+/usage", key)]:
        shown[key] |= _usage()
    _overview(shown["/overview"])
    _summary(shown["/triggers/summary"], runs)
    for group in shown["/home"]["attention"]:
        group["since"] = group["last"]["ended_at"]
    shown["/home"]["attention"].sort(key=lambda group: group["last"]["ended_at"], reverse=True)


def text_of(at: datetime) -> str:
    """Return a time as the API writes it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of(text: str) -> datetime:
    """Return a time from the text that the API has written."""
    return datetime.fromisoformat(text)


def _overview(overview: dict[str, Any]) -> None:
    overview["status"] = "ready"
    overview["uptime_seconds"] = 29 * 86_400 + 3 * 3600
    overview["fires_per_second"] = 0.4
    overview["waiting_longest"].sort(key=lambda row: row["since"])


def _summary(summary: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    oldest = {"person": "payments-4711", "time": "warehouse-again"}
    for kind in summary["kinds"]:
        run = oldest.get(kind["kind"])
        kind["oldest_since"] = _named(runs, run)["started_at"] if run else None
    for age in summary["ages"]:
        age["count"] = 2 if age["upto_seconds"] == 3600 else 0


# ── runs ────────────────────────────────────────────────────────────────────────────────


def _copied(run: dict[str, Any], run_id: str, at: datetime, seconds: float) -> dict[str, Any]:
    """Return a copy of a run with another id and time."""
    times = {"created_at": at, "started_at": at, "ended_at": at + timedelta(seconds=seconds)}
    return copy.deepcopy(run) | {"run_id": run_id} | {key: text_of(at) for key, at in times.items()}


def _named(runs: list[dict[str, Any]], run_id: str) -> dict[str, Any]:
    return next(run for run in runs if run["run_id"] == run_id)


def _housekeeping(runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the housekeeping runs of the night: with the recorded ones, one in each of 24 hours."""
    like = _named(runs, "housekeeping-2026-01-05-09")
    first = NOW.replace(minute=0) - timedelta(hours=23)
    for hour in range(18):
        at = first + timedelta(hours=hour)
        yield _copied(like, f"housekeeping-{at:%Y-%m-%d-%H}", at, 14 + 2 * ((hour * 5) % 7) / 3)


def _tills(runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield yesterday's runs of the DAG that a program starts when a shop closes."""
    like = _named(runs, "tills-2201")
    like["started_by"] = "shop-api"
    number = 2201
    for hour, shops in TILLS.items():
        for shop in range(shops):
            at = NOW.replace(day=4, hour=hour, minute=(shop * 59 // shops + hour) % 60)
            if number > 2201:
                yield _copied(like, f"tills-{number}", at, 31 + 5 * ((number * 7) % 9))
            number += 1


def _warehouse(runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the warehouse runs of four weeks, up to the recorded ones."""
    like = _named(runs, "warehouse-2026-01-02")
    for back in range(29, 3, -1):
        if back == MISSED:
            continue
        at = NOW.replace(hour=4, minute=0) - timedelta(days=back)
        took = 305.0 + 13 * ((back * 7) % 11) + (170 if back in LATE else 0)
        run = _copied(like, f"warehouse-{at:%Y-%m-%d}", at, took)
        run["logical_date"] = f"{at:%Y-%m-%dT%H:%M:%SZ}"
        yield run | ({"state": "failed"} if back == BROKE else {})


def _facets(runs: list[dict[str, Any]]) -> dict[str, Any]:
    counts = {name: dict(Counter(run[name] for run in runs)) for name in ("state", "cause")}
    dags = dict(Counter(run["dag_id"] for run in runs).most_common())
    return {"total": len(runs), "states": counts["state"], "causes": counts["cause"], "dags": dags}


def _recent(runs: list[dict[str, Any]], dag: str) -> list[dict[str, Any]]:
    names = ("run_id", "state", "is_waiting", "started_at", "ended_at")
    return [{name: run[name] for name in names} for run in runs if run["dag_id"] == dag][:20]


def _grid(grid: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    """Fill the grid with up to 25 runs. Their cells are like those of a recorded run."""
    known = {run["run_id"] for run in grid["runs"]}
    like = grid["runs"][-1]
    before = [run for run in runs if run["dag_id"] == "warehouse" and run["run_id"] not in known]
    grid["runs"] += [run | {"cells": _cells(like, run)} for run in before[: 25 - len(known)]]
    grid["next"] = "older"


def _cells(like: dict[str, Any], run: dict[str, Any]) -> list[Any]:
    began, ended = (time_of(like[name]) for name in ("started_at", "ended_at"))
    at, over = (time_of(run[name]) for name in ("started_at", "ended_at"))
    longer = (over - at) / (ended - began)
    last = len(like["cells"]) - 1
    cells = []
    for index, counts, *times in like["cells"]:
        moved = [text_of(at + (time_of(one) - began) * longer) for one in times]
        is_broken = run["state"] == "failed" and index == last
        cells.append([index, {"failed": 1} if is_broken else counts, *moved])
    return cells


# ── histories ───────────────────────────────────────────────────────────────────────────


def _histories(shown: dict[str, Any], runs: list[dict[str, Any]]) -> None:
    for key in [key for key in shown if key.startswith("/history/")]:
        path = key.partition("?")[0]
        answer = shown.pop(key)
        shown[f"{path}?" if "?" in key else path] = _history(path, answer, runs)


def _history(path: str, answer: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    if path == "/history/runs":
        answer["items"] = [_period(runs, at, timedelta(hours=1)) for at in _hours()]
    elif path == "/history/dags":
        ids = sorted({run["dag_id"] for run in _ended(runs)})
        answer["items"] = [_of_dag(dag, runs) for dag in ids]
    elif path.endswith("/schedule"):
        answer["items"] = [_fire_day(back) for back in range(34, -1, -1)]
    elif path.endswith("/failures"):
        answer["items"] = _failures(runs, path.split("/")[-2])
    elif path.endswith("/tasks"):
        for task in answer["items"]:
            _lengthened(task)
    elif path.startswith("/history/dags/"):
        own = [run for run in _ended(runs) if run["dag_id"] == answer["dag_id"]]
        days = (_day(own, back) for back in range(29, -1, -1))
        answer["items"] = [day for day in days if day["ends"]]
        answer["total"] |= _ends(own) | {"duration": _durations(_lengths(own))}
        answer["slow_after_seconds"] = answer["total"]["duration"]["p95"]
    return answer


def _ended(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [run for run in runs if run["ended_at"] is not None]


def _failures(runs: list[dict[str, Any]], dag: str) -> list[dict[str, Any]]:
    """Return the runs of a DAG that ended failed or partial, the newest first."""
    own = [run for run in _ended(runs) if run["dag_id"] == dag]
    names = ("run_id", "dag_id", "state", "started_at", "ended_at")
    return [
        {name: run[name] for name in names} for run in own if run["state"] in {"failed", "partial"}
    ]


def _lengths(runs: list[dict[str, Any]]) -> list[float]:
    """Return the durations of the successful runs, in seconds."""
    good = [run for run in runs if run["state"] == "success"]
    return [(time_of(run["ended_at"]) - time_of(run["started_at"])).total_seconds() for run in good]


def _ends(runs: list[dict[str, Any]]) -> dict[str, Any]:
    ends = Counter(run["state"] for run in runs)
    bad = ends["failed"] + ends["partial"]
    rate = round(bad / len(runs), 3) if runs else None
    return {"ends": dict(ends), "failure_rate": rate}


def _period(runs: list[dict[str, Any]], at: datetime, length: timedelta) -> dict[str, Any]:
    own = [run for run in _ended(runs) if at <= time_of(run["ended_at"]) < at + length]
    return {"start": text_of(at), **_ends(own)}


def _hours() -> Iterator[datetime]:
    last = NOW.replace(minute=0)
    return (last - timedelta(hours=back) for back in range(23, -1, -1))


def _of_dag(dag: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    own = [run for run in _ended(runs) if run["dag_id"] == dag]
    took = _durations(_lengths(own))
    times = {"p50_seconds": took["p50"], "p95_seconds": took["p95"], "slow_after_seconds": None}
    return {"dag_id": dag, **_ends(own), **times}


def _day(runs: list[dict[str, Any]], back: int) -> dict[str, Any]:
    midnight = NOW.replace(hour=0, minute=0) - timedelta(days=back)
    period = _period(runs, midnight, timedelta(days=1))
    own = [run for run in runs if run["started_at"].startswith(f"{midnight:%Y-%m-%d}")]
    queued = [0.4 + 0.1 * ((back * 5) % 7) for _ in own]
    return period | {"duration": _durations(_lengths(own)), "queue": _durations(queued)}


def _durations(seconds: list[float]) -> dict[str, Any]:
    if not seconds:
        return {"count": 0, "mean": None, "p50": None, "p95": None}
    most = quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    shown = {"mean": sum(seconds) / len(seconds), "p50": median(seconds), "p95": most}
    return {"count": len(seconds), **{name: round(value, 3) for name, value in shown.items()}}


def _lengthened(task: dict[str, Any]) -> None:
    """Scale the statistics of a warehouse task to all of its runs and their durations."""
    task["ends"]["success"] = task["ends"].get("success", 0) * 7
    for name in ("duration", "queue", "wait"):
        times = task[name]
        times["count"] *= 7
        for one in ("mean", "p50", "p95"):
            times[one] = None if times[one] is None else round(times[one] * 400, 3)


def _fire_day(back: int) -> dict[str, Any]:
    missed = int(back == MISSED)
    return {
        "start": text_of(NOW.replace(hour=0, minute=0) - timedelta(days=back)),
        "fired": 1 - missed,
        "failed": int(back in {0, BROKE}),
        "late": int(back in LATE),
        "missed": missed,
    }


# ── a pool ──────────────────────────────────────────────────────────────────────────────


def _usage() -> dict[str, Any]:
    """Return the usage of a pool of 8 slots: full every night at four, and since a run began."""
    since = NOW.replace(minute=40) - timedelta(hours=24)
    steps = [since + timedelta(minutes=5 * number) for number in range(289)]
    items = [_usage_step(at, number) for number, at in enumerate(steps)]
    full = sum(step["used"] == step["slots"] for step in items) * 300
    edges = {"since": text_of(since), "until": text_of(NOW), "step_seconds": 300}
    return {**edges, "full_seconds": full, "items": [step for step in items if step["used"]]}


def _usage_step(at: datetime, number: int) -> dict[str, Any]:
    minutes = at.hour * 60 + at.minute
    used, queued = (1, 0) if number % 13 in {2, 3, 7} else (0, 0)
    if minutes >= 9 * 60 + 25 and at.date() == NOW.date():
        used, queued = 8, 240 - (minutes - 9 * 60 - 25) * 4
    elif 4 * 60 <= minutes < 5 * 60 + 20:
        used, queued = 8, max(0, 150 - abs(minutes - 270) * 3)
    elif 5 * 60 + 20 <= minutes < 6 * 60:
        used = 8 - (minutes - 320) // 5
    return {"start": text_of(at), "slots": 8, "used": used, "queued": queued}
