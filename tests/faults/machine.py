"""Children die, or the machine has no descriptors, processes or memory left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.daemon import eventually
from tests.faults import tools
from tests.faults.ground import Ground, Victim

__all__ = (
    "children_killed",
    "no_descriptors",
    "no_inotify",
    "no_memory",
    "no_processes",
    "parsers_killed",
    "trigger_hosts_killed",
)

ROLES = ("slot", "async", "triggers")

IDLE_SECONDS = 12.0
"""Seconds after which idle threads end. From then on they would have to be created again."""


def children_killed(folder: Path, role: str, times: int) -> dict[str, float]:
    """Kill the slot workers or the async host again and again while tasks run.

    Each kill hits a different run, so that no single task is interrupted more often than a task may
    be.
    """
    ground = Ground(folder)
    count, seconds = {"slot": (16, 0.2), "async": (2, 1.0)}[role]
    killed: list[int] = []
    replaced, began_all = 0.0, time.monotonic()
    with ground.daemon() as daemon:
        run_id = ground.ask_until_answered(daemon, count=count, seconds=seconds)
        for number in range(times):
            if number:  # however slow we are, there is work to kill
                run_id = ground.ask_until_answered(daemon, count=count, seconds=seconds)
            if role == "slot":
                _wait_for_ends(ground, run_id, 2)
                pid = _at_work(ground, run_id, killed)
            else:
                pid = daemon.child(role, not_in=killed)
                _wait_for_nap(ground, run_id)
            standing = len(daemon.children(role))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            if number + 1 < times:
                replaced = max(replaced, _until_replaced(daemon, role, killed, standing))
        ground.judge(daemon, count=count, timeout=120.0)
        assert len(killed) == times
        interruptions = sum(
            task["interruptions"]
            for asked in ground.acknowledged.values()
            for task in daemon.run(asked)["tasks"]
        )
        assert interruptions >= times // 2, "hardly anything was under way"
        lines = sum(daemon.judge_log(0, time.monotonic() - began_all).values())
    ground.judge_nobody_left()
    return {
        "killed": len(killed),
        "interruptions": interruptions,
        "runs": len(ground.acknowledged),
        "slowest_replacement_seconds": round(replaced, 2),
        "lines": lines,
    }


def _until_replaced(daemon: Victim, role: str, killed: Sequence[int], standing: int) -> float:
    """Wait until there are as many processes of the role as before. Return the seconds it took."""
    began = time.monotonic()
    eventually(lambda: len({*daemon.children(role)} - {*killed}) >= standing, 60.0)
    return time.monotonic() - began


def _wait_for_ends(ground: Ground, run_id: str, more: int) -> None:
    def ends() -> int:
        return sum(line.what == "end" for line in ground.lines(run_id))

    wanted = ends() + more
    eventually(lambda: ends() >= wanted, 30.0, lambda: f"{ends()} of {wanted} ends")


def _at_work(ground: Ground, run_id: str, killed: Sequence[int]) -> int:
    """Wait until a worker is running a body, and return the worker."""

    def found() -> int | None:
        last = {line.pid: line.what for line in ground.lines(run_id) if line.task_id == "square"}
        busy = [pid for pid, what in last.items() if what == "begin" and pid not in killed]
        return busy[0] if busy else None

    return eventually(found, 30.0, look_seconds=0.01)


def _wait_for_nap(ground: Ground, run_id: str) -> None:
    """Wait until the coroutine of a run has begun."""
    eventually(lambda: any(line.task_id == "nap" for line in ground.lines(run_id)), 60.0)


def trigger_hosts_killed(folder: Path, times: int, count: int = 20) -> dict[str, float]:
    """Kill each trigger host while it has triggers. Afterwards each trigger fires once."""
    ground, gate = Ground(folder), folder / "gate"
    killed: list[int] = []
    hosted, began_all = 0.0, time.monotonic()
    with ground.daemon() as daemon:
        run_id = ground.ask_until_answered(daemon, dag_id="deferred", gate=str(gate), count=count)
        ground.acknowledged.clear()  # judged here, not as a run of ``small``
        eventually(lambda: daemon.run(run_id, limit=1)["counts"].get("deferred") == count)
        for number in range(times):
            began = time.monotonic()
            pid = daemon.child("triggers", not_in=killed)
            _wait_for_hostings(ground, run_id, count * (number + 1))
            hosted = max(hosted, time.monotonic() - began)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        gate.write_text("open")
        opened = time.monotonic()
        assert daemon.wait(run_id)["state"] == "success", daemon.run(run_id)
        fired = time.monotonic() - opened
        begun = [line.map_index for line in ground.begun(run_id) if line.task_id == "deferred"]
        assert sorted(begun) == list(range(count)), begun
        lines = sum(daemon.judge_log(0, time.monotonic() - began_all).values())
        ground.judge_database()
    ground.judge_nobody_left()
    return {
        "killed": len(killed),
        "fired": len(begun),
        "slowest_hosting_seconds": round(hosted, 2),
        "fired_seconds": round(fired, 2),
        "lines": lines,
    }


def no_inotify(folder: Path, call: str, error: str, count: int = 20) -> dict[str, float]:
    """Let the kernel refuse inotify watches to the trigger host, and then grant them again.

    Polling detects the same files, once per period, and the host logs the refusal once. When no
    trigger is waiting any more, the host forgets the refusal and asks the kernel again for the next
    triggers.
    """
    tools.needs("strace")
    ground, output = Ground(folder), folder / "injected"
    seconds: list[float] = []
    with ground.daemon() as daemon:
        host = daemon.child("triggers")
        with tools.injecting(host, call, f"error={error}:when=1+", output):
            seconds.append(_opened(ground, daemon, "refused", count))
            injected = output.read_text().count("INJECTED")
            assert not _has_watches(host)
        assert injected >= 1
        seconds.append(_opened(ground, daemon, "told", count, meanwhile=lambda: _has_watches(host)))
        assert daemon.child("triggers") == host, "it was not worth a replacement"
        said = [daemon.log, *(daemon.home / "logs").rglob("*.log")]
        warnings = sum(path.read_bytes().count(b"watches no more folders") for path in said)
        assert warnings == 1, f"said {warnings} times"
        ground.judge_database()
    ground.judge_nobody_left()
    return {
        "injected": injected,
        "fired": 2 * count,
        "fired_seconds_refused": round(seconds[0], 2),
        "fired_seconds": round(seconds[1], 2),
    }


def _opened(
    ground: Ground,
    daemon: Victim,
    name: str,
    count: int,
    meanwhile: Callable[[], bool] = lambda: True,
) -> float:
    """Let ``count`` tasks wait for a file, then create it. Return how long they took to end."""
    gate = ground.folder / name
    run_id = ground.ask_until_answered(daemon, dag_id="deferred", gate=str(gate), count=count)
    ground.acknowledged.clear()  # judged here, not as a run of ``small``
    eventually(lambda: daemon.run(run_id, limit=1)["counts"].get("deferred") == count)
    _wait_for_hostings(ground, run_id, count)
    eventually(meanwhile)
    gate.write_text("open")
    opened = time.monotonic()
    assert daemon.wait(run_id)["state"] == "success", daemon.run(run_id)
    begun = [line.map_index for line in ground.begun(run_id) if line.task_id == "deferred"]
    assert sorted(begun) == list(range(count)), begun
    return time.monotonic() - opened


def _has_watches(pid: int) -> bool:
    """Return whether the process has inotify watches."""
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if "inotify wd:" in entry.read_text():
                return True
    return False


def _wait_for_hostings(ground: Ground, run_id: str, count: int) -> None:
    """Wait until there have been this many assignments of the run's triggers in total."""

    def hostings() -> int:
        return sum(line.what == "hosted" for line in ground.lines(run_id))

    eventually(lambda: hostings() >= count, 60.0, lambda: f"{hostings()} of {count} hostings")


