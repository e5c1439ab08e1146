"""The data interval of a run: its fire time, or the time since the previous fire time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from aioflow import DAG, Continuous, Dates, task
from aioflow.author.context import context_value
from aioflow.author.dag import forget_registered
from aioflow.protocol.commands import RunInfo
from aioflow.worker.task.arguments import KnownRun

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@task
def work() -> None: ...


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def interval(
    fire_time: str | None, *, made: str = "2026-03-30T09:30", **options: Any
) -> tuple[str, ...]:
    forget_registered()
    with DAG("dag", **options) as made_dag:
        work()
    us = [
        None if text is None else (at(text) - EPOCH) // timedelta(microseconds=1)
        for text in (fire_time, made)
    ]
    info = RunInfo(
        run_no=1,
        run_id="r",
        dag_id="dag",
        version="v",
        file="dag.py",
        logical_date=us[0],
        created_at=us[1] or 0,
        conf=None,
        first_task_no=1,
        cause="schedule",
    )
    context = KnownRun(info, made_dag).own_context()
    found = context_value("data_interval", context)
    assert found == (
        context_value("data_interval_start", context),
        context_value("data_interval_end", context),
    )
    return tuple(moment.strftime("%m-%dT%H:%M") for moment in found)


def test_by_itself_it_is_a_point():
    assert interval("2026-03-29T03:00", schedule="@daily") == ("03-29T03:00", "03-29T03:00")


@pytest.mark.parametrize(
    ("schedule", "fire_time", "expected"),
    [
        pytest.param(
            "@daily", "2026-03-29T22:00", ("03-28T23:00", "03-29T22:00"), id="a-short-day"
        ),
        pytest.param("@daily", None, ("03-28T23:00", "03-29T22:00"), id="the-last-whole-one"),
        pytest.param(
            timedelta(hours=6), "2026-03-29T06:00", ("03-29T00:00", "03-29T06:00"), id="every"
        ),
        pytest.param(
            ["0 9 * * *", "0 12 * * *"],
            "2026-03-30T07:00",
            ("03-29T10:00", "03-30T07:00"),
            id="both",
        ),
        pytest.param(
            Dates([date(2026, 3, 1), date(2026, 3, 8)]),
            "2026-03-07T23:00",
            ("02-28T23:00", "03-07T23:00"),
            id="dates",
        ),
        pytest.param(
            Dates([date(2026, 3, 1)]),
            "2026-02-28T23:00",
            ("02-28T23:00", "02-28T23:00"),
            id="first",
        ),
        pytest.param(
            Continuous(), "2026-03-01T01:00", ("03-01T01:00", "03-01T01:00"), id="endless"
        ),
        pytest.param("@once", "2026-03-01T01:00", ("03-01T01:00", "03-01T01:00"), id="once"),
        pytest.param(None, None, ("03-30T09:30", "03-30T09:30"), id="no-schedule"),
    ],
)
def test_if_it_is_to_be_it_reaches_back_to_the_fire_time_before(schedule, fire_time, expected):
    found = interval(
        fire_time, schedule=schedule, timezone="Europe/Berlin", data_interval="previous"
    )

    assert found == expected
