"""The wall clock is set, or processes are stopped: nothing runs twice, and nothing is killed."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.daemon import eventually
from tests.faults import tools
from tests.faults.ground import LENGTHS, TICKS, Ground, Victim

__all__ = (
    "ROLES",
    "clock_steps",
    "frozen_worker",
    "length_steps",
    "schedule_steps",
    "stand_still",
)

HOUR = 3600
ROLES = ("daemon", "triggers", "async", "slot")


def clock_steps(folder: Path, *steps: int, count: int = 80, running: int = 10) -> dict[str, int]:
    """Set the clock while tasks are deferred or running, all with an hour's time limit."""
    shim = tools.ClockShim(folder)
    ground, gate = Ground(folder), folder / "gate"
    slots = ("--cpu-slots", str(running))  # one of the running tasks uses none
    with ground.daemon(*slots).wrap((), **shim.environment) as daemon:
        run_id = _deferred(ground, daemon, gate, count, running)
        before = _pids(daemon)
        for step in steps:
            shim.set(step)
            _assert_nothing_moves(daemon, run_id, before)
        small = ground.ask(daemon)  # runs that start under the new clock end under it
        assert small is not None
        assert daemon.wait(small)["state"] == "success"
        gate.write_text("open")
        run = daemon.wait(run_id)
        tasks = daemon.run(run_id)["tasks"]
        assert run["state"] == "success", tasks
        _assert_once(ground, run_id, tasks, count)
        _assert_not_replaced(daemon, before)
        ground.judge_database()
        ground.judge_durations([*tasks, *daemon.run(small)["tasks"]])
    ground.judge_nobody_left()
    return {"steps": len(steps), "tasks": len(tasks)}


def schedule_steps(folder: Path) -> dict[str, int]:
    """Check that a schedule continues after each clock step, and no fire time gets two runs."""
    shim = tools.ClockShim(folder)
    ground = Ground(folder)
    counts = []
    with ground.daemon(dags=TICKS).wrap((), **shim.environment) as daemon:
        for offset in (0, 6 * HOUR, 4 * HOUR, 6 * HOUR):
            shim.set(offset)
            known = _fire_times(daemon)
            eventually(lambda known=known: len(_fire_times(daemon) - known) >= 3, 45.0)  # type: ignore[misc]
            counts.append(len(_fire_times(daemon)))
        runs = daemon.items("/api/v1/runs?dag=ticks&limit=1000")
        dates = Counter(run["logical_date"] for run in runs)
        assert max(dates.values()) == 1, dates.most_common(3)
        for run in runs:
            assert run["state"] in {"queued", "running", "success"}, run
        ground.judge_database()
    return {"fire_times": len(dates), "before_the_step_back": counts[1], "after_it": counts[2]}


def length_steps(folder: Path) -> dict[str, int]:
    """Check that durations ignore clock steps.

    Durations of an hour survive steps of hours, and one of seconds ends in spite of a step back.
    """
    shim, gate = tools.ClockShim(folder), folder / "gate"
    ground = Ground(folder)
    with ground.daemon(dags=LENGTHS).wrap((), **shim.environment) as daemon:
        run_id = ground.ask_until_answered(daemon, dag_id="hours", gate=str(gate))
        eventually(lambda: _states(daemon, run_id)["deferred"] == 2, 60.0)
        shim.set(6 * HOUR)
        _let_pass(3.0)  # the sensor looks several times
        assert not _states(daemon, run_id)["failed"], daemon.run(run_id)["tasks"]
        short = ground.ask_until_answered(daemon, dag_id="soon")
        eventually(lambda: _states(daemon, short)["deferred"] == 1, 60.0)
        shim.set(-2 * HOUR)
        assert daemon.wait(short)["state"] == "success"
        gate.write_text("open")
        eventually(lambda: _states(daemon, run_id)["success"] == 2, 60.0)
        counts = _states(daemon, run_id)
        assert counts == Counter(success=2, deferred=1), counts  # it sleeps for an hour
        ground.acknowledged.clear()  # judged here
        ground.judge_database()
    return {"tasks": 4}


def _states(daemon: Victim, run_id: str) -> Counter[str]:
    return +Counter(daemon.run(run_id, limit=1)["counts"])


