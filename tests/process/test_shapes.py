"""Wait-for, fan-out and fan-in at their real size on a real daemon, and an accidental fan-out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess, eventually, put
from benchmarks.fanout import peak_mib

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]
nightly = pytest.mark.nightly

MISTAKE = 12_000_000
ROOM_MIB = 24.0
"""Maximum memory growth by the refusal, apart from the rows that the task itself creates."""

DAGS = """
import asyncio
from collections.abc import Sequence
from pathlib import Path

from aioflow import Fail, current, dag, sensor, task

REFUSED = range(7, 1_200, 40)
SLOW = 1_200


def note(folder: str, name: str, what: object) -> None:
    with open(Path(folder, name), "a") as file:
        file.write(f"{what}\\n")


@sensor(interval="100ms", timeout="1h")
async def bank_file(folder: str) -> bool:
    return Path(folder, "file").exists()


@task
def merchants(folder: str) -> list[int]:
    return list(range(int(Path(folder, "file").read_text())))


@task
async def settle(folder: str, merchant: int) -> int:
    note(folder, "settled", merchant)
    while merchant >= SLOW and not Path(folder, "go-on").exists():
        await asyncio.sleep(0.05)
    if merchant in REFUSED:
        raise Fail("the books do not match")
    return 2 * merchant


@task
def told(folder: str, parts: Sequence[int], name: str = current.task_id) -> list[int]:
    note(folder, "told", name)
    return [len(parts), sum(parts), len(parts.failed), parts.width]


@dag
def day(folder: str) -> None:
    settled = settle.partial(folder=folder).expand(
        merchant=merchants(folder).after(bank_file(folder))
    )
    told.override(task_id="all_of_them")(folder, settled)
    told.override(task_id="whatever_came", trigger_rule="all_done")(folder, settled)
    told.override(task_id="first", trigger_rule="one_success")(folder, settled)
    told.override(task_id="most", min_success=0.97)(folder, settled)
    told.override(task_id="nearly_all", min_success=0.98)(folder, settled)


"""

MISTAKES = """
import os
from collections.abc import Iterator
from pathlib import Path

from aioflow import dag, task


def note(folder: str, name: str, what: object) -> None:
    with open(Path(folder, name), "a") as file:
        file.write(f"{what}\\n")


def write_down(folder: str) -> None:
    status = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in status if line.startswith("VmHWM:")]
    note(folder, "worker", f"{os.getpid()} {int(peak) / 1024:.1f}")


@task
def rows_of_a_table(folder: str, count: int) -> list[int]:
    rows = list(range(count))
    write_down(folder)
    return rows


@task
def rows_without_end(folder: str, count: int) -> Iterator[int]:
    write_down(folder)
    while True:
        yield count


@task
def each(row: int) -> int:
    return row


@dag
def table_by_mistake(folder: str, count: int) -> None:
    each.expand(row=rows_of_a_table(folder, count))


@dag
def endless_by_mistake(folder: str, count: int) -> None:
    each.expand(row=rows_without_end(folder, count))
