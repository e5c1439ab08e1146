"""A loop on a daemon that is killed between two iterations: each runs once, with its output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import DaemonProcess, eventually
from tests.commands import run
from tests.daemons import SharedDaemon

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

DAGS = """
from collections.abc import Sequence
from pathlib import Path

from aioflow import current, dag, sleep, task, task_group


@task
def add(previous: int, folder: str, number: int = current.round) -> int:
    print(f"round {number} adds to {previous}")
    with open(Path(folder, "rounds"), "a") as file:
        file.write(f"{number}\\n")
    return previous + 10


@task
async def pause(total: int, folder: str, number: int = current.round) -> int:
    while number == 2 and not Path(folder, "go-on").exists():
        await sleep(0.05)
    return total


@task
def told(last: int, rounds: Sequence[int]) -> list[int]:
    return [last, *rounds]


def enough(total: int) -> bool:
    print(f"asked about {total}")
    return total >= 50


@task_group(until=enough, max_rounds=9)
def rounds(folder: str, previous: int = 10) -> int:
    return pause(add(previous, folder), folder)


@dag
def going_round(folder: str) -> None:
    last = rounds(folder)
    told(last, last.rounds)
"""


def asked(daemon: DaemonProcess, *words: str) -> str:
    """Return the output of a command."""
    done = run(*words, home=daemon.home)
    assert done.status == 0, done.err
    return done.out


def standing(daemon: DaemonProcess) -> dict[tuple[str, int], str]:
    tasks = daemon.run("loop")["tasks"]
    assert {task["map_index"] for task in tasks} == {-1}
    return {(task["task_id"], task["round"]): task["state"] for task in tasks}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def test_a_cleared_loop_starts_over_and_gives_what_it_comes_to_then(
    shared_daemon: SharedDaemon, folder: Path
):
    daemon = shared_daemon
    daemon.add("loops.py", DAGS)
    (folder / "go-on").touch()

    daemon.trigger("going_round", {"folder": str(folder)}, run_id="loop")
    daemon.wait("loop")
    words = ("runs", "clear", "loop", "--task", "rounds.pause", "--downstream", "--json")
    cleared = run(*words, home=daemon.home).json
    daemon.wait("loop")
    results = {task["task_id"]: task["result"] for task in daemon.run("loop")["tasks"]}
    refused = run(*words, "--round", "2", home=daemon.home)
    marked = run(
        "runs", "mark", "loop", "--task", "rounds.add", "--state", "failed", home=daemon.home
    )
    unseen = run("runs", "why", "loop", "rounds.add", "--round", "4", home=daemon.home)

    assert cleared["cleared"] == 4 * 3 + 1
    assert (folder / "rounds").read_text().split() == ["0", "1", "2", "3"] * 2
    assert results["told"] == [50, 20, 30, 40, 50]
    assert refused.status == 2
    assert "--round" in refused.err
    assert marked.status == 1
    assert "clear it (`aioflow runs clear loop --task rounds.add`)" in marked.err
    assert unseen.status == 1
    assert "has not begun round 4; its last one is 3 [request.unknown_round]" in unseen.err


def test_a_loop_continues_with_its_round_after_a_kill(killed_daemon: SharedDaemon, folder: Path):
    daemon = killed_daemon
    daemon.add("loops.py", DAGS)

    def waits() -> dict[tuple[str, int], str] | None:
        states = standing(daemon)
        return states if states.get(("rounds.pause", 2)) == "deferred" else None

    daemon.trigger("going_round", {"folder": str(folder)}, run_id="loop")
    before: Any = eventually(waits)
    assert before["rounds.until", 1] == "success"
    daemon.kill()
    daemon.start()
    (folder / "go-on").touch()
    daemon.wait("loop")

    states = standing(daemon)
    assert set(states.values()) == {"success"}
    assert sorted(round_ for name, round_ in states if name == "rounds.until") == [0, 1, 2, 3]
    results = {task["task_id"]: task["result"] for task in daemon.run("loop")["tasks"]}
    assert results["told"] == [50, 20, 30, 40, 50]
    assert (folder / "rounds").read_text().split() == ["0", "1", "2", "3"]

    said = asked(daemon, "runs", "logs", "loop", "rounds.add", "--round", "1")
    assert said == "round 1 adds to 20\n"
    assert asked(daemon, "runs", "logs", "loop", "rounds.until") == "asked about 50\n"
    assert "rounds.until, round 3" in asked(daemon, "runs", "show", "loop")
    words = ("runs", "why", "loop", "rounds.add", "--round", "2", "--json")
    why = run(*words, home=daemon.home).json
    assert [(cause["task_id"], cause["round"]) for cause in why["causes"]] == [("rounds.add", 2)]
