"""The task that lets its children run only in the newest run of a schedule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine

from aioflow import DAG, Every, dag, latest_only, task
from aioflow.author.dag_spec import describe
from aioflow.author.node import FromContext, LiteralValue
from aioflow.author.task import is_latest
from aioflow.model.dag import Chooses
from aioflow.worker.task.branching import skipped_by

NOW = datetime(2026, 3, 5, 12, tzinfo=UTC)
FAR = timedelta(days=4000)


@task
def work() -> None: ...


def said(
    fire_time: datetime, *, schedule: Any = "@daily", cause: str = "schedule", last: Any = None
):
    end = None if last is None else int(last.timestamp() * 1e6)
    first = int(fire_time.timestamp() * 1e6)
    return is_latest(schedule, "UTC", first=first, last=end, cause=cause, logical_date=fire_time)


@pytest.mark.parametrize(
    ("fire_time", "options", "expected"),
    [
        pytest.param(NOW, {}, True, id="the-newest-fire-time"),
        pytest.param(NOW - timedelta(days=3), {}, False, id="one-that-is-caught-up"),
        pytest.param(NOW - timedelta(days=3), {"cause": "manual"}, True, id="started-by-hand"),
        pytest.param(NOW - FAR, {"cause": "manual", "schedule": None}, True, id="no-schedule"),
        pytest.param(NOW - FAR, {"schedule": Every("5000d")}, True, id="a-long-interval"),
        pytest.param(NOW - FAR, {"schedule": timedelta(hours=1)}, False, id="a-short-one"),
        pytest.param(NOW - FAR, {"last": NOW - FAR}, True, id="the-last-of-a-schedule-that-ended"),
    ],
)
def test_a_run_is_the_latest_until_the_next_fire_time_has_come(fire_time, options, expected):
    with time_machine.travel(NOW, tick=False):
        assert said(fire_time, **options) is expected


def test_it_skips_its_children_alone_and_asks_the_run_for_its_fire_time():
    @dag(schedule="@daily", timezone="Asia/Kolkata")
    def daily() -> None:
        latest_only() >> work() >> work.override(task_id="behind")()

    spec, failures = describe(daily)

    assert not failures
    assert spec is not None
    assert spec.tasks[0].chooses is Chooses.CHILDREN
    assert skipped_by(daily.nodes[0], value=False) == (1,)
    arguments = daily.nodes[0].arguments
    assert (arguments["cause"], arguments["logical_date"]) == (
        FromContext("cause"),
        FromContext("logical_date"),
    )
    assert arguments["timezone"] == LiteralValue("Asia/Kolkata")


def test_it_may_be_called_otherwise():
    with DAG("d") as made:
        latest_only("newest")

    assert made.nodes[0].task_id == "newest"
