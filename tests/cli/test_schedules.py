"""Schedules of every kind, on a real daemon that ends when idle, and their next fire times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.commands import run, run_process

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("schedules"),
]

DAGS = """
from datetime import datetime, timedelta

from aioflow import Continuous, Cron, DAG, Dates, Every, current, task

START = datetime.fromisoformat("{start}")
HOURS_LATER = START + timedelta(hours=2)


@task
async def work(start: datetime = current.data_interval_start) -> str:
    return start.isoformat()


@task(retries=0)
async def bad() -> None:
    raise ValueError("no")


SCHEDULES = {{
    "caught_up": dict(schedule=Every("1h"), start_date=START, catchup=True),
    "skipping": dict(schedule=Every("1h"), start_date=START, catchup="skip"),
    "latest": dict(schedule=Every("1h"), start_date=START),
    "yearly": dict(schedule="@yearly", timezone="Asia/Kathmandu"),
    "seconds": dict(schedule="30 15 10 1 1 *", data_interval="previous"),
    "once": dict(schedule="@once"),
    "dates": dict(schedule=Dates([START, HOURS_LATER, datetime(2100, 1, 1)]), catchup=True),
    "listed": dict(schedule=[datetime(2100, 1, 1), datetime(2099, 1, 1)], timezone="Europe/Berlin"),
    "joined": dict(schedule=["0 9 1 1 *", "0 9,12 1 1 *"]),
    "shaky": dict(schedule=Cron("@yearly", jitter="10m")),
    "over": dict(schedule=Every("1h"), start_date=START, end_date=START, catchup=True),
    "endless": dict(schedule=Continuous()),
    "by_hand": dict(),
}}
for name, options in SCHEDULES.items():
    with DAG(name, **options):
        work()
with DAG("failing", schedule="@continuous"):
    bad()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a home whose daemon has twice run until it was idle."""
    folder = tmp_path_factory.mktemp("schedules")
    (folder / "dags").mkdir()
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=30)
    (folder / "dags" / "kinds.py").write_text(DAGS.format(start=start.isoformat()))
    words = ("--dags", folder / "dags", "--port", 0, "--until-idle")
    for _ in range(2):
        assert run_process("--home", folder / "home", *words).status == 0
    return folder / "home"


def next_fire_times(home, dag, *words):
    return run("dags", "next", dag, "--json", *words, home=home).json


@pytest.fixture(scope="module")
def runs(home):
    return run("runs", "list", "--limit", 500, "--json", home=home).json


@pytest.mark.parametrize(
    ("dag", "count"),
    [
        ("caught_up", 31),
        ("skipping", 0),
        ("latest", 1),
        ("yearly", 0),
        ("once", 1),
        ("dates", 2),
        ("listed", 0),
        ("over", 1),
        ("endless", 2),
        ("failing", 2),
        ("by_hand", 0),
    ],
)
def test_until_idle_what_has_come_runs_and_what_is_to_come_is_no_work(runs, dag, count):
    found = [row for row in runs if row["dag_id"] == dag]

    assert len(found) == count
    assert {row["state"] for row in found} <= {"failed" if dag == "failing" else "success"}
    assert len({row["logical_date"] for row in found}) == count


@pytest.mark.parametrize(
    ("dag", "expected"),
    [
        ("yearly", ["2029-12-31T18:15:00Z", "2030-12-31T18:15:00Z"]),
        ("seconds", ["2030-01-01T10:15:30Z", "2031-01-01T10:15:30Z"]),
        ("dates", ["2100-01-01T00:00:00Z"]),
        ("listed", ["2098-12-31T23:00:00Z", "2099-12-31T23:00:00Z"]),
        ("joined", ["2030-01-01T09:00:00Z", "2030-01-01T12:00:00Z"]),
        ("shaky", ["2030-01-01T00:00:00Z", "2031-01-01T00:00:00Z"]),
        ("once", []),
        ("over", []),
        ("endless", []),
        ("by_hand", []),
    ],
)
def test_next_fire_times_are_listed_for_every_kind(home, dag, expected):
    fire_times = next_fire_times(home, dag, "--from", "2029-12-01T00:00:00Z", "--count", 2)

    assert fire_times == expected


def test_nothing_comes_before_the_start_date_and_why_nothing_comes_is_said(home):
    first = run("dags", "next", "latest", "--from", "2001-01-01T00:00:00Z", home=home).out
    assert first.splitlines()[0] > "2026"

    said = {dag: run("dags", "next", dag, home=home).err for dag in ("endless", "over", "by_hand")}
    assert "runs again as soon as it has run" in said["endless"]
    assert "has ended" in said["over"]
    assert "has no schedule" in said["by_hand"]


def test_each_kind_says_what_it_is_in_the_list(home):
    dags = {row["dag_id"]: row for row in run("dags", "list", "--json", home=home).json}

    assert dags["caught_up"]["schedule"] == "every 1:00:00"
    assert dags["once"]["schedule"] == "@once"
    assert dags["once"]["next_run_at"] is None
    assert dags["dates"]["schedule"] == "3 dates"
    assert dags["joined"]["schedule"] == "0 9 1 1 *, 0 9,12 1 1 *"
    assert (dags["yearly"]["schedule"], dags["yearly"]["timezone"]) == (
        "0 0 1 1 *",
        "Asia/Kathmandu",
    )
    assert dags["endless"]["schedule"] == "@continuous"
    assert dags["endless"]["next_run_at"] is None


def test_a_time_zone_that_is_not_utc_is_listed_with_the_schedule(home):
    lines = {line.split()[0]: line for line in run("dags", "list", home=home).out.splitlines()}

    assert " 0 0 1 1 * (Asia/Kathmandu) " in lines["yearly"]
    assert "(" not in lines["joined"]


def test_the_fire_times_to_come_are_printed_in_utc_and_in_the_zone_of_the_dag(home):
    printed = run("dags", "next", "yearly", "--count", 1, home=home).out
    in_utc = run("dags", "next", "joined", "--count", 1, home=home).out

    fire_time = datetime.fromisoformat(printed.split()[0])
    assert printed.split()[1:] == [f"{fire_time.year + 1}-01-01T00:00:00+05:45", "Asia/Kathmandu"]
    assert in_utc.split() == [in_utc.strip()]
