"""Faults of the active daemon, of its connection and of the server, with real daemons.

Each case asserts that the database was taken over exactly if it should be, that a node declared
dead noticed that it was fenced, and that the run ended with the right result and no charged try.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.daemon import eventually
from tests.ha.cluster import LEASE_SECONDS, Cluster, Node, cluster

pytestmark = [
    pytest.mark.process,
    pytest.mark.postgres,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
]

COUNT = 24


def started(nodes: Cluster, node: Node) -> str:
    """Start a run. Return its id once some of its tasks have ended."""
    run_id = nodes.trigger(node, count=COUNT, seconds=0.3)
    eventually(lambda: len(nodes.lines("end", run_id)) >= 2, 120.0, nodes.words)
    return run_id


def judged(nodes: Cluster, node: Node, run_id: str, *, takeovers: int = 1) -> None:
    """Check the run, stop the node, and check the database."""
    nodes.judge_run(node, run_id, count=COUNT, takeovers=takeovers)
    assert node.stop(60) == 0
    nodes.judge_database()


def test_t1_a_daemon_that_is_killed_again_and_again(tmp_path: Path) -> None:
    chance = random.Random(1)
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        run_id = started(nodes, active)
        took = []
        for _ in range(4):
            active.kill(whole_tree=chance.random() < 0.5)
            took.append(nodes.wait_for_active(standby))
            active.launch()
            nodes.wait_for_standby(active)
            active, standby = standby, active
        print("seconds until ready after kill -9:", [round(one, 2) for one in took])
        assert nodes.takeovers() >= 4
        standby.stop(60)
        judged(nodes, active, run_id, takeovers=4)


def test_t2_a_daemon_that_stands_still_for_less_than_a_lease_stays_active(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        active, _ = nodes.start()
        run_id = started(nodes, active)
        active.stand_still()
        time.sleep(0.3 * LEASE_SECONDS)  # the length of the fault
        active.go_on()
        eventually(active.is_ready, 120.0, nodes.words)
        assert nodes.takeovers() == 0
        judged(nodes, active, run_id, takeovers=0)


def test_t2_a_daemon_that_stands_still_until_another_has_taken_over(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        run_id = started(nodes, active)
        active.stand_still()
        nodes.wait_for_active(standby)
        active.go_on()
        nodes.wait_for_fence(active)
        eventually(lambda: not active.is_ready(), 120.0)
        assert (nodes.takeovers(), nodes.fenced()) == (1, 1)
        judged(nodes, standby, run_id)


def test_t3_a_daemon_that_stands_still_within_a_transaction(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        active.proxy.delay_seconds = 0.02  # a transaction is open for long
        run_id = nodes.trigger(active, count=COUNT, seconds=0.05)
        within = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE application_name ~ '^aioflow/1/' AND state = 'idle in transaction'"
        )

        def stands_within() -> bool:
            active.stand_still()
            time.sleep(0.1)  # what is under way arrives
            if nodes.ask(within) == [(1,)]:
                return True
            active.go_on()
            return False

        eventually(stands_within, 120.0, nodes.words, look_seconds=0.01)
        nodes.wait_for_active(standby)
        active.proxy.delay_seconds = 0.0
        active.go_on()
        nodes.wait_for_fence(active)
        assert (nodes.takeovers() >= 1, nodes.fenced()) == (True, 1)
        judged(nodes, standby, run_id)


def cut(node: Node) -> None:
    node.proxy.is_refusing = True
    node.proxy.cut()


def swallow(node: Node) -> None:
    node.proxy.is_black_hole = True


@pytest.mark.parametrize("separate", [cut, swallow])
def test_t4_a_daemon_that_is_cut_off_from_the_server(
    tmp_path: Path, separate: Callable[[Node], None]
) -> None:
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        run_id = started(nodes, active)
        separate(active)
        eventually(lambda: active.health("ready") == 503, 120.0, nodes.words)
        nodes.wait_for_active(standby)
        active.proxy.is_refusing = active.proxy.is_black_hole = False
        active.proxy.cut()
        nodes.wait_for_fence(active)
        assert (nodes.takeovers(), nodes.fenced()) == (1, 1)
        judged(nodes, standby, run_id)


def test_t4_all_daemons_that_are_cut_off_wait_and_nobody_takes_over(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        active, _ = nodes.start()
        run_id = started(nodes, active)
        for node in nodes.nodes:
            cut(node)
        time.sleep(3 * LEASE_SECONDS)  # the length of the fault
        for node in nodes.nodes:
            node.proxy.is_refusing = False
        eventually(active.is_ready, 120.0, nodes.words)
        nodes.judge_run(active, run_id, count=COUNT, takeovers=0)
        assert (nodes.takeovers(), nodes.fenced()) == (0, 0)


def test_t5_sessions_that_the_server_ends_at_random(tmp_path: Path) -> None:
    chance = random.Random(5)
    with cluster(tmp_path) as nodes:
        active, _ = nodes.start()
        run_id = started(nodes, active)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            nodes.ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name LIKE 'aioflow%' ORDER BY random() LIMIT 1"
            )
            time.sleep(chance.uniform(0.05, 0.5))  # the pace of the fault
        eventually(active.is_ready, 120.0, nodes.words)
        nodes.judge_run(active, run_id, count=COUNT, takeovers=0)
        assert (nodes.takeovers(), nodes.fenced()) == (0, 0)


@pytest.mark.parametrize("is_taken_over", [False, True], ids=["alone", "in-a-takeover"])
def test_t6_the_server_restarts_also_in_the_middle_of_a_takeover(
    tmp_path: Path, *, is_taken_over: bool
) -> None:
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        run_id = started(nodes, active)
        if is_taken_over:
            active.kill()
            time.sleep(1.2)  # short of the quick lease: the server goes just then
        nodes.server.crash()
        time.sleep(LEASE_SECONDS + 1)  # the length of the fault
        nodes.server.start()
        if is_taken_over:
            nodes.wait_for_active(standby)
        else:
            eventually(active.is_ready, 120.0, nodes.words)
            assert nodes.takeovers() == 0
        survivor = standby if is_taken_over else active
        judged(nodes, survivor, run_id, takeovers=int(is_taken_over))


def test_t7_a_stop_hands_over_at_once(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        run_id = started(nodes, active)
        assert active.stop(60) == 0
        took = nodes.wait_for_active(standby)
        print("seconds from the end of the active daemon until ready:", round(took, 2))
        assert nodes.takeovers() == 0, "a lease was waited for"
        judged(nodes, standby, run_id)


def test_t8_of_three_daemons_one_takes_over_and_the_next_from_that_one(tmp_path: Path) -> None:
    with cluster(tmp_path, ("a", "b", "c")) as nodes:
        nodes.start()
        first = nodes.nodes[0]
        run_id = started(nodes, first)
        alive = [*nodes.nodes]
        for _ in range(2):
            active = next(node for node in alive if node.name == nodes.active_name())
            alive.remove(active)
            active.kill()
            eventually(lambda: any(node.is_ready() for node in alive), 180.0, nodes.words)
            assert sum(node.is_ready() for node in alive) == 1
        nodes.judge_run(alive[0], run_id, count=COUNT, takeovers=2)


def test_t9_two_daemons_that_meet_an_empty_database(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        for node in nodes.nodes:
            node.launch()
        eventually(lambda: any(node.is_ready() for node in nodes.nodes), 120.0, nodes.words)
        active = next(node for node in nodes.nodes if node.is_ready())
        (other,) = (node for node in nodes.nodes if node is not active)
        nodes.wait_for_standby(other)
        run_id = started(nodes, active)
        judged(nodes, active, run_id, takeovers=0)


def kill(nodes: Cluster, active: Node) -> None:
    active.kill()


def stand_still(nodes: Cluster, active: Node) -> None:
    active.stand_still()


def cut_off(nodes: Cluster, active: Node) -> None:
    cut(active)


def end_sessions(nodes: Cluster, active: Node) -> None:
    nodes.ask(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'aioflow/%'"
    )


def crash_server(nodes: Cluster, active: Node) -> None:
    nodes.server.crash()
    nodes.server.start()


FAULTS = (kill, stand_still, cut_off, end_sessions, crash_server)
_ROUNDS = int(os.environ.get("AIOFLOW_TEST_ROUNDS", "10"))


@pytest.mark.timeout(7_200)
def test_t12_many_runs_under_random_faults(tmp_path: Path) -> None:
    """In each round, inject a fault of the active daemon at a random moment of a run, and check."""
    chance = random.Random(12)
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        takeovers = fenced = 0
        for number in range(_ROUNDS):
            run_id = nodes.trigger(active, count=COUNT, seconds=0.2)
            time.sleep(chance.uniform(0.0, 3.0))  # the moment of the fault
            fault = FAULTS[number % len(FAULTS)]
            fault(nodes, active)
            if fault in {kill, stand_still, cut_off}:
                nodes.wait_for_active(standby)
                heal(active)  # in the middle of the run, which it would write to
                nodes.judge_run(standby, run_id, count=COUNT)
                nodes.wait_for_standby(active)
                takeovers, fenced = takeovers + 1, fenced + (fault is not kill)
                nodes.wait_for_fences(fenced)
                active, standby = standby, active
            else:
                nodes.judge_run(active, run_id, count=COUNT, takeovers=0)
                assert nodes.active_name() == active.name
            if number % 3 == 2:  # more often, a node would give up standing by again
                active, standby = restarted(nodes, active, standby)
        print("takeovers:", nodes.takeovers(), "fenced:", nodes.fenced(), "of", _ROUNDS, "rounds")
        assert takeovers >= 1
        assert fenced >= 1
        assert nodes.takeovers() >= takeovers
        standby.stop(60)
        active.stop(60)
        nodes.judge_database()  # also: no result was accepted twice


def heal(node: Node) -> None:
    """End the fault of a node that was replaced by another."""
    node.proxy.is_refusing = False
    if node.is_alive:
        node.go_on()
    else:
        node.launch()


def restarted(nodes: Cluster, active: Node, standby: Node) -> tuple[Node, Node]:
    """Restart both nodes, one after the other. Return the active one and the standby."""
    assert standby.stop(90) == 0
    standby.launch()
    nodes.wait_for_standby(standby)
    assert active.stop(90) == 0
    nodes.wait_for_active(standby)
    active.launch()
    nodes.wait_for_standby(active)
    return standby, active


def test_an_active_daemon_that_is_drained_hands_over_and_stands_by(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        active, standby = nodes.start()
        run_id = started(nodes, active)
        standby.request("POST", "/api/v1/nodes/1/drain")
        nodes.wait_for_active(standby)
        assert nodes.takeovers() == 0, "a lease was waited for"
        eventually(lambda: active.health("ready") == 200, 60.0, nodes.words)
        _, found = active.get("/api/v1/nodes")
        assert [node["state"] for node in found["items"]] == ["drained", "active"]
        active.request("POST", "/api/v1/nodes/1/undrain")
        assert active.stop(60) == 0
        judged(nodes, standby, run_id, takeovers=1)
