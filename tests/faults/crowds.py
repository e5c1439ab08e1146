"""``kill -9`` of trigger host, async host and daemon in turn, during waits and streams."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.daemon import eventually
from tests.faults.ground import Ground, Victim

__all__ = ("crowd_killed",)

CROWD = Path(__file__).parent / "crowd"
ROLES = ("triggers", "async", "daemon")
ROUNDS = 4
"""The same number as in the DAG."""

OTHERS = 5
"""Number of tasks that only return how many tasks of a kind to run, or how fast."""

Ledger = dict[tuple[str, int], list[int]]


def crowd_killed(
    folder: Path,
    *,
    kills: int,
    waits: int,
    streams: int,
    events: int,
    seconds: float,
    seed: int = 1,
) -> dict[str, Any]:
    """Kill the processes in turn, open the gate, and check what each body recorded.

    Args:
        seconds: How long the streams and the short waits take. Should be as long as the kills take.
    """
    ground, gate, dice = Ground(folder), folder / "gate", random.Random(seed)
    deferred = coroutines = waits * 2 // 5
    conf = {
        "deferred": deferred,
        "coroutines": coroutines,
        "sensors": waits - deferred - coroutines,
        "streams": streams,
        "events": events,
        "seconds": seconds,
    }
    killed: list[int] = []
    slowest = dict.fromkeys(ROLES, 0.0)
    with ground.daemon(dags=CROWD) as daemon:
        run_id = ground.ask_until_answered(daemon, dag_id="crowd", gate=str(gate), **conf)
        eventually(lambda: _waiting(daemon, run_id) >= 0.9 * (waits + streams), 60.0)
        began = time.monotonic()
        for number in range(kills):
            role = ROLES[number % len(ROLES)]
            slowest[role] = max(slowest[role], _kill(daemon, role, killed))
            time.sleep(dice.uniform(0.0, 1.0))  # where in its life the next is hit
        under_way = _waiting(daemon, run_id)
        took = time.monotonic() - began
        gate.write_text("open")
        opened = time.monotonic()
        assert daemon.wait(run_id, seconds + 120.0)["state"] == "success", _failures(ground)
        finished = time.monotonic() - opened
        assert under_way >= waits, "it was over too early"
        doubled = _judge(ground, run_id, conf, kills)
        _judge_rows(ground, waits + streams + OTHERS)
        ground.judge_database()
    ground.judge_nobody_left()
    return {
        "kills": len(killed),
        "waits": waits,
        "streams": streams,
        "events": streams * events,
        "kills_seconds": round(took, 1),
        "slowest_replacement_seconds": {role: round(took, 2) for role, took in slowest.items()},
        "finished_seconds": round(finished, 2),
        "steps_begun_again": doubled,
    }


def _kill(daemon: Victim, role: str, killed: list[int]) -> float:
    """Kill one process. Return how many seconds later it was replaced."""
    if role == "daemon":
        killed.append(daemon.process.pid)
        began = time.monotonic()
        daemon.kill()
        daemon.start()
        return time.monotonic() - began
    pid = daemon.child(role, not_in=killed)
    os.kill(pid, signal.SIGKILL)
    killed.append(pid)
    began = time.monotonic()
    daemon.child(role, not_in=killed)
    return time.monotonic() - began


def _waiting(daemon: Victim, run_id: str) -> int:
    counts = daemon.run(run_id, limit=1)["counts"]
    return int(sum(counts.get(state, 0) for state in ("deferred", "sensing", "queued", "running")))


def _judge(ground: Ground, run_id: str, conf: Mapping[str, Any], kills: int) -> int:
    """Assert that each body did everything in order. Return how many steps ran more than once."""
    done = _ledger(ground, run_id)
    assert len(done) == conf["deferred"] + conf["coroutines"] + conf["streams"]
    doubled = 0
    for (what, number), said in done.items():
        wanted = range({"deferring": ROUNDS + 2, "durable": ROUNDS + 1}.get(what, conf["events"]))
        once = list(dict.fromkeys(said))
        assert once == list(wanted), (what, number, said)
        assert said == sorted(said), f"{what} {number} went back: {said}"
        # A step may run again if a kill hit it between its end and the commit of its record.
        assert len(said) - len(once) <= kills, (what, number, said)
        doubled += len(said) - len(once)
    return doubled


def _ledger(ground: Ground, run_id: str) -> Ledger:
    found: Ledger = defaultdict(list)
    for line in ground.ledger.read_text().splitlines():
        _, what, number, done, _ = line.split()
        assert line.startswith(run_id)
        found[what, int(number)].append(int(done))
    return found


def _judge_rows(ground: Ground, tasks: int) -> None:
    """Assert that no try was charged, and that no row of the waits is left."""
    # The hosts confirm released triggers a moment after the end of the run.
    eventually(lambda: _ask(ground, "SELECT count(*) FROM task_trigger") == [(0,)], 60.0)
    assert _ask(ground, "SELECT count(*), min(try_number), max(try_number) FROM task") == [
        (tasks, 1, 1)
    ]
    for table in ("event", "record"):
        assert _ask(ground, f"SELECT count(*) FROM {table}") == [(0,)], table


def _failures(ground: Ground) -> list[object]:
    return _ask(ground, "SELECT * FROM task WHERE state NOT IN (6) LIMIT 5")


def _ask(ground: Ground, question: str) -> list[object]:
    connection = sqlite3.connect(f"file:{ground.database}?mode=ro", uri=True)
    try:
        return connection.execute(question).fetchall()
    finally:
        connection.close()
