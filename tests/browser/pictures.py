"""Take the screenshots of README and docs again: ``python -m tests.browser.pictures``.

On a daemon of its own, with the settlement example and a warehouse that has trouble with one
region. Look at them before they are committed.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from datetime import date
from functools import partial
from pathlib import Path

from benchmarks.daemon import DaemonProcess, eventually
from examples.settlement_data import generate
from tests.browser.watched import Watched, chromium, watched

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
LARGEST = 160 * 1024

WAREHOUSE = '''
"""The warehouse of the shop."""

from __future__ import annotations

import time

from aioflow import Retry, dag, sensor, task, wait
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


@task(retry=Retry(tries=2, delay="300ms"))
def load(region: str, trouble: str) -> int:
    """Load the orders of one region."""
    for batch in range(1, 6):
        print(f"{region}: batch {batch} of 5, {batch * 431} rows loaded")
        time.sleep(0.05)
    if region == trouble:
        raise ValueError(f"{region}: duplicate key 4711 in table orders")
    return 2155


@task
async def exchange_rates(folder: str) -> str:
    """The bank's rates, once their file is there."""
    await wait(FileTrigger(f"{folder}/rates.csv", stable=0), timeout="6h")
    return "rates"


@task
async def market_closes() -> str:
    """Nothing is final before the market has closed."""
    await wait(TimeDeltaTrigger("40m"))
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


@task(retries=0)
def send_invoices() -> None:
    """To everybody who bought something."""
    raise ConnectionError("mail.example: connection refused")


@dag(schedule="0 6 * * 1-5", catchup=False)
def invoices() -> None:
    """Sends what customers owe."""
    send_invoices()


@dag(schedule="@hourly", catchup=False)
def housekeeping() -> None:
    """Keeps the disk from filling up."""
    sweep()
'''


def main() -> None:
    """Take them all."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "dags").mkdir()
        (folder / "dags" / "warehouse.py").write_text(WAREHOUSE)
        shutil.copy(ROOT / "examples/dags/settlements.py", folder / "dags")
        with DaemonProcess(folder / "home", folder / "dags") as daemon, chromium() as browser:
            _prepare(daemon, folder)
            for theme in ("light", "dark"):
                with watched(browser, daemon, theme=theme) as page:
                    page.page.set_viewport_size({"width": 1280, "height": 760})
                    _take(page, theme)


def _prepare(daemon: DaemonProcess, folder: Path) -> None:
    for number in range(6):
        daemon.wait(daemon.trigger("housekeeping", run_id=f"housekeeping-{number + 1}"))
    daemon.wait(daemon.trigger("invoices", run_id="invoices-2026-01-05"))
    (folder / "rates.csv").write_text("eur,1.08\n")
    for number in range(4):
        trouble = "east" if number == 2 else ""
        run = daemon.trigger(
            "warehouse",
            {"folder": str(folder), "trouble": trouble},
            run_id=f"warehouse-2026-01-0{number + 1}",
        )
        eventually(partial(_waits_for_the_market_only, daemon, run))
        if number < 3:
            mark = {"state": "success", "tasks": ["market_closes"]}
            daemon.request("POST", f"/api/v1/runs/{run}/mark", mark)
            daemon.wait(run)
    day = date(2026, 1, 1)
    conf = {"day": day.isoformat(), "folder": str(folder)}
    run = daemon.trigger("settlements", conf, run_id="settlements-2026-01-01")
    generate(folder, day, merchants=1_247, transactions=30_000)
    daemon.wait(run)
    conf["day"] = "2026-01-02"
    daemon.trigger("settlements", conf, run_id="settlements-2026-01-02")
    (folder / "rates.csv").unlink()
    for region in ("east", ""):
        daemon.trigger("warehouse", {"folder": str(folder), "trouble": region})
    daemon.request("PUT", "/api/v1/pools/warehouse", {"slots": 4})
    daemon.stop()
    daemon.start()  # delays of a busy machine must not be in the pictures
    eventually(lambda: daemon.log.read_text().count("aioflow is up") == 2)


def _waits_for_the_market_only(daemon: DaemonProcess, run: str) -> bool:
    counts = daemon.run(run, limit=1)["counts"]
    return counts.get("deferred") == 1 and counts.get("pending") == 1


def _take(page: Watched, theme: str) -> None:
    views = {
        "home": "/",
        "dags": "/dags",
        "grid": "/dags/warehouse",
        "graph": "/runs/warehouse-2026-01-04/graph",
        "run": "/runs/settlements-2026-01-02",
        "drawer": "/runs/warehouse-2026-01-03?task=load&map=2",
        "gantt": "/runs/warehouse-2026-01-03/gantt",
        "triggers": "/triggers",
    }
    for name, path in views.items():
        page.go(path)
        page.page.wait_for_timeout(1200)
        target = IMAGES / f"{name}-{theme}.png"
        page.shoot(target)
        size = target.stat().st_size
        sys.stdout.write(f"{target.relative_to(ROOT)}: {size / 1024:.0f} KiB\n")
        if size > LARGEST:
            raise SystemExit(f"{target} is too large for the docs")


if __name__ == "__main__":
    main()
