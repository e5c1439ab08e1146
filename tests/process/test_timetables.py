"""Next fire times of custom timetables are previewed only by children of the daemon."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess, eventually
from tests.commands import Done, run

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("timetables"),
]

DAGS = """
import os
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from aioflow import dag, task

HOUR = timedelta(hours=1)
FAR = 2100


@dataclass
class Hours:
    step: int = 1

    def next_after(self, moment: datetime) -> datetime | None:
        with (FOLDER / "pids").open("a") as pids:
            pids.write(f"{os.getpid()}\\n")
        whole = moment.replace(minute=0, second=0, microsecond=0)
        return whole + self.step * HOUR


@dataclass
class Wrong:
    how: str

    def next_after(self, moment: datetime) -> datetime | None:
        if moment.year < FAR:
            return moment.replace(minute=0, second=0, microsecond=0) + HOUR
        match self.how:
            case "raises":
                raise LookupError("no calendar of that year")
            case "hangs":
                time.sleep(1000)
            case "naive":
                return datetime(FAR, 1, 2)
            case "back":
                return moment - HOUR
            case "dies":
                os._exit(3)
        return None


@task
def work() -> None: ...


@dag(schedule=Hours(step=2))
def hours() -> None:
    work()


"""
OWN_CLASS = """
class {name}(Wrong):
    ...


@dag(schedule={name}({how!r}))
def {how}() -> None:
    work()
"""
WRONG = ("raises", "hangs", "naive", "back", "dies", "ends")
FAR = "2100-01-01T00:00:00Z"
GOES_WRONG = [
    ("raises", "request.timetable_failed", "LookupError: no calendar of that year"),
    ("naive", "request.timetable_failed", "a fire time has a time zone"),
    ("back", "request.timetable_failed", "as the fire time after"),
    ("dies", "request.timetable_silent", "its host was lost while it was asked"),
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """Run a daemon that has hosted every timetable. Some of them have killed their host."""
    folder = tmp_path_factory.mktemp("timetables")
    (folder / "dags").mkdir()
    text = DAGS.replace("FOLDER", f"Path({str(folder)!r})")
    for how in WRONG:
        text += OWN_CLASS.format(how=how, name=how.capitalize())
    (folder / "dags" / "own.py").write_text(text)
    with DaemonProcess(folder / "home", folder / "dags", flags=("--cpu-slots", "1")) as daemon:
        for dag_id in ("hours", *WRONG):
            eventually(partial(waited_for, daemon, dag_id))
        yield daemon


@pytest.fixture
def home(daemon):
    return daemon.home


@pytest.fixture(scope="module")
def left(daemon: DaemonProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the daemon's home in the state after the daemon has stopped."""
    home = tmp_path_factory.mktemp("left") / "home"
    shutil.copytree(daemon.home, home, ignore=shutil.ignore_patterns("run", "aioflow.db*"))
    with daemon.database() as database, closing(sqlite3.connect(home / "aioflow.db")) as copy:
        database.backup(copy)
    return home


def next_fire_times(home, dag_id: str, *words: object, silent: str = "that is not wanted") -> Done:
    """Request fire times as soon as a host is running: another test may have killed it.

    Args:
        silent: The expected message for a timetable that is too slow. Any other such message means
            a slow machine, and the request is repeated.
    """

    def asked() -> Done | None:
        done = run("dags", "next", dag_id, "--from", FAR, "--count", 2, *words, home=home)
        is_slow = "request.timetable_silent" in done.err and silent not in done.err
        return None if is_slow or "request.timetable_away" in done.err else done

    return eventually(asked, 60.0)


def waited_for(daemon: DaemonProcess, dag_id: str) -> Any:
    dags = daemon.items("/api/v1/dags")
    return next((dag["next_run_at"] for dag in dags if dag["dag_id"] == dag_id), None)


def test_its_next_fire_times_are_listed_and_the_one_it_waits_for_is_shown(daemon, home):
    assert next_fire_times(home, "hours", "--json").json == [
        "2100-01-01T02:00:00Z",
        "2100-01-01T04:00:00Z",
    ]
    shown = eventually(partial(waited_for, daemon, "hours"))
    assert daemon.get("/api/v1/dags/hours")[1]["next_run_at"] == shown
    soon = daemon.items("/api/v1/schedules?hours=24")
    told = {"dag_id": "hours", "at": shown, "schedule": "each Hours", "timezone": "UTC"}
    assert told in soon


def test_no_process_of_the_daemon_or_the_command_runs_its_code(daemon, home):
    done = next_fire_times(home, "hours", "--json")

    assert done.status == 0
    pids = {int(pid) for pid in (daemon.home.parent / "pids").read_text().split()}
    assert daemon.process.pid not in pids
    assert os.getpid() not in pids


@pytest.mark.parametrize(
    ("dag_id", "code", "said"), [*GOES_WRONG, ("hangs", "request.timetable_silent", "")]
)
def test_one_that_goes_wrong_says_how_and_what_to_do(daemon, home, dag_id, code, said):
    done = next_fire_times(home, dag_id, silent=said)

    assert (done.status, code in done.err, said in done.err) == (1, True, True), done.err


def test_one_that_has_come_to_its_end_says_so(daemon, home):
    assert "has ended" in next_fire_times(home, "ends").err


@pytest.mark.nightly
def test_one_that_hangs_is_named_and_quarantined_and_the_others_continue(daemon, home):
    next_fire_times(home, "hangs", silent="")

    def named() -> bool:
        slow = daemon.items("/api/v1/triggers/slow")
        return any(one["name"].endswith(":Hangs") and one["quarantined"] for one in slow)

    eventually(named, timeout=60)
    assert next_fire_times(home, "hours").status == 0
    eventually(lambda: waited_for(daemon, "raises"), timeout=60)


def test_without_a_daemon_its_code_does_not_run_and_the_command_says_so(left):
    done = next_fire_times(left, "hours")

    assert done.status == 1
    assert "only a daemon runs that code" in done.err
    assert f"no daemon runs for {left}; start it with `aioflow up` [daemon.away]" in done.err
    assert done.out == ""


@pytest.mark.nightly
def test_without_a_daemon_no_command_waits_for_a_fire_time(left):
    dags = run("dags", "list", "--json", home=left).json

    assert {dag["next_run_at"] for dag in dags} == {None}
