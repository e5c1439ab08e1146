"""The PostgreSQL server of a daemon crashes in the middle of its work, and is restarted."""

from __future__ import annotations

import http.client
import socket
import time
from collections import Counter
from pathlib import Path

from benchmarks.daemon import eventually
from tests.faults.ground import DAGS, Ground, Victim, has_ended
from tests.postgres_server import private_postgres

__all__ = ("postgres_down_at_start", "postgres_restarted")

COUNT = 24


def postgres_restarted(folder: Path, *, times: int, seconds: float) -> dict[str, float]:
    """Crash the server again and again during runs and waits. They may only be delayed.

    Args:
        seconds: How long the server is down each time.
    """
    ground, gate = Ground(folder), folder / "gate"
    slowest = 0.0
    with private_postgres() as server:
        daemon = Victim(ground.home, DAGS, db=server.url, flags=("--cpu-slots", "2"))
        with daemon:
            asked = {"count": COUNT, "seconds": 0.1}
            deferred = ground.ask_until_answered(
                daemon, dag_id="deferred", gate=str(gate), running=0
            )
            eventually(lambda: daemon.run(deferred, limit=1)["counts"].get("deferred") == 20)
            for _ in range(times):
                run_id = ground.ask_until_answered(daemon, **asked)
                eventually(lambda run_id=run_id: len(ground.begun(run_id)) >= 4)  # type: ignore[misc]
                before, lines = len(ground.acknowledged), daemon.log_lines()
                since = time.monotonic()
                server.crash()
                with ground.asking(daemon, **asked):
                    eventually(lambda lines=lines: daemon.log_lines() > lines, 60.0)  # type: ignore[misc]
                    time.sleep(seconds)  # the length of the fault
                    assert len(ground.acknowledged) == before, "acknowledged, not stored"
                    server.start()
                    back = time.monotonic()
                ground.ask_until_answered(daemon, **asked)
                took = time.monotonic() - back
                slowest = max(slowest, took)
                daemon.judge_log(lines, time.monotonic() - since)
            gate.write_text("open")
            ground.ask_again(daemon, **asked)
            begun = sum(_judge(ground, daemon, run_id) for run_id in ground.acknowledged.values())
            assert daemon.stop() == 0
    ground.judge_nobody_left()
    return {"times": times, "bodies": begun, "slowest_resumed_seconds": round(slowest, 2)}


def postgres_down_at_start(folder: Path) -> dict[str, float]:
    """Start the daemon while the server is down: it waits, live but not ready, and then works."""
    ground = Ground(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with private_postgres() as server:
        server.crash()
        daemon = Victim(ground.home, DAGS, db=server.url, flags=("--port", port))
        daemon.launch()
        try:
            eventually(lambda: _status(port, "ready") == 503, 60.0, daemon.last_words)
            assert _status(port, "live") == 200
            server.start()
            back = time.monotonic()
            eventually(lambda: _status(port, "ready") == 200, 60.0, daemon.last_words)
            took = time.monotonic() - back
            assert ground.ask_until_answered(daemon)
            assert daemon.stop() == 0
        finally:
            daemon.kill()
    ground.judge_nobody_left()
    return {"ready_after_seconds": round(took, 2)}


def _status(port: str, check: str) -> int:
    """Return the status of a health check, or 0 if there is no response."""
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=10)
    try:
        connection.request("GET", f"/health/{check}")
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def _judge(ground: Ground, daemon: Victim, run_id: str) -> int:
    """Assert that each body of a run started once, so that none of our processes can have died."""
    eventually(lambda: has_ended(daemon, run_id), 60.0, daemon.last_words)
    run = daemon.run(run_id)
    assert run["state"] == "success", run
    assert all(task["interruptions"] == 0 for task in run["tasks"])
    begun = Counter((line.task_id, line.map_index) for line in ground.begun(run_id))
    twice = {name: times for name, times in begun.items() if times > (name[0] == "stumble") + 1}
    assert not twice, twice
    return begun.total()
