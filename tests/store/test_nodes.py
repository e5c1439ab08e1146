"""Several nodes share one database: their numbers, their terms, and their common journal."""

from __future__ import annotations

import random
from dataclasses import dataclass

import anyio
import pytest
from msgspec.structs import replace
from sqlalchemy import bindparam, update

from aioflow.api.live_stream import position_of, stream_id
from aioflow.errors import Fenced, HomeBusy, StrangeDatabase
from aioflow.model.rows import NodeFacts, NodeMark
from aioflow.model.states import NodeState
from aioflow.store import Claim, Store, open_store, tables
from aioflow.store.changes import FENCE
from aioflow.store.ownership import KnownNode, plan_claim
from tests.journal_replay import compare_with_replay
from tests.store.samples import NOON, TRIGGER, VAULT, batch, first_batch

A, B, D = NodeState.ACTIVE, NodeState.STANDBY, NodeState.DEAD


def facts(home: str, **more) -> NodeFacts:
    return NodeFacts(started_at=NOON, version="1", pid=7, host="here", home=home, **more)


def known(node_no: int, state: NodeState, home: str | None, **more) -> KnownNode:
    values = {"epoch": node_no, "commit_no": 9, "heartbeat": 0, "seen_at": None, "steady_at": None}
    return KnownNode(node_no=node_no, state=state, home=home, host="h", pid=1, **values | more)


@dataclass
class Case:
    nodes: list[KnownNode]
    about: NodeFacts | None
    node_no: int | None
    dead: int | None = None
    after_crash: bool = False


MARK = NodeMark(1, 1, 9, 0)
CASES = {
    "the first node": Case([], facts("a"), 1),
    "a home keeps its number": Case([known(1, D, "a"), known(2, B, "b")], facts("b"), 2),
    "a new home": Case([known(1, D, "a")], facts("b"), 2),
    "an unknown home": Case([known(1, NodeState.LEFT, None)], facts("b"), 1),
    "an unknown home that is active": Case([known(1, A, None)], facts("b"), None),
    "its own earlier daemon": Case([known(1, A, "a")], facts("a"), 1, after_crash=True),
    "another that is alive": Case([known(1, A, "a")], facts("b"), None),
    "the one that was observed": Case(
        [known(1, A, "a")], facts("b", after=MARK), 2, dead=1, after_crash=True
    ),
    "one that has committed since": Case(
        [known(1, A, "a", commit_no=10)], facts("b", after=MARK), None
    ),
    "one that has sent a heartbeat since": Case(
        [known(1, A, "a", heartbeat=1)], facts("b", after=MARK), None
    ),
    "another than the one that was observed": Case(
        [known(1, D, "a"), known(3, A, "c")], facts("b", after=MARK), None
    ),
    "one that has left": Case([known(1, NodeState.LEFT, "a")], facts("b", after=MARK), 2),
    "by force": Case([known(1, A, "a")], facts("b", is_forced=True), 2, dead=1, after_crash=True),
}


def test_a_claim_takes_over_only_from_the_node_that_was_observed_and_is_silent():
    wrong = []
    for name, case in CASES.items():
        found: tuple[int | None, int | None, bool]
        try:
            plan = plan_claim(case.nodes, case.about, term=50, where="db")
            dead = None if plan.dead is None else plan.dead.node_no
            found = plan.node_no, dead, plan.after_crash
        except HomeBusy:
            found = None, None, False
        if found != (case.node_no, case.dead, case.after_crash):
            wrong.append((name, found))

    assert wrong == []


def test_a_term_that_was_not_given_out_is_damage():
    with pytest.raises(StrangeDatabase, match="row node_no=2, column epoch: 50"):
        plan_claim([known(2, D, "a", epoch=50)], facts("a"), term=50, where="db")


def test_time_continues_where_the_last_batch_of_any_node_ended():
    nodes = [
        known(1, D, "a", seen_at=900, steady_at=20),
        known(2, A, "b", seen_at=30, steady_at=21),
        known(3, B, "c", seen_at=990),
    ]
    plan = plan_claim(nodes, facts("c", is_forced=True), term=50, where="db")

    assert (plan.seen_at, plan.steady_at) == (30, 21)


@pytest.mark.parametrize(
    ("given", "position"),
    [
        ("523", {1: 523}),
        ("1:523,2:88", {1: 523, 2: 88}),
        ("2:88", {2: 88}),
        ("523,2:88", {1: 523, 2: 88}),
        ("", None),
        ("1:", None),
        (":1", None),
        ("1:2:3", None),
        ("1,2", None),
        ("-1", None),
        ("9" * 19, None),
    ],
)
def test_the_id_of_the_live_stream_names_the_last_commit_of_each_node(given, position):
    assert position_of(given) == position
    if position is not None:
        assert position_of(stream_id(position)) == position


def test_one_node_has_plain_ids():
    assert (stream_id({1: 7}), stream_id({}), stream_id({2: 7})) == ("7", "0", "2:7")


