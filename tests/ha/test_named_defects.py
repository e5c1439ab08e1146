"""Known recovery defects of other products, each tried during a takeover.

Samples without daemons are in ``tests/test_standby.py``, ``tests/test_engine.py`` and
``tests/store/test_nodes.py``.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.daemon import eventually
from tests.ha.cluster import LEASE_SECONDS, Cluster, Node, cluster
from tests.ha.test_faults import judged, started

pytestmark = [
    pytest.mark.process,
    pytest.mark.postgres,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
]

DAGS = Path(__file__).parent / "dags"
_SHORT_OF_A_LEASE = 0.8  # seconds of silence, too few for a takeover


def commits_of(nodes: Cluster, node: Node) -> int:
    """Return the number of the last commit of a node."""
    ((number,),) = nodes.ask("SELECT commit_no FROM node WHERE name = $1", node.name)
    return int(number)


def wait_for_claim(nodes: Cluster, node: Node) -> None:
    """Wait until a node has claimed the database. It cannot use the database yet."""
    eventually(lambda: nodes.active_name() == node.name, 180.0, nodes.words, look_seconds=0.01)


# ── the database restarts in the middle of a takeover ───────────────────────────────────


def test_the_database_restarts_in_the_middle_of_a_takeover(tmp_path: Path) -> None:
    """The successor has claimed the database, and is reading the unfinished runs."""
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        run_id = started(nodes, active)
        standby.proxy.delay_seconds = 0.05  # each statement takes long enough to be hit
        active.kill()
        wait_for_claim(nodes, standby)
        commits = commits_of(nodes, standby)
        nodes.server.crash()
        standby.proxy.delay_seconds = 0.0
        time.sleep(LEASE_SECONDS + 1)  # the length of the fault
        assert standby.is_alive, standby.last_words()
        nodes.server.start()
        nodes.wait_for_active(standby)
        assert commits == 0, "it had read everything already"
        assert nodes.takeovers() == 1
        judged(nodes, standby, run_id)


# ── a stale read of who owns ────────────────────────────────────────────────────────────


def test_a_stale_read_of_who_owns(tmp_path: Path) -> None:
    """A standby has seen the dead node silent, and is frozen until another one has taken over."""
    with cluster(tmp_path, ("a", "b", "c")) as nodes:
        nodes.start()
        dead, owner, late = nodes.nodes
        run_id = started(nodes, dead)
        dead.kill()
        time.sleep(_SHORT_OF_A_LEASE)
        late.stand_still()
        nodes.wait_for_active(owner)
        late.go_on()
        asked = {"conf": {"ledger": str(nodes.ledger), "count": 2}, "key": "once"}

        def made() -> Any:
            status, answer = late.request("POST", "/api/v1/dags/small/runs", asked, status=None)
            return answer["run_id"] if status in {200, 201} else None

        other = eventually(made, 60.0, nodes.words)
        assert made() == other, "the owner that it had read about has made another"
        nodes.judge_run(owner, other, count=2, takeovers=0)
        assert nodes.active_name() == owner.name
        assert (nodes.takeovers(), nodes.fenced()) == (1, 0)
        assert late.stop(60) == 0
        judged(nodes, owner, run_id)


# ── the old node still drains when its successor begins ─────────────────────────────────


def test_the_old_daemon_drains_while_its_successor_begins(tmp_path: Path) -> None:
    """The old daemon may not write any more, and its tasks run again at the successor."""
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        run_id = started(nodes, active)
        active.stand_still()
        active.process.terminate()  # it drains as soon as it is resumed
        nodes.wait_for_active(standby)
        active.go_on()
        assert active.process.wait(180) == 0
        assert nodes.active_name() == standby.name
        judged(nodes, standby, run_id)


# ── stuck between two durable steps ─────────────────────────────────────────────────────


def test_a_task_that_is_stuck_between_two_durable_steps(tmp_path: Path) -> None:
    """The task continues with its third step at the successor. The waiting run follows."""
    gate = tmp_path / "gate"
    with cluster(tmp_path, dags=DAGS) as nodes:
        active, standby = nodes.start()
        active.request("PUT", "/api/v1/pools/narrow", {"slots": 1})
        runs = {}
        for name in ("one", "other"):
            conf = {"ledger": str(nodes.ledger), "gate": str(gate), "run": name}
            runs[name] = active.trigger("stepped", conf)
            eventually(lambda: marks(nodes)["between", "one"] == 1, 120.0, nodes.words)
        # The first two steps are recorded, because only then did the body continue. The other run
        # waits for the pool.
        assert set(marks(nodes)) == {(step, "one") for step in ("first", "second", "between")}
        active.kill()
        nodes.wait_for_active(standby)
        eventually(lambda: marks(nodes)["between", "one"] == 2, 120.0, nodes.words)
        gate.touch()
        for run_id in runs.values():
            assert standby.wait(run_id)["state"] == "success", nodes.words()
        steps = {name: count for name, count in marks(nodes).items() if name[0] != "between"}
        assert steps == {
            (step, name): 1 for step in ("first", "second", "third") for name in runs
        }, "a step that was recorded ran again, or one did not run"
        assert nodes.takeovers() == 1
        assert standby.stop(60) == 0
        nodes.judge_database()


def marks(nodes: Cluster) -> Counter[tuple[str, str]]:
    """Return how often each step of each run was executed."""
    lines = nodes.ledger.read_text().splitlines()
    return Counter((step, run) for step, run in (line.split() for line in lines))


def test_a_successor_that_dies_between_its_claim_and_its_first_commit(tmp_path: Path) -> None:
    """The takeover made the first of its two durable steps. The next one must not assume both."""
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        run_id = started(nodes, active)
        active.kill()
        wait_for_claim(nodes, standby)
        standby.kill(whole_tree=True)
        commits = commits_of(nodes, standby)
        active.launch()
        nodes.wait_for_active(active)
        print("commits of the successor:", commits)
        assert nodes.takeovers() == 2
        judged(nodes, active, run_id, takeovers=2)