def parsers_killed(folder: Path, times: int) -> dict[str, float]:
    """Kill the parser process each time it reads a DAG file. Other DAG files are not affected."""
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


def no_descriptors(folder: Path, *, seconds: float, limit: int = 16) -> dict[str, float]:
    """Leave the daemon no descriptors: work that needs one waits, and continues afterwards.

    Args:
        limit: So low that all descriptors below it are in use and none of them becomes free.
    """
    ground = Ground(folder)
    with ground.daemon() as daemon:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
        run_id = ground.ask(daemon, count=16, seconds=0.2)
        assert run_id is not None
        pid, before = daemon.process.pid, _descriptors(daemon)
        assert set(range(limit)) <= before, "some of these are free"
        with tools.descriptors_limited(pid, limit), _connections(daemon, 80):
            said = _fault(daemon, seconds)
            assert _descriptors(daemon) <= before, "it got more"
        healed = _healed(ground, daemon)
        _judge_after(ground, daemon, run_id, 16)
    ground.judge_nobody_left()
    return {"lines": said, "healed_seconds": healed}


def no_processes(folder: Path, *, seconds: float, idle: bool = False) -> dict[str, float]:
    """Let no process and no thread be created for a while.

    Args:
        idle: Whether the daemon has been idle for a long time when its children die.
    """
    ground = Ground(folder)
    with tools.ControlGroup("pids", f"aioflow-faults-{os.getpid()}") as group:
        with ground.daemon().wrap(group.words) as daemon:
            ground.ask_until_answered(daemon)
            ground.judge(daemon)
            run_id = ground.ask(daemon, count=16, seconds=0.2)
            assert run_id is not None
            group.limit(1)  # existing threads may stay
            if idle:
                daemon.wait(run_id)
                time.sleep(IDLE_SECONDS)  # a part of the fault
            said = _fault(daemon, seconds)
            assert "process can be started" in daemon.log.read_text()
            group.limit("max")
            healed = _healed(ground, daemon)
            _judge_after(ground, daemon, run_id, 16)
        ground.judge_nobody_left()
    return {"lines": said, "healed_seconds": healed}


