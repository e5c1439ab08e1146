"""The active daemon dies, and the standby continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.daemon import eventually
from tests.ha.cluster import cluster

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.timeout(300)]


def test_the_standby_continues_when_the_active_daemon_is_killed(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        assert standby.health("ready") == 503
        run_id = nodes.trigger(active, count=8, seconds=0.2)
        eventually(lambda: len(nodes.lines("end", run_id)) >= 2, 60.0, nodes.words)
        assert standby.get(f"/api/v1/runs/{run_id}")[1]["run_id"] == run_id

        active.kill()
        nodes.wait_for_active(standby)
        nodes.judge_run(standby, run_id, count=8)
        assert nodes.takeovers() == 1
        assert standby.stop() == 0
        nodes.judge_database()