@pytest.mark.postgres
async def test_the_journal_of_nodes_that_take_turns_leads_to_the_tables(migrated_postgres_url):
    more = [replace(TRIGGER, trigger_no=number) for number in (8, 9)]
    async with (
        open_store(migrated_postgres_url, VAULT) as first,
        open_store(migrated_postgres_url, VAULT) as second,
    ):
        claims = [await first.claim(facts("a"))]
        await first.commit(first_batch())
        claims.append(await second.claim(facts("b", after=(await second.find_owner()).mark)))
        await second.commit(batch(1, new_triggers=more[:1]))
        claims.append(await first.claim(facts("a", after=(await first.find_owner()).mark)))
        await first.commit(batch(2, new_triggers=more[1:]))
        found = [(row.node_no, row.commit_no) for row in await first.read_journal()]

        assert found == [(1, 1), (2, 1), (1, 2)]
        assert await compare_with_replay(first) == []
    assert [(claim.node_no, claim.commit_no) for claim in claims] == [(1, 0), (2, 0), (1, 1)]
    epochs = [claim.epoch for claim in claims]
    assert epochs == sorted(set(epochs))


@pytest.mark.postgres
async def test_the_database_admits_one_active_node(migrated_postgres_url):
    async with open_store(migrated_postgres_url, VAULT) as first:
        await first.claim(facts("a"))
        async with open_store(migrated_postgres_url, VAULT) as second:
            with pytest.raises(HomeBusy):
                await second.claim(facts("b"))
            nodes = await second.list_nodes()

    assert [(node.node_no, node.state) for node in nodes] == [(1, A)]


@pytest.mark.postgres
async def test_a_stale_read_of_who_owns_claims_nothing(migrated_postgres_url):
    async with (
        open_store(migrated_postgres_url, VAULT) as first,
        open_store(migrated_postgres_url, VAULT) as second,
        open_store(migrated_postgres_url, VAULT) as late,
    ):
        await first.claim(facts("a"))
        await first.commit(first_batch())
        seen = (await late.find_owner()).mark
        await second.claim(facts("b", after=seen))
        owner = await late.find_owner()
        with pytest.raises(HomeBusy):
            await late.claim(facts("c", after=seen))

        assert await late.find_owner() == owner
        await second.commit(batch(1))
        with pytest.raises(Fenced):
            await first.commit(batch(2))


class Rivals:
    """Nodes that take over from each other at arbitrary moments, and commit while they can.

    Attributes:
        epochs: The term under which each batch was acknowledged, by node and commit number.
        fenced: How often a node found that another node had taken over.
        claims: How often a node became active.
    """

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.chance = random.Random(seed)
        self.epochs: dict[tuple[int, int], int] = {}
        self.fenced = self.claims = 0

    async def run(self, nodes: int, rounds: int) -> None:
        async with anyio.create_task_group() as group:
            for number in range(nodes):
                group.start_soon(self._live, f"home {number}", rounds)

    async def _live(self, home: str, rounds: int) -> None:
        async with open_store(self.url, VAULT, lease_seconds=30) as store:
            for _ in range(rounds):
                owner = await store.find_owner()
                after = None if owner is None else owner.mark
                await anyio.sleep(self.chance.choice((0.0, 0.001, 0.005)))
                about = facts(home, after=after, is_forced=self.chance.random() < 0.5)
                try:
                    claim = await store.claim(about)
                except HomeBusy:
                    continue
                self.claims += 1
                await self._commit(store, claim)

    async def _commit(self, store: Store, claim: Claim) -> None:
        for number in range(claim.commit_no + 1, claim.commit_no + 1 + self.chance.randrange(8)):
            try:
                await store.commit(batch(number, drained=[(claim.node_no, NOON)]))
            except Fenced:
                self.fenced += 1
                return
            self.epochs[claim.node_no, number] = claim.epoch
            await anyio.sleep(self.chance.choice((0.0, 0.0, 0.002)))

    async def faults(self) -> list[str]:
        """Return the violations of what must hold across all takeovers."""
        async with open_store(self.url, VAULT, exclusive=False) as store:
            rows = await store.read_journal(limit=100_000)
            found = await compare_with_replay(store)
        keys = [(row.node_no, row.commit_no) for row in rows]
        if set(keys) != set(self.epochs):
            found.append("not each batch in the journal was acknowledged, or the other way round")
        terms = [self.epochs.get(key, 0) for key in keys]
        if terms != sorted(terms):
            found.append("a node has committed after another took over")
        return found


@pytest.mark.postgres
async def test_no_node_commits_after_another_took_over_at_whatever_moment(migrated_postgres_url):
    rivals = Rivals(migrated_postgres_url, seed=7)
    await rivals.run(nodes=3, rounds=15)

    assert await rivals.faults() == []
    assert rivals.claims >= 10
    assert rivals.fenced >= 1


@pytest.mark.postgres
async def test_a_fence_that_ignores_the_term_is_noticed(migrated_postgres_url, monkeypatch):
    node = tables.node
    ignores = FENCE.whereclause.clauses[0] & FENCE.whereclause.clauses[2]
    blind = (
        update(node)
        .where(ignores)
        .values(
            {name: bindparam(given, type_=node.c[name].type) for name, given in COMMITTED.items()}
        )
    )
    monkeypatch.setattr("aioflow.store.postgres.store.FENCE", blind)
    rivals = Rivals(migrated_postgres_url, seed=7)
    await rivals.run(nodes=3, rounds=15)

    assert "a node has committed after another took over" in await rivals.faults()


COMMITTED = {"commit_no": "number", "seen_at": "at", "steady_at": "steady"}
