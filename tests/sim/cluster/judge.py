"""Invariants over all nodes, checked at each commit of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aioflow.core.state.accounts import CHAIN_BEGINNING, check_chain
from aioflow.model.batch import Batch
from aioflow.model.rows import NodeMark
from aioflow.model.states import NodeState, TaskState
from tests.sim.broken import Broken
from tests.sim.cluster.process import seconds_outside
from tests.sim.cluster.rows import Changed, Key, Row
from tests.sim.cluster.server import Session

__all__ = ("Judge",)

_NAMES = ("node_no", "epoch", "commit_no")


class Judge:
    """Checks the commits of all nodes; see the module.

    Attributes:
        owner: The life of the node that made the last claim.
        takeovers: How often a node was declared dead.
        claimed_at: When the last claim was committed, in simulated seconds.
        terms: The term of each claim, with the number of the claiming node.
        accepted: Term, node and number of each batch that was committed.
    """

    def __init__(self, world: Any, columns: list[str]) -> None:
        self._world = world
        self._columns = {name: place for place, name in enumerate(columns)}
        self.owner: Any = None
        self.takeovers = 0
        self.claimed_at = 0.0
        self.terms: list[tuple[int, int]] = []
        self.accepted: list[tuple[int, int, int]] = []
        self._alive: dict[int, float] = {}
        self._assigned: dict[int, int] = {}
        self._audit_end = CHAIN_BEGINNING
        self._is_first = False

    def _of(self, row: Row, name: str) -> Any:
        return row[self._columns[name]]

    def _mark(self, row: Row) -> NodeMark:
        names = ("node_no", "epoch", "commit_no", "heartbeat")
        return NodeMark(*(self._of(row, name) for name in names))

    # ── changes of the active node ──────────────────────────────────────────────────────

    def changed(self, session: Session, before: Mapping[Key, Row], after: Changed) -> None:
        """Check the node rows that a transaction has changed."""
        nodes = {key: row for key, row in after.items() if key[0] == "node" and row is not None}
        active = NodeState.ACTIVE
        for key, row in nodes.items():
            was = before.get(key)
            if was is None or self._of(was, "state") != active or self._of(row, "state") == active:
                continue
            if session.writer is not self.owner:
                self._declared(session, was, row)
        for key, row in nodes.items():
            was = before.get(key)
            if self._of(row, "state") == active and (
                was is None
                or self._of(was, "state") != active
                or self._of(was, "epoch") != self._of(row, "epoch")
            ):
                self._claimed(session, was, row)
        for key, row in nodes.items():
            was = before.get(key)
            if was is None or self._mark(was) != self._mark(row):
                self._alive[key[1]] = self._world.loop.time()
        rows = {**before, **after}
        found = [
            key[1]
            for key, row in rows.items()
            if key[0] == "node" and row is not None and self._of(row, "state") == active
        ]
        if len(found) > 1:
            raise Broken("I20 one writer", f"nodes {found} are active")

    def _claimed(self, session: Session, was: Row | None, row: Row) -> None:
        world, term = self._world, self._of(row, "epoch")
        last = max((epoch for epoch, _ in self.terms), default=0)
        if term <= last:
            raise Broken("I20 terms", f"{session.name} claims under {term} after {last}")
        if was is not None and self._of(row, "commit_no") != self._of(was, "commit_no"):
            raise Broken("I20 terms", f"a claim changes {was} to {row}")
        self.terms.append((term, self._of(row, "node_no")))
        world.points["claim"] += 1
        if self.owner is not None and self.owner is not session.writer:
            world.points["claim after another"] += self.owner.host is not session.writer.host
        world.tables.lose_children(world.ledger.take_open())
        self.owner, self._is_first = session.writer, True
        self.claimed_at = world.loop.time()

    def _declared(self, session: Session, was: Row, row: Row) -> None:
        """Check that the active node was declared dead in the state observed, and not too early."""
        world, observer = self._world, session.writer
        mark = self._mark(was)
        if mark != observer.observed:
            seen = observer.observed
            raise Broken("I24 declared", f"{observer.host.home} saw {seen}, declares {mark}")
        if self._of(row, "epoch") == self._of(was, "epoch"):
            raise Broken("I20 terms", f"{was} is declared dead and keeps its term")
        self.takeovers += 1
        world.points["takeover"] += 1
        if not world.is_honest:
            return
        timing, spans = world.timing, [*world.server.outages, *observer.process.stops]
        # Polls at this interval do not notice a shorter span, and it is shorter than a lease.
        spans = [(a, b) for a, b in spans if b - a > 2.2 * timing.heartbeat_us / 1e6]
        alive = self._alive.get(mark.node_no, 0.0)
        watched_us = 1e6 * seconds_outside(alive, world.loop.time(), spans)
        if watched_us < min(timing.quick_lease_us, timing.lease_us) / 1.11:
            text = f"node {mark.node_no} was watched for {watched_us / 1e6:g} s of silence only"
            raise Broken("I24 declared", text)

    # ── batches ─────────────────────────────────────────────────────────────────────────

    def landed(self, session: Session, batch: Batch) -> None:
        """Check that a batch comes from the active node, under its term, and is its next batch."""
        writer = session.writer
        term = writer.engine.epoch
        if writer is not self.owner:
            owner = None if self.owner is None else self.owner.host.home
            raise Broken(
                "I20 one writer",
                f"{writer.host.home} commits {batch.number} under {term}, {owner} is active",
            )
        node_no = writer.memory.node_no
        if self.terms[-1] != (term, node_no):
            raise Broken("I20 terms", f"commits under {term}, the last claim is {self.terms[-1]}")
        numbers = [number for _, of, number in self.accepted if of == node_no]
        if batch.number != (numbers[-1] + 1 if numbers else 1):
            raise Broken("I20 one writer", f"node {node_no} commits {batch.number} after {numbers}")
        self.accepted.append((term, node_no, batch.number))
        self._audited(batch)
        if self._is_first:
            self._is_first = False
            self._charges_nothing(batch)

    def _audited(self, batch: Batch) -> None:
        """I28: check that the audits of all nodes form one chain whose end is stored."""
        if not batch.audit:
            return
        if batch.audit[0].previous != self._audit_end or check_chain(batch.audit):
            raise Broken("I28 audit", f"{batch.audit} do not follow what was audited before")
        self._audit_end = batch.audit[-1].digest
        if batch.audit_head is None or batch.audit_head.last != self._audit_end:
            raise Broken("I28 audit", f"the end of the audit is not stored: {batch.audit_head}")
        self._world.points["audit"] += 1

    def _charges_nothing(self, batch: Batch) -> None:
        """Check that the first batch under a term, the takeover, charges no try."""
        tables = self._world.tables
        for change in batch.task_changes:
            row = tables.tasks.get(change.task_no)
            is_begun = row is not None and row.state in {TaskState.RUNNING, TaskState.QUEUED}
            if row is not None and is_begun and change.try_number > row.try_number:
                raise Broken("I24 uncharged", f"the takeover charges {change}, which was {row}")

    # ── effects ─────────────────────────────────────────────────────────────────────────

    def assigned(self, host: Any) -> None:
        """I26: check that each assignment of a trigger has a higher number than the last one."""
        last = self._assigned.get(host.trigger_no, 0)
        if host.assignment_id <= last:
            text = f"trigger {host.trigger_no} gets {host.assignment_id} after {last}"
            raise Broken("I26 assignments", text)
        self._assigned[host.trigger_no] = host.assignment_id

    def works(self, life: Any, what: str) -> None:
        """Check that a node begins work only after its first commit and while not drained."""
        if not any(term == life.engine.epoch for term, *_ in self.accepted):
            raise Broken("I24 work", f"{life.host.home} {what} before its first commit")
        since = self._world.drained_at.get(life.memory.node_no)
        if since is not None and since < self._world.tables.commit_no:
            raise Broken("drain", f"{life.host.home} {what}, but is drained")