"""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def all_tasks(daemon: DaemonProcess, run_id: str) -> dict[tuple[str, int], dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = daemon.get(f"/api/v1/runs/{run_id}?offset={len(found)}&limit=1000")[1]["tasks"]
        found += page
        if len(page) < 1000:
            return {(task["task_id"], task["map_index"]): task for task in found}


def has_told(out: Path, name: str) -> bool:
    return name in lines(out / "told")


@dataclass(frozen=True)
class Day:
    """One day of the main example. The books of 2.4 percent of the merchants do not match."""

    merchants: int
    slow_from: int
    """The number of the first merchant whose task waits until the test releases it."""

    @property
    def refused(self) -> range:
        return range(7, self.slow_from, 40)


SMALL = Day(merchants=125, slow_from=120)
REAL = Day(merchants=1_247, slow_from=1_200)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("day", "is_killed", "database"),
    [
        pytest.param(SMALL, True, "sqlite", id="3-of-125-killed"),
        pytest.param(REAL, False, "sqlite", id="30-of-1247", marks=nightly),
        pytest.param(REAL, True, "sqlite", id="30-of-1247-killed", marks=nightly),
        pytest.param(
            REAL,
            True,
            "postgres",
            id="30-of-1247-killed-postgres",
            marks=[pytest.mark.postgres, nightly],
        ),
    ],
)
def test_some_merchants_fail_and_each_fan_in_makes_of_it_what_its_rule_says(
    daemon_on, out, day, is_killed, database
):
    daemon = daemon_on(database)
    text = DAGS.replace("range(7, 1_200, 40)", repr(day.refused))
    daemon.add("shapes.py", text.replace("SLOW = 1_200", f"SLOW = {day.slow_from}"))
    run_id = daemon.trigger("day", {"folder": str(out)})
    eventually(lambda: all_tasks(daemon, run_id)["bank_file", -1]["state"] == "sensing")
    put(out / "file", str(day.merchants))
    eventually(partial(has_told, out, "first"))  # though some merchants have not ended
    told_early = lines(out / "told")
    if is_killed:
        daemon.kill(whole_tree=True)
        daemon.start()
    (out / "go-on").touch()
    ended = daemon.wait(run_id)
    tasks = all_tasks(daemon, run_id)

    merchants, refused = range(day.merchants), len(day.refused)
    settled = day.merchants - refused
    children = {index: t["state"] for (name, index), t in tasks.items() if name == "settle"}
    assert children == {
        index: "failed" if index in day.refused else "success" for index in merchants
    }
    assert ended["counts"] == {"success": settled + 5, "failed": refused, "upstream_failed": 2}
    assert ended["state"] == "failed"
    total = 2 * (sum(merchants) - sum(day.refused))
    for name in ("whatever_came", "most"):
        assert tasks[name, -1]["result"] == [settled, total, refused, day.merchants]
    for name in ("all_of_them", "nearly_all"):
        assert tasks[name, -1]["state"] == "upstream_failed"
    assert tasks["first", -1]["state"] == "success"
    assert told_early == ["first"]
    assert set(lines(out / "settled")) == {str(index) for index in merchants}
    if not is_killed:
        assert len(lines(out / "settled")) == day.merchants
        assert sorted(lines(out / "told")) == ["first", "most", "whatever_came"]


def forget_peak(pid: int) -> None:
    """Let the kernel measure the peak memory of a process from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def results_in(home: Path) -> set[Path]:
    return {path for path in (home / "results").rglob("*") if path.is_file()}


@pytest.mark.parametrize("dag", ["table_by_mistake", "endless_by_mistake"])
def test_twelve_million_rows_by_mistake_make_no_child_and_one_alert_and_take_no_memory(
    shared_daemon, out, dag
):
    daemon, before = shared_daemon, results_in(shared_daemon.home)
    daemon.add("mistakes.py", MISTAKES)
    first = daemon.trigger("table_by_mistake", {"folder": str(out), "count": 3})
    assert daemon.wait(first)["state"] == "success"  # imports are warm after this
    logged = daemon.log_size
    forget_peak(daemon.process.pid)
    peak_before = peak_mib(daemon.process.pid)

    run_id = daemon.trigger(dag, {"folder": str(out), "count": MISTAKE})
    ended = daemon.wait(run_id)
    tasks = all_tasks(daemon, run_id)
    pid, peak_at_return = lines(out / "worker")[-1].split()
    daemon_grew = peak_mib(daemon.process.pid) - peak_before
    worker_grew = peak_mib(int(pid)) - float(peak_at_return)
    after = daemon.trigger("table_by_mistake", {"folder": str(out), "count": 3})
    assert daemon.wait(after)["state"] == "success"
    results = results_in(daemon.home) - before

    print(f"the daemon grew by {daemon_grew:.1f} MiB, the worker by {worker_grew:.1f} MiB")
    assert ended["state"] == "failed"
    maker, child = tasks.values()
    assert maker["error"]["reason"] == "fanout_cap"
    assert "50000" in maker["error"]["message"].replace(",", "")
    assert (maker["try_number"], maker["state"]) == (1, "failed")
    assert (child["map_index"], child["state"]) == (-1, "upstream_failed")
    log = daemon.log_from(logged).splitlines()
    alerts = [line for line in log if "fanout_cap" in line and "alert" in line]
    assert len(alerts) == 1, alerts
    assert daemon_grew < ROOM_MIB
    assert worker_grew < ROOM_MIB
    assert len(results) == 2  # of the runs that were no mistake
