"""Waits for files in a simulation: files are found at once, and waiting costs nothing."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aioflow import dag, stream, task, wait
from aioflow.author.dag import forget_registered
from aioflow.testing import BEGINS_AT, Sim
from aioflow_triggers import FileGoneTrigger, FilesTrigger, FileTrigger, NewFiles


@pytest.fixture(autouse=True)
def _no_dags_of_others():
    forget_registered()


@task
async def file_seen(path: Path) -> datetime:
    await wait(FileTrigger(path))
    return datetime.now(UTC)


@task
async def files_seen(pattern: Path) -> list[str]:
    seen = await wait(FilesTrigger(pattern, at_least=2), timeout="30d")
    return [Path(path).name for path in seen["paths"]]


@task
async def gone(path: Path) -> str:
    return (await wait(FileGoneTrigger(path)))["path"]


@task
async def arrivals(pattern: Path, count: int) -> list[str]:
    names: list[str] = []
    async for new in stream(NewFiles(pattern)):
        names.append(Path(new["path"]).name)
        if len(names) == count:
            break
    return names


def _check_that_no_time_is_real(sim: Sim) -> None:
    """Check that no open descriptor makes each step of time wait for real notifications."""
    assert sim._world._loop.watched() == []


def _elapsed(moment: datetime) -> float:
    return (moment - BEGINS_AT).total_seconds()


# ── time ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("folder_count", [1, 10])
async def test_three_days_beside_ten_file_waits_and_a_schedule_cost_little(
    sim: Sim, tmp_path: Path, folder_count: int
):
    @task
    def ticks() -> None: ...

    @dag(schedule="0 * * * *")
    def hourly() -> None:
        ticks()

    @dag
    def waiting() -> None:
        for number in range(5):
            folder = tmp_path / str(number % folder_count)
            folder.mkdir(exist_ok=True)
            file_seen(folder / f"{number}.csv")
            files_seen(folder / f"{number}-*.csv")

    run = await sim.start(waiting)
    await sim.schedule(hourly)
    _check_that_no_time_is_real(sim)
    cpu = time.process_time()
    await sim.advance("3d")

    assert time.process_time() - cpu <= 2.0
    assert len(sim.runs(hourly)) >= 72
    assert set(run.states.values()) == {"deferred"}


async def test_a_wait_for_files_times_out_at_once_for_the_test(sim: Sim, tmp_path: Path):
    @task(retries=0)
    async def impatient() -> None:
        await wait(FilesTrigger(tmp_path / "*.csv"), timeout="2h")

    @dag
    def late() -> None:
        impatient()

    run = await sim.start(late)
    _check_that_no_time_is_real(sim)
    await run.finished()

    assert run["impatient"].error.type == "TimeoutError"
    assert _elapsed(sim.now) == pytest.approx(7200, abs=1)


# ── files ───────────────────────────────────────────────────────────────────────────────


async def test_a_file_of_the_test_is_found_at_once_and_rests_by_virtual_time(
    sim: Sim, tmp_path: Path
):
    @dag
    def one() -> None:
        file_seen(tmp_path / "deep" / "a.csv")

    run = await sim.start(one)
    await sim.advance("1h")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.csv").write_text("a")
    await sim.advance("4s")
    assert run["file_seen"].state == "deferred"
    (tmp_path / "deep" / "a.csv").write_text("longer")
    await sim.advance("4s")
    assert run["file_seen"].state == "deferred"
    await sim.advance("1s")

    assert _elapsed(run["file_seen"].result) == pytest.approx(3609, abs=0.2)


async def test_files_that_a_body_writes_while_time_passes_are_found_then(sim: Sim, tmp_path: Path):
    @task
    def writes() -> None:
        for number in range(2):
            time.sleep(86_400 + number)
            (tmp_path / f"{number}.csv").write_text("x")

    @dag
    def producing() -> None:
        writes()
        files_seen(tmp_path / "*.csv")
        file_seen(tmp_path / "1.csv")

    run = await (await sim.start(producing)).finished()

    assert run["files_seen"].result == ["0.csv", "1.csv"]
    assert _elapsed(run["file_seen"].result) == pytest.approx(2 * 86_400 + 1 + 5, abs=0.2)


async def test_several_waits_in_one_folder_each_see_the_change_that_others_asked_for(
    sim: Sim, tmp_path: Path
):
    """A poll that a change causes for one of the waits does not count as a poll for the others."""

    @dag
    def several() -> None:
        files_seen(tmp_path / "a*.csv")
        files_seen(tmp_path / "b*.csv")
        gone(tmp_path / "marker")
        arrivals(tmp_path / "*.csv", 4)

    (tmp_path / "marker").write_text("x")
    run = await sim.start(several)
    await sim.advance("1h")
    for name in ("a1.csv", "a2.csv", "b1.csv"):
        (tmp_path / name).write_text(name)
        await sim.advance("1s")
    await sim.advance("1m")
    assert run.states == {
        "files_seen": "success",
        "files_seen__1": "deferred",
        "gone": "deferred",
        "arrivals": "deferred",
    }
    (tmp_path / "b2.csv").write_text("b2")
    (tmp_path / "marker").unlink()
    await sim.advance("1m")

    assert run["files_seen"].result == ["a1.csv", "a2.csv"]
    assert run["files_seen__1"].result == ["b1.csv", "b2.csv"]
    assert run["gone"].result == str(tmp_path / "marker")
    assert run["arrivals"].result == ["a1.csv", "a2.csv", "b1.csv", "b2.csv"]


async def test_a_wait_that_comes_later_does_not_hide_a_change_from_the_one_before(
    sim: Sim, tmp_path: Path
):
    @task
    async def later() -> list[str]:
        await asyncio.sleep(3600)
        (tmp_path / "a1.csv").write_text("x")
        (tmp_path / "a2.csv").write_text("x")
        return (await wait(FilesTrigger(tmp_path / "a*.csv", at_least=2, stable=0)))["paths"]

    @dag
    def both() -> None:
        files_seen(tmp_path / "a*.csv")
        later()

    run = await sim.start(both)
    await sim.advance("1h")
    await sim.advance("1m")

    assert run.state == "success"


async def test_a_crash_leaves_the_waits_for_files_as_they_were(sim: Sim, tmp_path: Path):
    @dag
    def one() -> None:
        file_seen(tmp_path / "a.csv")

    run = await sim.start(one)
    await sim.advance("1h")
    await sim.crash()
    (tmp_path / "a.csv").write_text("a")
    await sim.advance("1m")

    assert run.state == "success"
    assert sim._world._loop.pauses == {}  # nothing is polled for a wait that has ended
