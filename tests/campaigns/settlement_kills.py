"""Kill the settlement pipeline at a chosen moment, restart it, and check the day.

The checks are made outside the daemon: with the generator's total, a ledger of the tasks, the
process table, SQLite's own integrity check, and the journal replayed against the tables.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from aioflow.crypto import Vault
from aioflow.processes.orphans import carries_mark, home_mark
from aioflow.store import open_store
from aioflow.worker import process_tree
from benchmarks.daemon import DaemonProcess, eventually
from examples.settlement_data import generate
from tests.executors.processes import is_alive
from tests.journal_replay import compare_with_replay

__all__ = ("PHASES", "Verdict", "kill_one_run")

DAGS = Path(__file__).parents[2] / "examples" / "dags"
DAY = date(2026, 1, 1)
ATTEMPTS = 8
PHASES = ("waiting", "expanding", "settling", "totalling")


@dataclass(frozen=True)
class Verdict:
    """The outcome of one killed run.

    Attributes:
        settled_at_kill: Number of merchants that had been settled when the daemon was killed.
        begun: How often the settling of any merchant was started. Repeated starts were interrupted.
        recovery_seconds: Time from the restart to the end of the run.
    """

    phase: str
    whole_tree: bool
    settled_at_kill: int
    begun: int
    recovery_seconds: float


@dataclass(frozen=True)
class Day:
    """The settlement of one day, on one home."""

    home: Path
    data: Path
    db: str | None
    merchants: int
    transactions: int

    def daemon(self) -> DaemonProcess:
        """Return a daemon for the home that is not started yet."""
        return DaemonProcess(self.home, DAGS, db=self.db, flags=("--cpu-slots", "2"))

    def write(self) -> Decimal:
        """Create the bank's file. Return its expected total."""
        return generate(self.data, DAY, merchants=self.merchants, transactions=self.transactions)


def kill_one_run(
    folder: Path,
    phase: str,
    *,
    whole_tree: bool,
    db: str | None = None,
    merchants: int = 1_247,
    transactions: int = 100_000,
) -> Verdict:
    """Run one day, kill it in ``phase``, and restart it. Nothing may be lost or doubled.

    A day that ends before it could be killed does not count, and the next day is tried.
    """
    for attempt in range(ATTEMPTS):
        day = Day(folder / "home", folder / f"data{attempt}", db, merchants, transactions)
        daemon = day.daemon().start()
        conf = {"folder": str(day.data), "day": DAY.isoformat()}
        run_id = daemon.trigger("settlements", conf)
        total = None if phase == "waiting" else day.write()
        settled = _wait_for(phase, daemon, run_id, merchants)
        _assert_gone(daemon.kill(whole_tree=whole_tree))
        if settled is not None:
            begun, seconds = _go_on(day, run_id, total)
            return Verdict(phase, whole_tree, settled, begun, seconds)
    raise AssertionError(f"{ATTEMPTS} runs ended before they could be killed")


def _go_on(day: Day, run_id: str, total: Decimal | None) -> tuple[int, float]:
    """Restart the daemon, wait for the end of the run, and check the results."""
    began = time.monotonic()
    with day.daemon() as again:
        if total is None:
            total = day.write()
        run = again.wait(run_id)
        seconds = time.monotonic() - began
        assert run["state"] == "success", run
        assert run["counts"] == {"success": day.merchants + 3}, run["counts"]
        _assert_total(again, run_id, day.data, total, day.merchants)
        begun = _assert_ledger(again, run_id, day.data, day.merchants)
    _assert_nobody_left(day.home)
    _assert_database(day.home, day.db)
    return begun, round(seconds, 2)


def _wait_for(phase: str, daemon: DaemonProcess, run_id: str, merchants: int) -> int | None:
    """Wait for the phase. Return how many merchants are settled, or ``None`` if it was missed."""

    def settled(run: dict[str, Any]) -> int:
        return max(0, run["counts"].get("success", 0) - 2)

    def reached() -> dict[str, Any] | None:
        run = daemon.run(run_id, limit=3)
        if run["state"] not in {"queued", "running"}:
            return run
        states = {task["task_id"]: task["state"] for task in run["tasks"][:2]}
        there = {
            "waiting": states.get("npci_file") == "sensing",
            "expanding": sum(run["counts"].values()) > 4,
            "settling": settled(run) >= merchants // 3,
            "totalling": settled(run) >= merchants - 1,
        }
        return run if there[phase] else None

    run = eventually(reached, 120.0, look_seconds=0.0)
    return settled(run) if run["state"] in {"queued", "running"} else None


def _assert_gone(pids: list[int]) -> None:
    def gone() -> bool:
        return not any(is_alive(pid) for pid in pids)

    eventually(gone, 30.0, lambda: f"alive: {[pid for pid in pids if is_alive(pid)]}")


def _assert_total(
    daemon: DaemonProcess, run_id: str, data: Path, total: Decimal, merchants: int
) -> None:
    books = json.loads((data / "totals" / f"{DAY.isoformat()}.json").read_text())
    assert Decimal(books["net"]) == total, (books, total)
    assert books["merchants"] == merchants
    found = [t for t in _tasks(daemon, run_id, merchants) if t["task_id"] == "daily_total"]
    assert [Decimal(task["result"]) for task in found] == [total]


def _assert_ledger(daemon: DaemonProcess, run_id: str, data: Path, merchants: int) -> int:
    """Assert that no merchant was started again after its recorded success."""
    ended: dict[int, int] = {}
    for task in _tasks(daemon, run_id, merchants):
        if task["task_id"] == "settle":
            moment = datetime.fromisoformat(task["ended_at"])
            ended[task["map_index"]] = round(moment.timestamp() * 1e6)
    assert len(ended) == merchants
    lines = (data / "ledger" / f"{DAY.isoformat()}.txt").read_text().splitlines()
    begins = [line.split() for line in lines if line.startswith("begin ")]
    for _, merchant, _, nanoseconds in begins:
        late_us = int(nanoseconds) / 1000 - ended[int(merchant[1:])]
        assert late_us <= 0, f"{merchant} begun {late_us} us after its recorded success"
    assert len({merchant for _, merchant, _, _ in begins}) == merchants
    return len(begins)


def _tasks(daemon: DaemonProcess, run_id: str, merchants: int) -> Iterator[dict[str, Any]]:
    for offset in range(0, merchants + 3, 1000):
        yield from daemon.get(f"/api/v1/runs/{run_id}?offset={offset}&limit=1000")[1]["tasks"]


def _assert_nobody_left(home: Path) -> None:
    carries = carries_mark(f"{home_mark(home)}:")
    assert [pid for pid in process_tree.process_ids() if carries(pid) and is_alive(pid)] == []


def _assert_database(home: Path, db: str | None) -> None:
    if db is None:
        connection = sqlite3.connect(home / "aioflow.db")
        try:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        finally:
            connection.close()
    assert asyncio.run(_differences(home, db)) == []


async def _differences(home: Path, db: str | None) -> list[str]:
    vault = Vault.open(home / "key")
    async with open_store(db or f"sqlite:///{home}/aioflow.db", vault, exclusive=False) as store:
        return await compare_with_replay(store)
