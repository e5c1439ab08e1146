"""A page that is open for a long time uses as much memory at the end as at the beginning.

``AIOFLOW_PAGE_MINUTES`` is the duration, 15 minutes by default.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import CDPSession

from benchmarks.daemon import DaemonProcess
from tests.browser.watched import BROWSER_TESTS, Watched, watched

MINUTES = float(os.environ.get("AIOFLOW_PAGE_MINUTES", "15"))

# The first timeout mark applies.
pytestmark = [pytest.mark.timeout(600 + 90 * MINUTES), *BROWSER_TESTS, pytest.mark.nightly]

LIVE = """
from __future__ import annotations

import time
from pathlib import Path

from aioflow import dag, task


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


@task
async def each(number: int) -> int:
    if number % 10 == 7:
        raise ValueError(f"{number} is refused")
    return number


@dag
def busy(count: int) -> None:
    each.expand(number=numbers(count))


@task
def prints(folder: str) -> None:
    number = 0
    while not Path(folder, "end").exists():
        for _ in range(20):
            number += 1
            print(f"line {number} of many")
        time.sleep(0.1)


@dag
def talks(folder: str) -> None:
    prints(folder)
"""

PAGES = ("/", "/runs", "/runs/talking?task=prints", "/dags/busy")
WIDTH = 60

SPARE_BYTES = 1_500_000
SPARE_SHARE = 0.15
"""Growth up to this share of the initial value is tolerated."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a page retains after garbage collection."""

    heap: int
    nodes: int
    listeners: int


def held(session: CDPSession) -> Held:
    """Collect garbage, and count what remains."""
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    counters = session.send("Memory.getDOMCounters")
    heap = session.send("Runtime.getHeapUsage")["usedSize"]
    return Held(int(heap), counters["nodes"], counters["jsEventListeners"])


def least(samples: list[Held]) -> Held:
    """Return the minimum of all samples, because memory retained for a moment is no growth."""
    return Held(
        min(one.heap for one in samples),
        min(one.nodes for one in samples),
        min(one.listeners for one in samples),
    )


def grown(before: Held, after: Held) -> list[str]:
    """Return a description of everything that has grown by more than the tolerance."""
    found = []
    if after.heap > before.heap * (1 + SPARE_SHARE) + SPARE_BYTES:
        found.append(f"heap {before.heap:,} -> {after.heap:,} bytes")
    if after.nodes > before.nodes * (1 + SPARE_SHARE) + 500:
        found.append(f"{before.nodes:,} -> {after.nodes:,} nodes")
    if after.listeners > before.listeners * (1 + SPARE_SHARE) + 100:
        found.append(f"{before.listeners:,} -> {after.listeners:,} listeners")
    return found


@pytest.fixture
def live(tmp_path: Path):
    """Run a daemon with a run that prints until the end, and a DAG for ever more runs."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "live.py").write_text(LIVE)
    with DaemonProcess(tmp_path / "home", tmp_path / "dags") as daemon:
        daemon.knows("busy")
        daemon.trigger("talks", {"folder": str(tmp_path)}, run_id="talking")
        yield daemon
        (tmp_path / "end").touch()


def test_pages_that_stay_open_do_not_grow(browser, live):
    with ExitStack() as stack:
        pages: dict[str, Watched] = {}
        for path in PAGES:
            pages[path] = stack.enter_context(watched(browser, live)).go(path)
        sessions = {
            path: page.page.context.new_cdp_session(page.page) for path, page in pages.items()
        }
        seen: dict[str, list[Held]] = {path: [] for path in PAGES}
        began = time.monotonic()
        runs = 0
        while (now := time.monotonic() - began) < MINUTES * 60:
            run = live.trigger("busy", {"count": WIDTH}, run_id=f"busy-{runs}")
            runs += 1
            live.wait(run)
            for path, session in sessions.items():
                seen[path].append(held(session))
            if runs % 20 == 1:
                print(
                    f"{now:.0f} s, {runs} runs: { {path: all_[-1] for path, all_ in seen.items()} }"
                )
        for page in pages.values():
            page.clean()
    # During the first fifth the page is compiled, and lists and logs fill up to their limits.
    fifth = max(1, runs // 5)
    found = {
        path: (least(samples[fifth : 2 * fifth]), least(samples[-fifth:]))
        for path, samples in seen.items()
    }
    print(f"{runs} runs in {MINUTES:g} minutes: {found}")
    assert {path: grew for path, both in found.items() if (grew := grown(*both))} == {}


def test_growth_is_noticed():
    before = Held(4_000_000, 1_000, 100)
    assert grown(before, Held(4_400_000, 1_100, 110)) == []
    assert len(grown(before, Held(9_000_000, 9_000, 900))) == 3
