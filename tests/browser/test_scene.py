"""The numbers in the pictures are consistent: each count matches the list beside it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.browser.scene import answers
from tests.browser.scene_past import NOW, text_of


@pytest.fixture(scope="module")
def scene() -> dict[str, Any]:
    return answers()


@pytest.fixture(scope="module")
def runs(scene: dict[str, Any]) -> list[dict[str, Any]]:
    assert scene["/runs?limit=200"]["next"] is None
    found: list[dict[str, Any]] = scene["/runs?limit=200"]["items"]
    return found


def test_the_totals_of_the_list_are_those_of_its_rows(scene, runs):
    facets = scene["/run-facets"]
    assert facets["total"] == len(runs) == len({run["run_id"] for run in runs})
    for name in ("state", "cause"):
        assert facets[f"{name}s"] == Counter(run[name] for run in runs)
    assert facets["dags"] == Counter(run["dag_id"] for run in runs)


def test_the_history_of_home_counts_the_runs_of_the_list(scene, runs):
    hours = scene["/history/runs?"]["items"]
    counted: Counter[str] = Counter()
    for hour in hours:
        counted += Counter(hour["ends"])
    ended = [run for run in runs if (run["ended_at"] or "") >= hours[0]["start"]]
    assert counted == Counter(run["state"] for run in ended)
    assert len(hours) == 24
    assert max(run["started_at"] for run in runs) < text_of(NOW)


def test_the_runs_in_flight_and_the_waits_are_as_many_as_home_says(scene, runs):
    live = {run["run_id"] for run in runs if run["ended_at"] is None}
    overview, home = scene["/overview"], scene["/home"]
    assert {one["run"]["run_id"] for one in home["in_flight"]} == live
    assert overview["live_runs"] == len(live)
    states: Counter[str] = Counter()
    for one in home["in_flight"]:
        states += Counter(one["counts"])
    for state in ("running", "queued", "deferred", "sensing"):
        assert overview["states"].get(state, 0) == states[state]
    waits = sum(overview["deferred"].values()) + states["sensing"]
    assert len(overview["waiting_longest"]) == waits
    assert overview["decisions"] == len(home["decisions"]) == overview["deferred"]["person"]
    (pool,) = (pool for pool in home["pools"] if pool["queued"])
    assert (pool["used"], pool["queued"]) == (states["running"], states["queued"])


def test_each_dag_has_the_numbers_of_its_runs(scene, runs):
    for dag in scene["/history/dags?"]["items"]:
        own = [run for run in runs if run["dag_id"] == dag["dag_id"] and run["ended_at"]]
        assert dag["ends"] == Counter(run["state"] for run in own)
        assert (dag["p50_seconds"] or 1) > 0.1
    warehouse = scene["/history/dags/warehouse?"]
    counted: Counter[str] = Counter()
    for day in warehouse["items"]:
        counted += Counter(day["ends"])
    assert warehouse["total"]["ends"] == counted
    grid = [run["run_id"] for run in scene["/dags/warehouse/grid?limit=25"]["runs"]]
    assert grid == [run["run_id"] for run in runs if run["dag_id"] == "warehouse"][:25]
