"""Two daemons on an overloaded machine, where the standby must not take over."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.daemon import eventually
from tests.ha.cluster import cluster

__all__ = ("quiet_minutes",)

_COUNT = 24
_PAUSE_SECONDS = 3.0  # idle, so that only heartbeats show that the daemon is alive
_PATIENCE_SECONDS = 600.0


@contextmanager
def busy_processes(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run processes that do nothing but use CPU time."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def quiet_minutes(folder: Path, *, minutes: float, busy: int) -> dict[str, float]:
    """Alternate tasks and pauses on a busy machine. Count takeovers and fenced nodes."""
    with cluster(folder) as nodes:
        active, standby = nodes.start()
        until = time.monotonic() + 60 * minutes
        runs, load, run_id = 0, 0.0, ""
        with busy_processes(busy) as processes:
            while time.monotonic() < until:
                run_id = nodes.trigger(active, count=_COUNT, seconds=0.05)
                run = active.wait(run_id, _PATIENCE_SECONDS)
                assert run["state"] == "success", (run, nodes.words())
                runs += 1
                time.sleep(_PAUSE_SECONDS)
                load = max(load, os.getloadavg()[0])
            assert all(process.poll() is None for process in processes), "it was not busy"
        eventually(active.is_ready, _PATIENCE_SECONDS, nodes.words)
        assert nodes.active_name() == active.name
        assert standby.is_alive
        nodes.judge_run(active, run_id, count=_COUNT, takeovers=0)
        return {
            "minutes": minutes,
            "busy": busy,
            "runs": runs,
            "highest_load": round(load, 1),
            "takeovers": nodes.takeovers(),
            "fenced": nodes.fenced(),
        }
