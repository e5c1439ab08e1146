"""The data in the pictures: ``python -m tests.browser.scene`` records it again from a real daemon.

Every response that the views of `pictures` request is written to ``scene.json``. Its times are
moved to one morning, so that the pictures are the same on every machine and at any time. Two things
are not recorded but generated in `scene_past`: the days before, and the loop lag of the daemon,
which depends on the recording machine.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.daemon import DaemonProcess, eventually
from examples.settlement_data import generate
from tests.browser.scene_past import NOW, drawn_up, text_of, time_of
from tests.browser.watched import Watched, chromium, watched

__all__ = ("NOW", "SCENE", "VIEWS", "answers")

ROOT = Path(__file__).parents[2]
SCENE = Path(__file__).with_name("scene.json")
VIEWS = {
    "home": "/",
    "runs": "/runs",
    "run": "/runs/settlements-2026-01-05",
    "task": "/runs/warehouse-2026-01-05?task=load&map=2",
    "graph": "/runs/warehouse-again/graph",
    "gantt": "/runs/warehouse-2026-01-05/gantt",
    "log": "/runs/warehouse-2026-01-05/logs",
    "dags": "/dags",
    "grid": "/dags/warehouse",
    "history": "/dags/warehouse/history",
    "waiting": "/triggers",
    "decisions": "/decisions",
}
"""The views that have pictures, with their addresses."""

OTHERS = (
    "/runs/scores-2026-01-05",
    "/pools",
    "/pools?open=scoring-api",
    "/schedules",
    "/dags/warehouse?task=report&in=warehouse-2026-01-05",
)
"""Further views that work with the same data."""

SHOP = '''
"""The warehouse of the shop."""

from __future__ import annotations

import asyncio
import logging
import time

from aioflow import Retry, ask_person, dag, sensor, task, wait
from aioflow_triggers.files import FileTrigger
from aioflow_triggers.temporal import TimeDeltaTrigger


@sensor(interval="1s", timeout="2h")
async def export_ready() -> bool:
    """Has the shop exported its orders?"""
    return True


@task
def list_regions() -> list[str]:
    """Which regions have orders?"""
    return ["north", "south", "east", "west", "centre"]


@task(retry=Retry(tries=2, delay="300ms"), map_label="{region}")
def load(region: str, trouble: str) -> int:
    """Load the orders of one region."""
    for batch in range(1, 6):
        print(f"{region}: batch {batch} of 5, {batch * 431} rows loaded")
        time.sleep(0.05)
    if region == trouble:
        logging.getLogger("warehouse").warning("%s: 1 row is refused", region)
        raise ValueError(f"{region}: duplicate key 4711 in table orders")
    print(f"\\x1b[32m{region}: 2,155 rows, none refused\\x1b[0m")
    return 2155


@task
async def exchange_rates(folder: str) -> str:
    """The bank's rates, once their file is there."""
    await wait(FileTrigger(f"{folder}/rates.csv", stable=0), label="the bank's rates", timeout="6h")
    return "rates"


@task
async def market_closes() -> str:
    """Nothing is final before the market has closed."""
    await wait(TimeDeltaTrigger("40m"), label="the market's close")
    return "closed"


@task(trigger_rule="all_done")
def report(rows: list[int]) -> int:
    """What came of the regions."""
    return 4


@task
def publish(total: int, rates: str, closed: str) -> None:
    """Show the day to those who wait for it."""


@dag(schedule="0 4 * * *", tags=("sales", "nightly"), catchup=False)
def warehouse(folder: str = "/tmp", trouble: str = "") -> None:
    """Loads the orders of every region, and publishes the day once rates and market are in."""
    rows = load.partial(trouble=trouble).expand(region=list_regions().after(export_ready()))
    publish(report(rows), exchange_rates(folder), market_closes())


@task
def sweep() -> int:
    """Delete what is older than a month."""
    time.sleep(0.1)
    return 12


