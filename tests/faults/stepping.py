"""Random kills of some or all processes, while tasks wait and take durable steps."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from aioflow.store.sqlite.database_file import open_reader
from tests.faults.ground import Ground, Victim

__all__ = ("steps_killed",)

STEPS = Path(__file__).parent / "steps"
VICTIMS = ("daemon", "everything", "async")


def steps_killed(
    folder: Path, *, tasks: int, kills: int, seconds: float, seed: int
) -> dict[str, Any]:
    """Kill processes at random while ``tasks`` run, then let the tasks end. Check what they did.

    Args:
        seconds: The longest time that a task sleeps before its second step.
    """
    ground, gate, dice = Ground(folder), folder / "gate", random.Random(seed)
    with ground.daemon(dags=STEPS) as daemon:
        run_id = ground.ask_until_answered(
            daemon, dag_id="steps", gate=str(gate), count=tasks, seconds=seconds
        )
        for _ in range(kills):
            time.sleep(dice.uniform(0.0, 2 * seconds / kills))  # which instant is hit is chance
            _kill(daemon, dice.choice(VICTIMS))
        gate.write_text("open")
        assert daemon.wait(run_id, seconds + 120.0)["state"] == "success"
        again = _judge(ground, run_id, tasks, kills)
        ground.judge_database()
    ground.judge_nobody_left()
    return {"tasks": tasks, "kills": kills, "steps_run_again": again}


def _kill(daemon: Victim, what: str) -> None:
    if what != "async":
        daemon.kill(whole_tree=what == "everything")
        daemon.start()
        return
    pid = daemon.child("async")
    os.kill(pid, signal.SIGKILL)
    daemon.child("async", not_in=[pid])


def _judge(ground: Ground, run_id: str, tasks: int, kills: int) -> int:
    """Assert that the last execution of each step is recorded. Return how many were repeated."""
    marks: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    for line in ground.ledger.read_text().splitlines():
        index, step, mark = line.split()
        marks[int(index), step].append(mark)
    results = _results(ground, run_id)
    assert sorted(results) == list(range(tasks))
    assert len(marks) == 2 * tasks
    for (number, name), left in marks.items():
        recorded = results[number][name == "second"]
        assert left[-1] == recorded, f"{name} step of {number} ran again after its record"
        assert len(left) <= 1 + kills
    return sum(len(left) - 1 for left in marks.values())


def _results(ground: Ground, run_id: str) -> dict[int, list[str]]:
    connection = open_reader(ground.database)
    try:
        rows = connection.execute(
            "SELECT task.map_index, result.body, task.try_number FROM result"
            " JOIN task USING (task_no) JOIN run ON run.run_no = task.run_no"
            " WHERE run.run_id = ? AND task.map_index >= 0",
            (run_id,),
        ).fetchall()
    finally:
        connection.close()
    assert {tries for _, _, tries in rows} == {1}, "an innocent task was charged"
    return {index: msgspec.msgpack.decode(body, type=list[str]) for index, body, _ in rows}
