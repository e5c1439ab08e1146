"""How many durable tasks per second, and how fast is a chain?

Claims under test: 1,500 no-op ``async def`` and 1,500 no-op ``def`` tasks per second on two
slots, and 40 chained ``fibo(10)`` in 0.8 s, every state change on disk at
``durability=full``. (Airflow 3.3.2 on the same kind of machine: 4-8 tasks/s, 1.06 s a hop.)

Method: a real daemon on a home of its own; each figure is the median of ``--rounds`` runs,
the kinds by turns. Rates are counted from the database by a connection of our own: rows in
state success over the time from the first to the last of them, looked at every 10 ms. The
disk's fsync time is measured in the same folder and printed beside. Not measured: work.

    python -m benchmarks.throughput --tasks 10000 --rounds 3
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.daemon import DaemonProcess, fsync_ms, succeeded
from benchmarks.harness import median, report

DAGS = Path(__file__).parent / "dags"
LOOK_SECONDS = 0.01


def rate(daemon: DaemonProcess, dag_id: str, tasks: int) -> float:
    """Run one fan-out; return successes per second, as the database tells them."""
    with daemon.database() as database:
        before = succeeded(database)
        run_id = daemon.trigger(dag_id, {"count": tasks})
        first = _when(database, before + 2)  # the list is the first success
        last = _when(database, before + 1 + tasks)
    daemon.wait(run_id)
    return (last[1] - first[1]) / (last[0] - first[0])


def _when(database: object, count: int) -> tuple[float, int]:
    while True:
        now = succeeded(database)  # type: ignore[arg-type]
        if now >= count:
            return time.monotonic(), now
        time.sleep(LOOK_SECONDS)


def chain_seconds(daemon: DaemonProcess) -> float:
    """Run the chain; return the time between its first row's and its end's instants."""
    run_id = daemon.trigger("chain")
    daemon.wait(run_id)
    with daemon.database() as database:
        began, ended = database.execute(
            "SELECT created_at, ended_at FROM run WHERE run_id = ?", (run_id,)
        ).fetchone()
    return (ended - began) / 1e6


def main() -> None:
    """Parse arguments, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments.tasks, arguments.rounds)


def measure(folder: Path, tasks: int, rounds: int) -> None:
    """Measure by turns, report the medians."""
    fsync = fsync_ms(folder)
    rates: dict[str, list[float]] = {"fan_async": [], "fan_def": []}
    chains = []
    with DaemonProcess(folder / "home", DAGS, flags=("--cpu-slots", "2")) as daemon:
        for dag_id in rates:
            rate(daemon, dag_id, 500)  # imports are warm after this
        for _ in range(rounds):
            for dag_id, seen in rates.items():
                seen.append(rate(daemon, dag_id, tasks))
            chains.append(chain_seconds(daemon))
    report(
        "throughput",
        tasks=tasks,
        rounds=rounds,
        durability="full",
        fsync_ms=fsync,
        async_per_second=round(median(rates["fan_async"])),
        def_per_second=round(median(rates["fan_def"])),
        chain_of_40_seconds=round(median(chains), 3),
        all_async=[round(value) for value in rates["fan_async"]],
        all_def=[round(value) for value in rates["fan_def"]],
        all_chains=[round(value, 3) for value in chains],
    )


if __name__ == "__main__":
    main()