def _fault(daemon: Victim, seconds: float) -> int:
    """Kill all children while no process can be started. Return how many lines are logged."""
    before = daemon.log_lines()
    there = {role: daemon.children(role) for role in ROLES}
    assert all(there.values()), there  # the number of idle slot workers depends on the requests
    killed = [pid for pids in there.values() for pid in pids]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    time.sleep(seconds)  # the length of the fault
    assert daemon.is_alive, daemon.last_words()
    assert not any(daemon.children(role) for role in ROLES), "nothing was missing"
    return sum(daemon.judge_log(before, seconds).values())


def _healed(ground: Ground, daemon: Victim) -> float:
    """Wait until every role has a process again. Return how long that took."""
    began = time.monotonic()
    run_id = ground.ask_until_answered(daemon, count=4)  # a slot needs work to need a process
    for role in ROLES:
        daemon.child(role, timeout=60.0)
    took = time.monotonic() - began
    assert daemon.wait(run_id)["state"] == "success"
    ground.judge_run(daemon.run(run_id), 4)
    del ground.acknowledged[ground.asked.pop()]  # judged, with its own width
    return round(took, 2)


def _judge_after(ground: Ground, daemon: Victim, run_id: str, count: int) -> None:
    """Assert that the run of this width ends in the right state, and so does a later one."""
    run = daemon.wait(run_id, 60.0)
    assert run["state"] == "success", daemon.run(run_id)
    ground.judge_run(daemon.run(run_id), count)
    del ground.acknowledged[ground.asked.pop()]  # judged, with its own width
    ground.ask_until_answered(daemon)
    ground.judge(daemon)


def _descriptors(daemon: Victim) -> set[int]:
    return {int(entry.name) for entry in Path(f"/proc/{daemon.process.pid}/fd").iterdir()}


@contextmanager
def _connections(daemon: Victim, count: int) -> Iterator[None]:
    """Open connections to the daemon that send nothing."""
    with ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(1.0)
            with contextlib.suppress(OSError):
                client.connect(daemon._socket())
        yield


def no_memory(folder: Path) -> dict[str, float]:
    """Let a task use more memory than there is. Only this task fails, with the reason."""
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