def stand_still(folder: Path, role: str, seconds: float) -> dict[str, float]:
    """Stop the daemon or a child for a while. Afterwards everything continues unharmed."""
    ground, gate = Ground(folder), folder / "gate"
    with ground.daemon() as daemon:
        run_id = _deferred(ground, daemon, gate, 20)
        before = _pids(daemon)
        pids = [daemon.process.pid] if role == "daemon" else daemon.children(role)
        with tools.stopped(pids):
            gate.write_text("open")
            if role != "daemon":
                assert ground.ask(daemon, seconds=0.05) is not None
            _let_pass(seconds)
        began = time.monotonic()
        run = daemon.wait(run_id)
        ground.judge(daemon)
        tasks = daemon.run(run_id)["tasks"]
        assert run["state"] == "success", tasks
        assert sum(task["interruptions"] for task in tasks) == 0, tasks
        _assert_once(ground, run_id, tasks, 20)
        _assert_not_replaced(daemon, before)
    ground.judge_nobody_left()
    return {"recovery_seconds": round(time.monotonic() - began, 2), "tasks": len(tasks)}


def frozen_worker(folder: Path) -> dict[str, float]:
    """Stop a worker for good while its task runs: it is killed, and the task starts again."""
    ground, gate = Ground(folder), folder / "gate"
    with ground.daemon("--cpu-slots", "1") as daemon:
        run_id = _deferred(ground, daemon, gate, 1)
        (pid,) = {line.pid for line in ground.begun(run_id) if line.task_id == "busy"}
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)

        def waits() -> dict[str, Any] | None:
            (busy,) = [task for task in daemon.run(run_id)["tasks"] if task["task_id"] == "busy"]
            waiting_on: dict[str, Any] | None = busy["waiting_on"]
            return waiting_on

        waiting_on = eventually(waits, 60.0, lambda: str(daemon.run(run_id)))
        assert waiting_on["kind"] == "executor", waiting_on
        noticed = time.monotonic() - began
        eventually(lambda: len(ground.begun(run_id)) == 3, 180.0)
        began_again = time.monotonic() - began
        gate.write_text("open")
        run = daemon.wait(run_id)
        assert run["state"] == "success", run
        (busy,) = [task for task in daemon.run(run_id)["tasks"] if task["task_id"] == "busy"]
        assert (busy["interruptions"], busy["try_number"]) == (1, 1), busy
    ground.judge_nobody_left()
    return {"noticed_seconds": round(noticed, 1), "began_again_seconds": round(began_again, 1)}


def _deferred(ground: Ground, daemon: Victim, gate: Path, count: int, running: int = 2) -> str:
    """Start a run with deferred and running tasks. Return its id once all are there."""
    run_id = ground.ask_until_answered(
        daemon, dag_id="deferred", gate=str(gate), count=count, running=running - 1
    )
    ground.acknowledged.clear()  # judged here, not as a run of ``small``

    def there() -> bool:
        counts = daemon.run(run_id, limit=1)["counts"]
        return counts.get("deferred") == count and counts.get("running") == running

    eventually(there, 180.0, lambda: str(daemon.run(run_id)["counts"]))
    eventually(lambda: len(ground.begun(run_id)) == running, 180.0)
    return run_id


def _assert_nothing_moves(daemon: Victim, run_id: str, before: dict[str, list[int]]) -> None:
    """Assert that a step of the clock changes nothing for as long as a timer needs to notice it."""
    counts = daemon.run(run_id, limit=1)["counts"]
    turns = _turns(daemon)
    _let_pass(2.0)
    assert daemon.run(run_id, limit=1)["counts"] == counts
    _assert_not_replaced(daemon, before)
    assert _turns(daemon) - turns < 200, "it turns without anything to do"


def _let_pass(seconds: float) -> None:
    """Wait this many seconds, because something must not happen."""
    time.sleep(seconds)


def _turns(daemon: Victim) -> int:
    for line in daemon.get("/metrics")[1].splitlines():
        if line.startswith("aioflow_turns"):
            return round(float(line.split()[-1]))
    raise AssertionError("no count of turns")


def _assert_once(ground: Ground, run_id: str, tasks: list[Any], count: int) -> None:
    begun = Counter((line.task_id, line.map_index) for line in ground.begun(run_id))
    assert set(begun.values()) == {1}, {name: times for name, times in begun.items() if times > 1}
    assert sum(name == "deferred" for name, _ in begun) == count
    assert all(task["try_number"] == 1 for task in tasks), tasks


def _assert_not_replaced(daemon: Victim, before: dict[str, list[int]]) -> None:
    """Assert that no child was replaced. Further slot workers may have been started."""
    now = _pids(daemon)
    gone = {role: {*pids} - {*now[role]} for role, pids in before.items()}
    assert not any(gone.values()), f"children were replaced: {gone}"
    assert all(now[role] == before[role] for role in ("triggers", "async"))


def _pids(daemon: Victim) -> dict[str, list[int]]:
    return {role: sorted(daemon.children(role)) for role in ROLES[1:]}


def _fire_times(daemon: Victim) -> set[str]:
    return {run["logical_date"] for run in daemon.items("/api/v1/runs?dag=ticks&limit=1000")}
