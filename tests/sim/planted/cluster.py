"""Bugs of several daemons on one database: who may write, and who takes over."""

from __future__ import annotations

from tests.sim.planted.bug import PlantedBug, Seed
from tests.sim.planted.edit import Edit

__all__ = ("BUGS",)

BUGS = (
    PlantedBug(
        name="fence_of_the_dead_is_open",
        broken="the fence compares neither the epoch nor the state of the node",
        promise="a node that was declared dead writes nothing (law 5)",
        where="store",
        needs="a node that is declared dead while it lives, and commits once more",
        edits=(
            Edit(
                "aioflow.store.changes", "FENCE", "_node.c.epoch == _bound(_node, 'epoch', 'epoch')"
            ),
            Edit("aioflow.store.changes", "FENCE", "tables.is_active"),
        ),
        seed=Seed(3, 0),
    ),
    PlantedBug(
        name="dead_node_keeps_its_term",
        broken="a declaration leaves the term of the dead node",
        promise="no two nodes are active under a term, and no dead one has its old term",
        where="store",
        needs="a takeover from a node that is silent",
        edits=(
            Edit(
                "aioflow.store.ownership",
                "DECLARE_DEAD",
                "_bound('epoch', 'term')",
                "_node.c.epoch",
            ),
        ),
        seed=Seed(3, 1),
    ),
    PlantedBug(
        name="takeover_keeps_the_term",
        broken="the successor writes under the term of the node it takes over from",
        promise="each claim has a higher term than all before",
        where="store",
        needs="a takeover from a node that is silent",
        edits=(
            Edit(
                "aioflow.store.postgres.claims",
                "claim",
                """
                await _declare_dead(connection, plan, term=term, where=where)
                term = await new_term(connection)
                """,
                """
                await _declare_dead(connection, plan, term=term, where=where)
                term = plan.dead.epoch
                """,
            ),
        ),
        seed=Seed(3, 0),
    ),
    PlantedBug(
        name="claim_declares_whom_it_finds",
        broken="a claim declares the active node dead, whatever that has done since",
        promise="a claim only ever declares the node as it was observed",
        where="store",
        needs="a claim on its way while the active node commits",
        edits=(
            Edit(
                "aioflow.store.ownership",
                "plan_claim",
                "not about.is_forced and active.mark != about.after",
                "False",
            ),
        ),
        seed=Seed(3, 0),
    ),
    PlantedBug(
        name="heartbeats_are_not_observed",
        broken="an observer compares commits alone, and no heartbeats",
        promise="a node that is idle is not dead",
        where="core",
        needs="an active node that commits nothing for longer than a lease",
        edits=(
            Edit(
                "aioflow.core.observation",
                "observed",
                "watch.mark != poll.mark",
                "watch.mark[:3] != poll.mark[:3]",
            ),
        ),
        seed=Seed(3, 0),
    ),
    PlantedBug(
        name="work_begins_before_the_first_commit",
        broken="a node that takes over begins work before its first commit",
        promise="no effect before its commit (law 4)",
        where="engine",
        needs="a takeover with tasks that are ready",
        edits=(
            Edit(
                "aioflow.engine.loop",
                "Engine._decide_and_commit",
                """
                if not batch.is_empty or tx.step:
                    await self._commit(batch, tx)
                tx.mark_durable()
                self.dispatcher.dispatch(effects)
                """,
                """
                is_first = not self.turns
                if is_first:
                    self.dispatcher.dispatch(effects)
                if not batch.is_empty or tx.step:
                    await self._commit(batch, tx)
                tx.mark_durable()
                if not is_first:
                    self.dispatcher.dispatch(effects)
                """,
            ),
        ),
        seed=Seed(3, 5),
    ),
    PlantedBug(
        name="takeover_reads_nothing",
        broken="a node that takes over after a crash does not read what is unfinished",
        promise="everything unfinished is taken over",
        where="engine",
        needs="a takeover while a run is unfinished",
        edits=(
            Edit(
                "aioflow.engine.loop",
                "Engine._recover",
                """
                async with self._store.unfinished() as parts:
                    await self._remember_all(parts)
                """,
                """
                if not claim.after_crash:
                    async with self._store.unfinished() as parts:
                        await self._remember_all(parts)
                """,
            ),
        ),
        seed=Seed(3, 1),
    ),
    PlantedBug(
        name="handover_leaves_the_row_active",
        broken="a daemon that shuts down does not record that it has left",
        promise="a stop hands over without waiting for the lease",
        where="engine",
        needs="SIGTERM to the active daemon",
        edits=(
            Edit(
                "aioflow.daemon.node",
                "_Serving.run",
                """
                with suppress(StoreUnavailable):
                    await store.leave()
                """,
            ),
        ),
        seed=Seed(3, 4),
    ),
    PlantedBug(
        name="drained_node_starts_tasks",
        broken="a drained node continues to start tasks",
        promise="a drained node starts nothing",
        where="core",
        needs="a task that is ready on a drained node",
        edits=(
            Edit("aioflow.core.step", "decide", "granting and not memory.is_drained", "granting"),
        ),
        seed=Seed(3, 6),
    ),
    PlantedBug(
        name="journal_without_its_node",
        broken="every row of the journal is one of the first node",
        promise="a replay of the journal of all nodes leads to the tables",
        where="store",
        needs="commits of a second node",
        edits=(
            Edit(
                "aioflow.store.postgres.store",
                "PostgresStore.commit",
                "{'node_no': self._node_no, 'commit_no': batch.number}",
                "{'node_no': 1, 'commit_no': batch.number}",
            ),
        ),
        seed=Seed(3, 1),
    ),
    PlantedBug(
        name="numbers_of_each_node",
        broken="each node leases its row numbers from a counter of its own",
        promise="row numbers are unique over all nodes",
        where="store",
        needs="rows of two nodes",
        edits=(
            Edit(
                "aioflow.store.postgres.store",
                "PostgresStore.lease_numbers",
                "{'name': 'row', 'count': count}",
                "{'name': f'row {self._node_no}', 'count': count}",
            ),
        ),
        seed=Seed(3, 1),
    ),
    PlantedBug(
        name="standby_counts_as_active",
        broken="a standby that joins is made active at once",
        promise="at most one node is active",
        where="store",
        needs="a second node that joins",
        edits=(
            Edit(
                "aioflow.store.postgres.membership",
                "PostgresMembership.join",
                "standby = NodeState.STANDBY",
                "standby = NodeState.ACTIVE",
            ),
        ),
        seed=Seed(3, 0),
    ),
    PlantedBug(
        name="takeover_forgets_the_end_of_the_audit",
        broken="a node that starts does not restore the end of the audit",
        promise="the audit entries of all nodes are one chain",
        where="core",
        needs="an audited change before a takeover and one after it",
        edits=(
            Edit(
                "aioflow.core.state.accounts",
                "Accounts.restore",
                "self.head = snapshot.audit_head",
                "self.head = AuditHead()",
            ),
        ),
        seed=Seed(3, 0),
    ),
)