@dag(schedule="@hourly", catchup=False, tags=("house",))
def housekeeping() -> None:
    """Keeps the disk from filling up."""
    sweep()


@task(retries=0)
def send_invoices() -> None:
    """Send an invoice to each customer."""
    raise ConnectionError("mail.example: connection refused")


@dag(schedule="0 6 * * 1-5", catchup=False, tags=("sales",))
def invoices() -> None:
    """Sends invoices to customers."""
    send_invoices()


@task
def book_takings() -> float:
    """Book the takings of the day."""
    time.sleep(0.2)
    return 4310.5


@dag(tags=("sales",))
def tills() -> None:
    """Books the takings of a shop, once it has closed its till."""
    book_takings()


@task
def customers() -> list[int]:
    """List the customers with an outdated score."""
    return list(range(240))


@task(pool="scoring-api")
async def score(customer: int) -> float:
    """Ask the scoring service."""
    await asyncio.sleep(3600 if customer > 60 else 0)
    return 0.5


@dag(tags=("risk",))
def scores() -> None:
    """Scores every customer; the service allows eight requests at once."""
    score.expand(customer=customers())


@task
async def release() -> bool:
    """Four eyes above 10,000 EUR."""
    details = "Invoice 4711 of Miller & Sons, 12,480.00 EUR, due on Friday."
    return await ask_person(
        "Release the payment?", details=details, assignees="finance", timeout="1d", default=False
    )


@task
def pay(released: bool) -> None:
    """Hand the payment to the bank."""


@dag(tags=("finance",))
def payments() -> None:
    """Pays an invoice, once a person has released it."""
    pay(release())
