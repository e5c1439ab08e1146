"""Durable tasks per second, and duration of a chain.

Claims under test: 8,000 no-op ``async def`` and 6,000 no-op ``def`` tasks per second on two slots,
every state change on disk at ``durability=full``. (Airflow 3.3.2 on the same kind of machine: 4-8
tasks/s.) The chain is also measured; its claim is in ``hop``.

Method: a real daemon on a home of its own. Each figure is the median of ``--rounds`` runs; the
kinds alternate. Rates are counted in the database by a separate connection: rows in state success
divided by the time from the first to the last of them, polled every 10 ms. The fsync time of the
disk is measured in the same folder and reported too. Yardsticks: bare ``sqlite3`` writing the same
task rows and journal in as many commits, and two bare processes that exchange aioflow's frames. Not
measured: work.

    python -m benchmarks.throughput --tasks 10000 --rounds 3
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.daemon import DaemonProcess, fsync_ms, succeeded
from benchmarks.harness import Figure, command, median, report
from benchmarks.yardsticks import pipe_per_second, rows_seconds, written_since

DAGS = Path(__file__).parent / "dags"
FULL = {"tasks": 10_000, "rounds": 3}
TINY = {"tasks": 2_000, "rounds": 1}
LOOK_SECONDS = 0.01


def rate(daemon: DaemonProcess, dag_id: str, tasks: int) -> float:
    """Run one fan-out; return successes per second, according to the database."""
    with daemon.database() as database:
        asked, before = time.monotonic(), succeeded(database)
        run_id = daemon.trigger(dag_id, {"count": tasks})
        first = _when(database, before + 2)  # the list is the first success
        last = _when(database, before + 1 + tasks)
    daemon.wait(run_id)
    if last[1] == first[1]:  # all ended between two polls: take a lower bound
        first = (asked, before)
    return (last[1] - first[1]) / (last[0] - first[0])


def _when(database: object, count: int) -> tuple[float, int]:
    while True:
        now = succeeded(database)  # type: ignore[arg-type]
        if now >= count:
            return time.monotonic(), now
        time.sleep(LOOK_SECONDS)


def chain_seconds(daemon: DaemonProcess) -> float:
    """Run the chain; return the seconds between the run's creation and its end."""
    run_id = daemon.trigger("chain")
    daemon.wait(run_id)
    with daemon.database() as database:
        began, ended = database.execute(
            "SELECT created_at, ended_at FROM run WHERE run_id = ?", (run_id,)
        ).fetchone()
    return (ended - began) / 1e6


def commit_no(daemon: DaemonProcess) -> int:
    """Return the number of the last commit."""
    with daemon.database() as database:
        return int(database.execute("SELECT commit_no FROM node").fetchone()[0])


def measure(folder: Path, *, tasks: int, rounds: int) -> dict[str, Any]:
    """Alternate the kinds and report the medians."""
    fsync = fsync_ms(folder)
    rates: dict[str, list[float]] = {"fan_async": [], "fan_def": []}
    bare: dict[str, list[float]] = {"fan_async": [], "fan_def": []}
    commits: dict[str, list[int]] = {"fan_async": [], "fan_def": []}
    chains = []
    with DaemonProcess(folder / "home", DAGS, flags=("--cpu-slots", "2")) as daemon:
        for dag_id in rates:
            rate(daemon, dag_id, min(500, tasks))  # warm-up: later runs find all imports done
        for _ in range(rounds):
            for dag_id, seen in rates.items():
                before = commit_no(daemon)
                seen.append(rate(daemon, dag_id, tasks))
                written = written_since(daemon, before)
                commits[dag_id].append(written.commits)
                bare[dag_id].append(tasks / rows_seconds(folder, written))
            chains.append(chain_seconds(daemon))
    pipe = round(pipe_per_second(tasks))
    figures = [
        Figure(
            f"durable no-op tasks, {kind}",
            round(median(rates[dag_id])),
            "1/s",
            round(min(median(bare[dag_id]), pipe)),
            "the slower of bare sqlite3 with the same rows and commits, and a bare pipe",
            at_least=least,
        )
        for kind, dag_id, least in (
            ("async def", "fan_async", 8_000.0),
            ("def, 2 slots", "fan_def", 6_000.0),
        )
    ]
    return report(
        "throughput",
        figures=figures,
        tasks=tasks,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync,
        async_per_second=round(median(rates["fan_async"])),
        def_per_second=round(median(rates["fan_def"])),
        chain_of_40_seconds=round(median(chains), 3),
        bare_sqlite_per_second={name: round(median(all_)) for name, all_ in bare.items()},
        bare_pipe_per_second=pipe,
        commits=commits,
        all_async=[round(value) for value in rates["fan_async"]],
        all_def=[round(value) for value in rates["fan_def"]],
        all_chains=[round(value, 3) for value in chains],
    )


if __name__ == "__main__":
    command(__doc__, measure, FULL)
