"""The active daemon dies, and the standby takes over."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import eventually
from tests.ha.cluster import Follower, Node, cluster

pytestmark = [pytest.mark.process, pytest.mark.postgres, pytest.mark.timeout(300)]


def test_the_standby_is_useful_and_continues_when_the_active_daemon_is_killed(
    tmp_path: Path,
) -> None:
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        eventually(lambda: standby.health("ready") == 200, 60.0, nodes.words)
        made = active.request("POST", "/api/v1/tokens", {"name": "t", "role": "viewer"}, status=201)
        token = made[1]
        eventually(lambda: status_with(standby, token) == 200, 60.0, nodes.words)
        active.request("DELETE", f"/api/v1/tokens/{token['token_id']}")
        eventually(lambda: status_with(standby, token) == 401, 60.0, nodes.words)

        with Follower(standby) as page:
            run_id = nodes.trigger(standby, count=8, seconds=0.2)
            eventually(lambda: "success" in page.tasks.values(), 60.0, nodes.words)
            assert standby.get(f"/api/v1/runs/{run_id}")[1]["run_id"] == run_id
            states = {
                node["name"]: node["state"] for node in standby.get("/api/v1/nodes")[1]["items"]
            }
            assert states == {"a": "active", "b": "standby"}

            (version,) = {row[0] for row in nodes.ask("SELECT version FROM run")}
            assert (standby.home / "code" / version).is_dir(), "its takeover would have to wait"
            active.kill()
            nodes.wait_for_active(standby)
            nodes.judge_run(standby, run_id, count=8)
            last = nodes.trigger(standby, count=1, seconds=0.0)
            eventually(lambda: page.tasks.get((last, 0)) == "success", 60.0, nodes.words)
        assert nodes.takeovers() == 1
        assert standby.stop() == 0
        nodes.judge_database()


def status_with(node: Node, token: dict[str, Any]) -> int:
    """Return the status of a read request with a token, over TCP."""
    (port, *_) = re.findall(r"http://127\.0\.0\.1:(\d+)", node.log.read_text(errors="replace"))
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/runs",
        headers={"Authorization": f"Bearer {token['token']}"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
