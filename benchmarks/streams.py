"""Cost of a page that is read from a stream, compared with a defer and a resume for each page.

Method: a real daemon at ``durability=full``. A trigger that has 1,000 pages at once is consumed by
an operator that defers for each page, by one that receives the pages in batches, and by a coroutine
with ``stream``. Then two more runs: a generator whose items each start a child, and a task that
returns the same list. Wall time is that of the run's row, turns are commits, starts are those of
the consuming task. Yardstick of the first three: the defers and resumes; of the last: the list.

    python -m benchmarks.streams --pages 1000
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.daemon import DaemonProcess, fsync_ms
from benchmarks.harness import Figure, command, report
from benchmarks.throughput import commit_no

FULL = {"pages": 1_000}
TINY = {"pages": 20}

DAGS = '''
from collections.abc import Sequence
from dataclasses import dataclass

from aioflow import Operator, Trigger, TriggerEvent, dag, stream, task


@dataclass
class Pages(Trigger[int]):
    """Knows its pages at once, so that what is measured is not the waiting for them."""

    first: int
    count: int

    async def run(self):
        for page in range(self.first, self.count):
            yield TriggerEvent(page, key=str(page))


class OneByOne(Operator):
    def __init__(self, pages, **options):
        super().__init__(**options)
        self.pages = pages

    async def execute(self, context):
        self.defer(trigger=Pages(0, self.pages), method_name="next", kwargs={"seen": 0})

    async def next(self, context, event=None, seen=0):
        seen += 1
        if seen == self.pages:
            return seen
        self.defer(trigger=Pages(seen, self.pages), method_name="next", kwargs={"seen": seen})


class InBatches(Operator):
    def __init__(self, pages, **options):
        super().__init__(**options)
        self.pages = pages

    async def execute(self, context):
        self.defer(trigger=Pages(0, self.pages), method_name="close")

    async def handle_trigger_events(self, events, context):
        return None

    async def close(self, context, event=None):
        return self.pages


@task
async def follow(pages: int) -> int:
    seen = 0
    async for _ in stream(Pages(0, pages)):
        seen += 1
    return seen


@task
async def generated(pages: int):
    for page in range(pages):
        yield page


@task
async def listed(pages: int) -> list[int]:
    return list(range(pages))


@task
async def load(page: int) -> int:
    return page


@task
async def total(pages: Sequence[int]) -> int:
    return sum(pages)


@dag
def defers(pages: int) -> None:
    OneByOne(pages, task_id="take")


@dag
def batches(pages: int) -> None:
    InBatches(pages, task_id="take")


@dag
def coroutine(pages: int) -> None:
    follow.override(task_id="take")(pages)


@dag
def streamed(pages: int) -> None:
    total(load.expand(page=generated.override(task_id="take")(pages)))


@dag
def whole(pages: int) -> None:
    total(load.expand(page=listed.override(task_id="take")(pages)))
'''

_WAYS = {
    "batches": "an operator in batches",
    "coroutine": "a coroutine with stream()",
}


def measure(folder: Path, *, pages: int) -> dict[str, Any]:
    """Consume the pages in each way; report the time, the turns and the starts."""
    dags = folder / "dags"
    dags.mkdir()
    (dags / "pages.py").write_text(DAGS)
    took: dict[str, tuple[float, int, int]] = {}
    with DaemonProcess(folder / "home", dags, flags=("--cpu-slots", "2")) as daemon:
        for way in ("defers", "batches", "coroutine", "streamed", "whole"):
            _took(daemon, way, 2)  # warm-up: later runs find all imports done
            took[way] = _took(daemon, way, pages)
    fsync = fsync_ms(folder)
    return report(
        "streams",
        figures=_figures(took, pages),
        pages=pages,
        durability="full",
        fsync_ms=fsync,
        turns={way: turns for way, (_, turns, _) in took.items()},
        starts={way: starts for way, (_, _, starts) in took.items()},
    )


def _figures(took: dict[str, tuple[float, int, int]], pages: int) -> list[Figure]:
    against = "a defer and a resume for each page"
    slow, many_turns, many_starts = took["defers"]
    figures = []
    for way, name in _WAYS.items():
        seconds, turns, starts = took[way]
        figures += [
            Figure(f"{pages} pages by {name}", round(seconds, 3), "s", round(slow, 3), against),
            Figure(f"turns of {name}", turns, "", many_turns, against),
            Figure(f"starts of {name}", starts, "", many_starts, against),
        ]
    streamed, whole = took["streamed"][0], took["whole"][0]
    of_a_list = "the same list returned at once"
    name = f"{pages} items of a generator, a child each"
    return [*figures, Figure(name, round(streamed, 3), "s", round(whole, 3), of_a_list)]


def _took(daemon: DaemonProcess, way: str, pages: int) -> tuple[float, int, int]:
    """Return seconds, commits and starts of one run."""
    before = commit_no(daemon)
    run_id = daemon.trigger(way, {"pages": pages})
    assert daemon.wait(run_id, 600)["state"] == "success", way
    turns = commit_no(daemon) - before
    with daemon.database() as database:
        run_no, first, began, ended = database.execute(
            "SELECT run_no, first_task_no, started_at, ended_at FROM run WHERE run_id = ?",
            (run_id,),
        ).fetchone()
        (starts,) = database.execute(
            "SELECT start_no FROM task WHERE run_no = ? AND task_no = ?", (run_no, first)
        ).fetchone()
    return (ended - began) / 1e6, turns, starts


if __name__ == "__main__":
    command(__doc__, measure, FULL)
