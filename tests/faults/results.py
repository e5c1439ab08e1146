"""The disk has space for the database, but not for a large result."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from benchmarks.daemon import eventually, task_of
from tests.faults import tools
from tests.faults.ground import Ground, Victim

__all__ = ("results_that_do_not_fit",)

LEFT = 2 * 2**20
"""Bytes left on the disk: more than the limit at which the daemon considers it full."""

TIMEOUT_SECONDS = 2.0
"""The ``execution_timeout`` of the tasks of ``large``."""


def results_that_do_not_fit(folder: Path, *, seconds: float = 0.0) -> dict[str, float]:
    """Leave no space for two results of 4 MiB: no task starts, and no try is charged.

    Args:
        seconds: How long beyond the ``execution_timeout`` of the tasks the fault lasts.
    """
    with tools.memory_disk(folder / "disk", 48) as disk:
        ground = Ground(folder, home=disk / "home")
        with ground.daemon() as daemon:
            ground.ask_until_answered(daemon)
            ground.judge(daemon)
            filler = tools.fill(disk)
            os.truncate(filler, filler.stat().st_size - LEFT)
            run_id = daemon.trigger("large", {"ledger": str(ground.ledger)})
            eventually(lambda: not _ready(daemon)["disk"], 30.0)
            behind = ground.ask_until_answered(daemon)  # the database has space
            why = f"/api/v1/runs/{behind}/tasks/numbers/why"
            eventually(lambda: "2 results" in str(daemon.get(why)[1]), 30.0)
            time.sleep(TIMEOUT_SECONDS + seconds)  # the length of the fault

            assert not _ready(daemon)["disk"]
            assert ground.begun(behind) == [], "a task started while the disk is full"
            assert {task["state"] for task in daemon.run(run_id)["tasks"][:2]} == {"running"}
            filler.unlink()
            freed = time.monotonic()
            assert daemon.wait(run_id, 30.0)["state"] == "success"
            resumed = time.monotonic() - freed
            assert task_of(daemon, run_id, "size")["result"] == 8 * 2**20
            begun = Counter(line.task_id for line in ground.begun(run_id))
            assert begun == {"of_a_worker": 1, "of_a_host": 1}
            eventually(lambda: all(_ready(daemon).values()), 30.0)
            ground.judge(daemon)
        return {"resumed_seconds": round(resumed, 2)}


def _ready(daemon: Victim) -> dict[str, bool]:
    checks: dict[str, bool] = daemon.request("GET", "/health/ready", status=None)[1]["checks"]
    return checks
