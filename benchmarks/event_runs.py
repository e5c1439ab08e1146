"""Time to run 10,000 runs started by 10,000 events, and processor time per event.

Claim under test: events of one trigger each start a run of a DAG with one no-op task. From the
first event to the last run's success on disk, 10,000 take 30 s, or 120 s if a task emits them with
one durable call after the other. An event among 10,000 takes at most 1.5 times the daemon's
processor time of one among 1,000.

Method: a real daemon at ``durability=full``, two slots. A trigger waits for a file, then yields all
its events, each with a key. Then a task emits as many named events, and an ``EventTrigger`` starts
a run for each. Each of the two is first measured with a tenth of the events. Wall time is from the
file, or from the start of the emitting run, until a separate connection first counts as many ended
runs. Processor time is that of the daemon's own process, without its children. Yardstick of the
wall time: bare ``sqlite3`` writes the same task rows and journal in as many commits; of the
processor time: the smaller burst.

    python -m benchmarks.event_runs --count 10000
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.daemon import DaemonProcess, eventually, fsync_ms
from benchmarks.harness import Figure, command, report
from benchmarks.throughput import commit_no
from benchmarks.yardsticks import rows_seconds, written_since

FULL = {"count": 10_000}
TINY = {"count": 30}
_SMALLER = 10

_OF_ITS_THREADS = 2
"""The bits that make a process id the id of the process's CPU clock.

See ``clock_getcpuclockid``.
"""

DAGS = '''
import asyncio
from dataclasses import dataclass
from pathlib import Path

from aioflow import Trigger, TriggerEvent, dag, emit, task
from aioflow_triggers.events import EventTrigger


@dataclass
class Ticks(Trigger[int]):
    """Knows its events at once, so that what is measured is not the waiting for them."""

    gate: str
    count: int

    async def run(self):
        while not Path(self.gate).exists():
            await asyncio.sleep(0.05)
        first = 0 if self.last is None else self.last.payload + 1
        for number in range(first, self.count):
            yield TriggerEvent(number, key=str(number))
        await asyncio.Event().wait()


@task
async def note(number: int) -> None: ...


@task
async def tell(count: int) -> None:
    for number in range(count):
        await emit("order", key=str(number), data=number)


@dag
def tells(count: int) -> None:
    tell(count)


@dag(schedule=EventTrigger("order"), max_active_runs=64)
def orders(data: int) -> None:
    note(data)
'''

TICKING = """

@dag(schedule=Ticks({gate!r}, {count}), max_active_runs=64)
def {name}(number: int) -> None:
    note(number)
"""


class Burst(NamedTuple):
    """Result of a burst.

    Attributes:
        seconds: From the beginning of the burst until all runs have ended.
        processor_ms: Processor time of the daemon per event.
    """

    seconds: float
    processor_ms: float
    commits: int
    yardstick: float


def measure(folder: Path, *, count: int) -> dict[str, Any]:
    """Measure the bursts one after the other on one daemon, each kind first with fewer events."""
    sizes = {"few": max(1, count // _SMALLER), "many": count}
    dags = folder / "dags"
    dags.mkdir()
    ticking = [
        TICKING.format(gate=str(folder / name), count=size, name=name)
        for name, size in {"warm": 2, **sizes}.items()
    ]
    (dags / "events.py").write_text(DAGS + "".join(ticking))
    took: dict[str, Burst] = {}
    with DaemonProcess(folder / "home", dags, flags=("--cpu-slots", "2")) as daemon:
        for name in ("warm", *sizes, "orders"):
            eventually(partial(_is_hosted, daemon, name))
        _burst(daemon, folder, "warm", 2, (folder / "warm").touch)
        for name, size in sizes.items():
            took[f"ticks, {name}"] = _burst(daemon, folder, name, size, (folder / name).touch)
        for name, size in sizes.items():
            emits = partial(daemon.trigger, "tells", {"count": size})
            took[f"emitted, {name}"] = _burst(daemon, folder, "orders", size, emits)
        memory = daemon.memory_mib()
    return report(
        "event_runs",
        figures=_figures(took, count, sizes["few"]),
        count=count,
        durability="full",
        fsync_ms=fsync_ms(folder),
        memory_mib=memory,
        bursts={name: burst._asdict() for name, burst in took.items()},
    )


_WAYS = {"ticks": "of one trigger", "emitted": "emitted by a task"}


def _figures(took: dict[str, Burst], count: int, few: int) -> list[Figure]:
    rows = "bare sqlite3: the same rows in as many commits"
    figures = []
    for way, most in (("ticks", 30.0), ("emitted", 120.0)):
        less, more = took[f"{way}, few"], took[f"{way}, many"]
        name = f"{count:,} events, {_WAYS[way]}"
        seconds, limit = round(more.seconds, 2), most * count / FULL["count"]
        spent, less_spent = round(more.processor_ms, 3), round(less.processor_ms, 3)
        against, at_most = f"of one among {few:,}", round(1.5 * less_spent, 3)
        figures += [
            Figure(f"{name}: all runs ended", seconds, "s", round(more.yardstick, 3), rows, limit),
            Figure(f"{name}: the daemon for one", spent, "ms", less_spent, against, at_most),
            Figure(f"{name}: commits", more.commits, "", count, "one for each"),
        ]
    return figures


def _burst(daemon: DaemonProcess, folder: Path, dag_id: str, count: int, begin: Any) -> Burst:
    """Start a burst and wait until each of its events has had its run."""
    before, processor = commit_no(daemon), _processor_seconds(daemon)
    with daemon.database() as database:

        def ended() -> int:
            return int(database.execute(ENDED, (dag_id,)).fetchone()[0])

        others, began = ended(), time.time()
        begin()
        eventually(lambda: ended() - others >= count, 60 + count / 20, look_seconds=0.1)
        seconds = time.time() - began
        spent = _processor_seconds(daemon) - processor
        runs = ended() - others
    assert runs == count, f"{runs} runs of {count} events"
    written = written_since(daemon, before)
    yardstick = rows_seconds(folder, written)
    return Burst(seconds, spent * 1000 / count, written.commits, yardstick)


ENDED = "SELECT count(*) FROM run WHERE dag_id = ? AND ended_at NOT NULL"


def _processor_seconds(daemon: DaemonProcess) -> float:
    """Return the processor time of the daemon's process; psutil's resolution is only 10 ms."""
    return time.clock_gettime((~daemon.process.pid << 3) | _OF_ITS_THREADS)


def _is_hosted(daemon: DaemonProcess, dag_id: str) -> bool:
    found = daemon.items("/api/v1/triggers")
    return any(one["dag_id"] == dag_id and one["node"] is not None for one in found)


if __name__ == "__main__":
    command(__doc__, measure, FULL)
