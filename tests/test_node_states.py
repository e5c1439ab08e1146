"""The state of a node in lists: what its row states, and what the node itself knows."""

from __future__ import annotations

from typing import Any, cast

import pytest
from msgspec.structs import replace

from aioflow.api.page.queries import node_view
from aioflow.daemon.standby import NodeCounts, Standby, StatusReader
from aioflow.engine.loop import Engine
from aioflow.engine.role import active_role
from aioflow.model.nodes import ActiveCommit, ActiveState, NodeRole, NodeStatus
from aioflow.model.rows import NodeRow
from aioflow.model.states import NodeState
from tests.store.samples import NOON

SECOND = 1_000_000
ACTIVE = NodeRow(
    node_no=1, epoch=7, commit_no=3, started_at=NOON, seen_at=NOON + SECOND, state=NodeState.ACTIVE
)
STANDBY = replace(ACTIVE, state=NodeState.STANDBY)
JOINED = replace(STANDBY, seen_at=NOON)

SHOWN = {
    "an active node": (ACTIVE, 2, "active"),
    "an active node that is drained": (replace(ACTIVE, is_drained=True), 2, "draining"),
    "an active node without heartbeats": (ACTIVE, 20, "away"),
    "a standby": (STANDBY, 2, "standby"),
    "a standby that is drained": (replace(STANDBY, is_drained=True), 2, "drained"),
    "a standby that has sent no heartbeat yet": (JOINED, 20, "joining"),
    "one that has been seen under an earlier term": (
        replace(JOINED, seen_at=NOON - SECOND), 20, "joining",
    ),
    "one that never sends any": (JOINED, 70, "away"),
    "one that has left": (replace(ACTIVE, state=NodeState.LEFT), 2, "left"),
    "one that is dead": (replace(ACTIVE, state=NodeState.DEAD), 200, "dead"),
}  # fmt: skip


@pytest.mark.parametrize(("row", "after", "state"), SHOWN.values(), ids=SHOWN)
def test_a_row_says_the_state_of_a_node(row: NodeRow, after: int, state: str) -> None:
    assert node_view(row, None, NOON + after * SECOND).state == state


def test_a_node_that_has_claimed_the_database_is_joining_until_it_has_read_it() -> None:
    status = NodeStatus(role=NodeRole.JOINING, term=7)
    assert node_view(ACTIVE, None, NOON + SECOND, status).state == "joining"
    assert node_view(replace(ACTIVE, epoch=6), None, NOON + SECOND, status).state == "active"


COMMIT = ActiveCommit(epoch=6, commit_no=40, asked_at=1)


class Parts:
    """Stands for an engine, its memory and slots, and the standby that preceded the engine."""

    def __init__(self, **said: Any) -> None:
        self.epoch: int | None = 7
        self.turns = 1
        self.store_away_since = None
        self.is_drained = self.has_running = False
        self.is_open = True
        self.is_joining, self.active_state, self.silent_seconds = False, ActiveState.SILENT, 2.0
        self.active_commit = COMMIT
        for name, value in said.items():
            setattr(self, name, value)
        self.memory = self.slots = self


ROLES = {
    NodeRole.ACTIVE: Parts(),
    NodeRole.JOINING: Parts(turns=0),
    NodeRole.DRAINING: Parts(is_drained=True, has_running=True),
    NodeRole.DRAINED: Parts(is_open=False),
}


@pytest.mark.parametrize("role", ROLES)
def test_an_active_node_knows_whether_anything_runs(role: NodeRole) -> None:
    assert active_role(cast(Engine, ROLES[role])) is role


def test_a_daemon_says_what_it_is_and_what_it_sees() -> None:
    counts = NodeCounts(takeovers=2, fenced=1)

    def status(engine: Parts, standby: Parts | None) -> NodeStatus:
        reader = StatusReader(cast(Engine, engine), lambda: counts)
        reader.standby = cast(Standby | None, standby)
        return reader.read()

    stands_by = status(Parts(epoch=None), Parts(epoch=5))
    assert stands_by == NodeStatus(
        role=NodeRole.STANDBY,
        term=5,
        active=ActiveState.SILENT,
        active_commit=COMMIT,
        silent_seconds=2.0,
        takeovers=2,
        fenced=1,
    )
    assert status(Parts(epoch=None), Parts(is_joining=True)).role is NodeRole.JOINING
    assert status(Parts(), Parts()) == NodeStatus(term=7, takeovers=2, fenced=1)
    assert status(Parts(turns=0), Parts()).active is ActiveState.MISSING
    assert status(Parts(store_away_since=1), None).active is ActiveState.UNKNOWN
