"""Triggers that misbehave, beside healthy triggers that must not be affected."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from benchmarks.daemon import DaemonProcess, eventually
from tests.faults.ground import Ground, Victim

__all__ = ("CULPRITS", "Figures", "misbehaving")

DAGS = Path(__file__).parent / "culprits"

CULPRITS = (
    "sleeps", "spins", "blocks_in_cleanup", "exits", "swallows", "never_cleans_up", "floods",
    "floods_a_stream", "swells",
)  # fmt: skip

LEAD_SECONDS = 3.0
"""Minimum time until the first trigger is due. By then, all tasks must be deferred."""

LATE_SECONDS = 1.0
"""A healthy task that resumes later than this counts as too late."""

Figures = dict[str, Any]


def misbehaving(
    folder: Path,
    *,
    seconds: float,
    instants: int,
    arrivals: int,
) -> Figures:
    """Start one culprit after another while healthy triggers fall due, and check all of them.

    Args:
        seconds: The period over which the healthy triggers fall due.
        instants: Number of healthy triggers that wait for a time.
        arrivals: Number of healthy triggers that wait for a file.
    """
    ground, files = Ground(folder), folder / "files"
    files.mkdir()
    daemon = ground.daemon(dags=DAGS)
    with daemon:
        _settle(daemon)
        plan = {"seconds": seconds, "instants": instants, "arrivals": arrivals}
        conf = {"ledger": str(ground.ledger), "files": str(files), **plan}
        healthy, begin = _defer(daemon, ground, conf, instants + arrivals)
        replaced = _replaced(daemon)
        with _files(files, begin, seconds, arrivals), _lag(daemon) as lags:
            runs = _start(daemon, folder, begin, seconds)
            ended = daemon.wait(healthy, seconds + 60.0)
        figures = _judge_healthy(ground, daemon, healthy, ended)
        figures["too_late_share"] = figures["too_late"] / figures["healthy"]
        figures["daemon_lag_seconds"] = round(max(lags), 3)
        figures["culprits"] = _judge_culprits(daemon, runs, folder)
        figures["hosts_replaced"] = _replaced(daemon) - replaced
        assert daemon.stop() == 0
    ground.judge_nobody_left()
    ground.judge_database()
    return figures


def _settle(daemon: Victim) -> None:
    """Wait until all DAGs are known and the trigger host is up."""
    for dag_id in ("on_time", *CULPRITS):
        eventually(partial(_is_known, daemon, dag_id))
    daemon.child("triggers")


def _defer(
    daemon: Victim, ground: Ground, conf: dict[str, object], count: int
) -> tuple[str, float]:
    """Defer ``count`` tasks before the first is due. Return their run, and when the first is due.

    If the machine is too slow for that, try again with more time.
    """
    lead, counts = LEAD_SECONDS + count / 500, dict[str, int]()
    for factor in (1, 3, 9):
        begin = time.time() + factor * lead
        run_id = daemon.trigger("on_time", {**conf, "begin": begin})
        wait = partial(_counts_or_due, daemon, run_id, count, begin)
        counts = eventually(wait, factor * lead + 60.0)
        if time.time() < begin:
            return run_id, begin
        daemon.request("POST", f"/api/v1/runs/{run_id}/cancel")
        daemon.wait(run_id)
        ground.ledger.unlink(missing_ok=True)
    raise AssertionError(f"they were due before they waited: {counts}")


def _counts_or_due(daemon: Victim, run_id: str, count: int, begin: float) -> dict[str, int] | None:
    """Return the state counts of a run once all tasks are deferred, or once the first is due."""
    counts: dict[str, int] = daemon.run(run_id, limit=1)["counts"]
    return counts if counts.get("deferred") == count or time.time() >= begin else None


def _replaced(daemon: Victim) -> int:
    return daemon.log.read_text().count("the triggers host died")


def _is_known(daemon: DaemonProcess, dag_id: str) -> bool:
    return daemon.get(f"/api/v1/dags/{dag_id}", status=None)[0] == 200


def _start(daemon: DaemonProcess, folder: Path, begin: float, seconds: float) -> dict[str, str]:
    """Start the culprits, spread over the first two thirds of the period."""
    runs = {}
    for number, dag_id in enumerate(CULPRITS):
        time.sleep(max(0.0, begin + seconds * number / len(CULPRITS) * 2 / 3 - time.time()))
        conf = {"gate": str(folder / "gate")} if dag_id == "floods_a_stream" else None
        runs[dag_id] = daemon.trigger(dag_id, conf)
        if dag_id == "swallows":
            _cancel(daemon, runs[dag_id])
    return runs


def _cancel(daemon: DaemonProcess, run_id: str) -> None:
    eventually(lambda: _task(daemon, run_id)["state"] == "deferred")
    daemon.request("POST", f"/api/v1/runs/{run_id}/cancel")


@contextmanager
def _files(folder: Path, begin: float, seconds: float, count: int) -> Iterator[None]:
    """Write the files when they are due."""
    stop = Event()

    def write() -> None:
        for number in range(count):
            due = begin + seconds * number / count
            if stop.wait(max(0.0, due - time.time())):
                return
            (folder / str(number)).touch()

    with _thread(write, stop):
        yield


@contextmanager
def _lag(daemon: DaemonProcess) -> Iterator[list[float]]:
    """Sample the loop lag of the daemon, which reports each lag for a quarter of a minute."""
    stop = Event()
    found: list[float] = []

    def look() -> None:
        while True:
            ended = stop.wait(5.0)
            lines = str(daemon.get("/metrics")[1]).splitlines()
            [line] = [line for line in lines if line.startswith("aioflow_loop_lag_seconds ")]
            found.append(float(line.split()[1]))
            if ended:
                return

    with _thread(look, stop):
        yield found


@contextmanager
def _thread(work: Any, stop: Event) -> Iterator[None]:
    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60.0)


# ── judging ─────────────────────────────────────────────────────────────────────────────


def _judge_healthy(
    ground: Ground, daemon: DaemonProcess, run_id: str, ended: dict[str, Any]
) -> Figures:
    """Assert that each healthy task resumed once, without a charged try. Return the delays."""
    assert ended["state"] == "success", ended
    late: dict[str, list[float]] = {"instant": [], "arrival": []}
    for line in ground.ledger.read_text().splitlines():
        of, kind, _, late_by = line.split()
        assert of == run_id
        late[kind].append(float(late_by))
    together = late["instant"] + late["arrival"]
    figures: Figures = {f"{kind}_late_seconds": _percentiles(them) for kind, them in late.items()}
    figures["healthy"] = len(together)
    figures["too_late"] = sum(late_by > LATE_SECONDS for late_by in together)
    assert len(together) == sum(ended["counts"].values()) - 2
    with daemon.database() as database:
        charged = "SELECT max(try_number), max(interruptions) FROM task"
        assert database.execute(charged).fetchone() == (1, 0)
    return figures


def _judge_culprits(daemon: DaemonProcess, runs: dict[str, str], folder: Path) -> dict[str, str]:
    """Assert that each culprit is identified with its reason. Return the reasons."""
    slow = {
        known["name"].partition(":")[2]: known for known in daemon.items("/api/v1/triggers/slow")
    }
    reasons = {}
    for dag_id, run_id in runs.items():
        reasons[dag_id] = _JUDGES[dag_id](daemon, run_id, slow, folder)
    return reasons


def _fails(daemon: DaemonProcess, run_id: str, reason: str) -> str:
    assert daemon.wait(run_id)["state"] == "failed"
    error = _task(daemon, run_id)["error"]
    assert error["reason"] == reason, error
    return f"{reason}: {error['message']}"


def _is_apart(slow: dict[str, Any], name: str, method: str = "run") -> str:
    known = slow[name]
    assert known["quarantined"], known
    assert f"{name}.{method}" in known["source_location"], known
    return f"quarantined: {known['source_location']}"


def _sleeps(daemon: DaemonProcess, run_id: str, slow: dict[str, Any], _: Path) -> str:
    where = _is_apart(slow, "Sleeps")
    if daemon.wait(run_id)["state"] == "success":
        return where
    return f"{where}; {_fails(daemon, run_id, 'stalled')}"


def _blocks_in_cleanup(
    daemon: DaemonProcess, run_id: str, slow: dict[str, Any], folder: Path
) -> str:
    _succeeds(daemon, run_id)
    return _is_apart(slow, "BlocksInCleanup", "cleanup")


def _spins(daemon: DaemonProcess, run_id: str, slow: dict[str, Any], _: Path) -> str:
    return f"{_is_apart(slow, 'Spins')}; {_fails(daemon, run_id, 'stalled')}"


def _exits(daemon: DaemonProcess, run_id: str, *_: Any) -> str:
    said = _fails(daemon, run_id, "trigger")
    assert _task(daemon, run_id)["error"]["type"] == "SystemExit"
    return said


def _swells(daemon: DaemonProcess, run_id: str, *_: Any) -> str:
    return _fails(daemon, run_id, "payload_too_large")


def _swallows(daemon: DaemonProcess, run_id: str, *_: Any) -> str:
    assert daemon.wait(run_id)["state"] == "cancelled"
    said = "did not end when it was stopped"
    eventually(lambda: said in daemon.log.read_text(), 40.0)
    return said


def _succeeds(daemon: DaemonProcess, run_id: str, *_: Any) -> str:
    assert daemon.wait(run_id)["state"] == "success"
    return "success"


def _never_cleans_up(daemon: DaemonProcess, run_id: str, *_: Any) -> str:
    assert daemon.wait(run_id)["state"] == "success"
    said = "aioflow: cut short after 10 s"

    def log() -> str:
        return str(daemon.get(f"/api/v1/runs/{run_id}/tasks/waits/logs")[1])

    eventually(lambda: said in log(), 30.0, log)
    assert "in cleanup" in log()
    return said


def _floods_a_stream(daemon: DaemonProcess, run_id: str, _: Any, folder: Path) -> str:
    """Check that few events are stored ahead, and that the task ends once it has consumed them."""
    with daemon.database() as database:
        asked = "SELECT count(*), sum(payload IS NOT NULL) FROM event"
        stored, ahead = database.execute(asked).fetchone()
    assert 0 < ahead <= 2_000, (stored, ahead)
    (folder / "gate").touch()
    assert daemon.wait(run_id)["state"] == "success"
    taken = _task(daemon, run_id)["result"]
    assert taken >= 1
    return f"{taken} taken, {ahead} of {stored} ahead"


_JUDGES = {
    "sleeps": _sleeps,
    "spins": _spins,
    "blocks_in_cleanup": _blocks_in_cleanup,
    "exits": _exits,
    "swallows": _swallows,
    "never_cleans_up": _never_cleans_up,
    "floods": _succeeds,
    "floods_a_stream": _floods_a_stream,
    "swells": _swells,
}


def _task(daemon: DaemonProcess, run_id: str) -> dict[str, Any]:
    tasks = daemon.run(run_id)["tasks"]
    return tasks[0] if tasks else {"state": "pending"}


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        name: round(_percentile(ordered, share), 3)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("worst", 1.0))
    }


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