'''

BROKEN = '"""Closes the quarter."""\n\nfrom aioflow import dag\nfrom close_steps import ledger\n'

FOLDER = "/srv/shop"
"""The folder shown in the pictures, instead of the temporary folder of the recording."""

DAYS = (2, 3, 4, 5)
"""Days of January on which the warehouse runs. On the last day, a region fails."""

BEGAN = {
    "settlements-2026-01-04": "2026-01-04T07:30:02Z",
    "settlements-2026-01-05": "2026-01-05T09:09:48Z",
    "scores-2026-01-05": "2026-01-05T09:26:10Z",
    "payments-4710": "2026-01-04T15:07:44Z",
    "payments-4711": "2026-01-05T08:52:31Z",
    "tills-2201": "2026-01-04T17:17:00Z",
    "invoices-2026-01-05": "2026-01-05T06:00:00Z",
    **{
        f"housekeeping-2026-01-05-{hour:02}": f"2026-01-05T{hour:02}:00:00Z"
        for hour in range(4, 10)
    },
    **{f"warehouse-2026-01-{day:02}": f"2026-01-{day:02}T04:00:00Z" for day in DAYS},
    "warehouse-again": "2026-01-05T09:12:00Z",
}
"""When each run begins in the pictures."""

TOOK = {
    "warehouse": 380,
    "settlements": 110,
    "housekeeping": 14,
    "tills": 46,
    "invoices": 6,
    "payments": 1140,
}
"""About how many seconds a run of each DAG takes in the pictures, however fast the machine was."""

LIKE = {"warehouse-again": "warehouse-2026-01-04"}
"""For a run that has not ended, the run whose slow-down applies to its tasks."""

NEXT = {
    "warehouse": "2026-01-06T04:00:00Z",
    "invoices": "2026-01-06T06:00:00Z",
    "housekeeping": "2026-01-05T10:00:00Z",
    "settlements": "2026-01-05T21:30:00Z",
}
SCHEDULED = ("warehouse", "invoices", "housekeeping")


def prepare(daemon: DaemonProcess, folder: Path) -> None:
    """Bring the runs of the scene into the states that the pictures show."""
    daemon.request("PUT", "/api/v1/pools/scoring-api", {"slots": 8})
    daemon.request("PUT", "/api/v1/pools/warehouse", {"slots": 4})
    for run in BEGAN:
        if run.startswith("housekeeping"):
            daemon.wait(daemon.trigger("housekeeping", run_id=run))
    daemon.wait(daemon.trigger("invoices", run_id="invoices-2026-01-05"))
    daemon.wait(daemon.trigger("tills", run_id="tills-2201"))
    rates = folder / "rates.csv"
    rates.write_text("eur,1.08\n")
    for day in DAYS:
        run = _warehouse(daemon, folder, day)
        mark = {"state": "success", "tasks": ["market_closes"]}
        daemon.request("POST", f"/api/v1/runs/{run}/mark", mark)
        daemon.wait(run)
    _warehouse(daemon, folder, None)
    rates.unlink()
    _settlements(daemon, folder)
    _released(daemon, "payments-4710")
    daemon.trigger("scores", run_id="scores-2026-01-05")
    daemon.trigger("payments", run_id="payments-4711")
    eventually(lambda: daemon.items("/api/v1/decisions"))
    eventually(lambda: daemon.run("scores-2026-01-05", limit=1)["counts"].get("success", 0) > 60)


def _warehouse(daemon: DaemonProcess, folder: Path, day: int | None) -> str:
    conf = {"folder": str(folder), "trouble": "east" if day == DAYS[-1] else ""}
    fields = {"run_id": "warehouse-again"}
    if day is not None:
        at = f"2026-01-{day:02}"
        fields = {"run_id": f"warehouse-{at}", "logical_date": f"{at}T04:00:00Z"}
    run = daemon.trigger("warehouse", conf, **fields)
    eventually(partial(_waits_for_the_market_only, daemon, run))
    return run


def _released(daemon: DaemonProcess, run: str) -> None:
    """Start the payment of an invoice, and approve its release."""
    daemon.trigger("payments", run_id=run)
    (asked,) = eventually(lambda: daemon.items(f"/api/v1/decisions?run={run}"))
    answer = f"/api/v1/decisions/{asked['decision_id']}/answer"
    daemon.request("POST", answer, {"answer": True, "comment": "amount checked"})
    daemon.wait(run)


def _settlements(daemon: DaemonProcess, folder: Path) -> None:
    day = date(2026, 1, 4)
    conf = {"day": day.isoformat(), "folder": str(folder)}
    run = daemon.trigger("settlements", conf, run_id="settlements-2026-01-04")
    generate(folder, day, merchants=1_247, transactions=30_000)
    daemon.wait(run)
    conf["day"] = "2026-01-05"
    daemon.trigger("settlements", conf, run_id="settlements-2026-01-05")


def _waits_for_the_market_only(daemon: DaemonProcess, run: str) -> bool:
    counts = daemon.run(run, limit=1)["counts"]
    return counts.get("deferred") == 1 and counts.get("pending") == 1


# ── recording ───────────────────────────────────────────────────────────────────────────


def record() -> dict[str, Any]:
    """Return the response to each request of the views."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dags = folder / "dags"
        dags.mkdir()
        (dags / "shop.py").write_text(SHOP)
        (dags / "quarterly_close.py").write_text(BROKEN)
        shutil.copy(ROOT / "examples/dags/settlements.py", dags)
        with DaemonProcess(folder / "home", dags) as daemon, chromium() as browser:
            for dag in ("settlements", "warehouse"):
                daemon.knows(dag)
            prepare(daemon, folder)
            began = {run: daemon.run(run, limit=1)["started_at"] for run in BEGAN}
            with watched(browser, daemon) as page:
                for path in (*VIEWS.values(), *OTHERS):
                    page.go(path)
                    page.page.wait_for_timeout(2500)
            found = {path: (datetime.now(UTC), _answer(daemon, path)) for path in _asked(page)}
    return Warp(began, folder).all(found)


def _asked(page: Watched) -> list[str]:
    """Return the page's requests for data, with their queries."""
    urls = [urlsplit(url) for url in page.asked]
    paths = {url.path + (f"?{url.query}" if url.query else "") for url in urls}
    data = {path.removeprefix(API) for path in paths if path.startswith(API)}
    return sorted(data - {"/stream"})


def _answer(daemon: DaemonProcess, path: str) -> Any:
    return daemon.get(f"{API}{path}")[1]


API = "/api/v1"

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
PRINTED = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ ")
CHECKED = frozenset({"last_check_at", "next_check_at", "until", "deadline"})
"""Fields that are moved with the time of the pictures, not with that of their run."""

NAMES = frozenset({"name", "started_by", "person", "actor", "author", "by"})
USER = "ada"
"""The user shown in the pictures, instead of ``home``, the user of the link."""


class Warp:
    """Moves recorded times: the times of a run by as much as the beginning of the run.

    Args:
        began: When each run began in the recording.
        folder: The folder that is shown as `FOLDER`.
    """

    def __init__(self, began: dict[str, str], folder: Path) -> None:
        self._began = {run: time_of(text) for run, text in began.items()}
        self._folder = str(folder)
        self._at = NOW
        self._longer: dict[str, float] = {}

    def all(self, found: dict[str, tuple[datetime, Any]]) -> dict[str, Any]:
        """Return all responses with their times moved."""
        shown = {}
        for run in found["/runs?limit=200"][1]["items"]:
            if run["ended_at"] is not None:
                self._longer[run["run_id"]] = self._slower(run["run_id"], time_of(run["ended_at"]))
        for key, (at, answer) in found.items():
            path = key.replace(self._folder, FOLDER)
            named = re.search(r"/runs/([^/?]+)", path)
            self._at = at
            shown[path] = self._moved(answer, named[1] if named else "")
        drawn_up(shown)
        return dict(sorted(shown.items()))

    def _slower(self, run: str, ended: datetime) -> float:
        """Return by which factor a run takes longer in the pictures than in the recording."""
        usual = TOOK[run.partition("-")[0]]
        took = usual * (1 + sum(map(ord, run)) % 9 / 60)
        return took / (ended - self._began[run]).total_seconds()

    def _moved(self, value: Any, run: str, key: str = "") -> Any:
        match value:
            case dict():
                inner = str(value.get("run_id") or run)
                moved = {name: self._moved(one, inner, name) for name, one in value.items()}
                return _scheduled(moved)
            case list():
                return [self._moved(one, run, key) for one in value]
            case "home" if key in NAMES:
                return USER
            case str():
                text = PRINTED.sub("", value.replace(self._folder, FOLDER))
                if key == "logical_date" or not ISO.fullmatch(text):
                    return text
                return text_of(self._time(time_of(text), run, key))
            case float() if key == "usual_seconds":
                return round(value * self._factor(run), 1)
            case _:
                return value

    def _time(self, at: datetime, run: str, key: str) -> datetime:
        began = self._began.get(run)
        if began is None or key in CHECKED or at > self._at:
            return NOW + (at - self._at)
        return time_of(BEGAN[run]) + (at - began) * self._factor(run)

    def _factor(self, run: str) -> float:
        return self._longer.get(LIKE.get(run, run), 1.0)


def _scheduled(row: dict[str, Any]) -> dict[str, Any]:
    dag = row.get("dag_id")
    if "next_run_at" in row and dag in NEXT:
        row["next_run_at"] = NEXT[dag]
    is_by_hand = row.get("run_id") == "warehouse-again"
    if dag in SCHEDULED and row.get("cause") == "manual" and not is_by_hand:
        row["cause"] = "schedule"
    return row


def answers() -> dict[str, Any]:
    """Return the recorded responses by path and query."""
    found: dict[str, Any] = json.loads(SCENE.read_text())
    return found


if __name__ == "__main__":
    SCENE.write_text(json.dumps(record(), indent=1, ensure_ascii=False) + "\n")
