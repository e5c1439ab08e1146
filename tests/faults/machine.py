"""Children die, and the machine has no descriptors, processes or memory to give."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.daemon import eventually
from tests.faults import tools
from tests.faults.ground import Ground, Victim, has_ended

__all__ = ("children_killed", "no_descriptors", "no_memory", "no_processes", "parsers_killed")

LINES_PER_SECOND = 5.0


def children_killed(folder: Path, role: str, times: int) -> dict[str, float]:
    """Kill the processes of a role again and again while work goes on.

    Between two kills of workers something must have ended, so that no single task is the
    victim more often than any task may be.
    """
    ground = Ground(folder)
    count, seconds = {"slot": (4 * times, 0.1), "async": (2, 1.5), "triggers": (8, 0.2)}[role]
    killed: list[int] = []
    replaced = 0.0
    with ground.daemon() as daemon:
        run_id = ground.ask_until_answered(daemon, count=count, seconds=seconds)
        for number in range(times):
            pid = daemon.child(role, not_in=killed)
            if role == "slot":
                _wait_for_ends(ground, run_id, 2)
            elif role == "async":
                _wait_for_naps(ground, run_id, number + 1)
            elif has_ended(daemon, run_id):
                run_id = ground.ask_until_answered(daemon, count=count, seconds=seconds)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            began = time.monotonic()
            if number + 1 < times:
                daemon.child(role, not_in=killed)
                replaced = max(replaced, time.monotonic() - began)
        ground.judge(daemon, count=count, timeout=120.0)
        assert len(killed) == times
        assert daemon.is_alive
        interruptions = sum(
            task["interruptions"]
            for asked in ground.acknowledged.values()
            for task in daemon.run(asked)["tasks"]
        )
        lines = daemon.log_lines()
    ground.judge_nobody_left()
    assert lines <= 20 + 10 * times, "too much was said"
    return {
        "killed": len(killed),
        "interruptions": interruptions,
        "runs": len(ground.acknowledged),
        "slowest_replacement_seconds": round(replaced, 2),
    }


def _wait_for_ends(ground: Ground, run_id: str, more: int) -> None:
    def ends() -> int:
        return sum(line.what == "end" for line in ground.lines(run_id))

    wanted = ends() + more
    eventually(lambda: ends() >= wanted, 30.0, lambda: f"{ends()} of {wanted} ends")


def _wait_for_naps(ground: Ground, run_id: str, times: int) -> None:
    """Wait until the coroutine has begun this often: each kill has it begin again."""

    def begun() -> int:
        return sum(line.task_id == "nap" for line in ground.lines(run_id))

    eventually(lambda: begun() >= times, 60.0, lambda: f"{begun()} of {times} naps")


def parsers_killed(folder: Path, times: int) -> dict[str, float]:
    """Kill the process that reads a DAG file, each time it does: others are not touched."""
    ground = Ground(folder)
    dags = folder / "dags"
    dags.mkdir()
    small = (Path(__file__).parent / "dags" / "small.py").read_text()
    (dags / "small.py").write_text(small)
    slow = dags / "slow.py"
    killed: list[int] = []
    with ground.daemon(dags=dags) as daemon:
        ground.ask_until_answered(daemon)
        for number in range(times):
            slow.write_text(f"import time\nfrom aioflow import dag\ntime.sleep(20)  # {number}\n")
            pid = daemon.child("parser", not_in=killed)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            if number % 5 == 0:
                ground.ask_until_answered(daemon)
        slow.write_text(small.replace("def small(", "def mended("))
        ground.judge(daemon)
        eventually(lambda: daemon.get("/api/v1/dags/mended", status=None)[0] == 200, 30.0)
    ground.judge_nobody_left()
    return {"killed": len(killed), "runs": len(ground.acknowledged)}


def no_descriptors(folder: Path, *, seconds: float, limit: int = 64) -> dict[str, float]:
    """The daemon has no descriptors left: what needs one waits, and goes on afterwards."""
    ground = Ground(folder)
    with ground.daemon() as daemon:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
        run_id = ground.ask(daemon, count=16, seconds=0.2)
        assert run_id is not None
        pid = daemon.process.pid
        with tools.descriptors_limited(pid, limit), _connections(daemon, limit + 20):
            eventually(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) >= limit - 2, 10.0)
            rate = _fault(daemon, seconds)
        _judge_after(ground, daemon, run_id, 16)
    ground.judge_nobody_left()
    return {"lines_per_second": rate}


def no_processes(folder: Path, *, seconds: float) -> dict[str, float]:
    """No process and no thread can be made for a while."""
    ground = Ground(folder)
    with tools.ControlGroup("pids", f"aioflow-faults-{os.getpid()}") as group:
        with ground.daemon().wrap(group.words) as daemon:
            ground.ask_until_answered(daemon)
            ground.judge(daemon)
            run_id = ground.ask(daemon, count=16, seconds=0.2)
            assert run_id is not None
            group.limit(1)  # what is there may stay
            rate = _fault(daemon, seconds)
            group.limit("max")
            _judge_after(ground, daemon, run_id, 16)
        ground.judge_nobody_left()
    return {"lines_per_second": rate}


def _fault(daemon: Victim, seconds: float) -> float:
    """Have it need new processes while it can have none; return how many lines a second it says.

    The first tries follow each other quickly, later ones do not: a loop that is hot stays so.
    """
    before = daemon.log_lines()
    for role in ("slot", "async", "triggers"):
        for pid in daemon.children(role):
            os.kill(pid, signal.SIGKILL)
    time.sleep(seconds)  # the length of the fault
    assert daemon.is_alive, daemon.last_words()
    said = daemon.log_lines() - before
    rate = round(said / seconds, 1)
    assert said >= 1, "it said nothing of it"
    assert rate <= LINES_PER_SECOND, f"{rate} lines a second: {daemon.last_words()}"
    return rate


def _judge_after(ground: Ground, daemon: Victim, run_id: str, count: int) -> None:
    """Assert that the run of this width ends right, and another one after it."""
    run = daemon.wait(run_id, 60.0)
    assert run["state"] == "success", daemon.run(run_id)
    ground.judge_run(daemon.run(run_id), count)
    del ground.acknowledged[ground.asked.pop()]  # judged, with its own width
    ground.ask_until_answered(daemon)
    ground.judge(daemon)


@contextmanager
def _connections(daemon: Victim, count: int) -> Iterator[None]:
    """Clients that connect and say nothing."""
    with ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(1.0)
            with contextlib.suppress(OSError):
                client.connect(daemon._socket())
        yield


def no_memory(folder: Path) -> dict[str, float]:
    """A task takes more memory than there is: it alone fails, and says why."""
    ground = Ground(folder)
    with tools.ControlGroup("memory", f"aioflow-faults-{os.getpid()}") as group:
        group.limit(768 * 2**20)
        with ground.daemon().wrap(group.words) as daemon:
            run_id = ground.ask_until_answered(daemon, dag_id="starving")
            run = daemon.wait(run_id, 60.0)
            tasks = {(t["task_id"], t["map_index"]): t for t in daemon.run(run_id)["tasks"]}
            assert run["state"] == "failed", run
            assert tasks["hungry", -1]["error"]["reason"] == "oom", tasks["hungry", -1]
            squares = [t for name, t in tasks.items() if name[0] == "square"]
            assert [t["state"] for t in squares] == ["success"] * 8
            assert sum(t["interruptions"] for t in squares) == 0
            ground.acknowledged.clear()
            ground.ask_until_answered(daemon)
            ground.judge(daemon)
        ground.judge_nobody_left()
    return {"neighbours": len(squares)}
