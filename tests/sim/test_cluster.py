"""Daemons on one simulated database keep their promises, and its server behaves as PostgreSQL."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from aioflow.model.rows import NodeFacts
from aioflow.model.states import NodeState
from aioflow.store.changes import CLAIM_NODE, FENCE, LEASE_NUMBERS, POSTGRES, READ_NODE, compiled
from aioflow.store.ownership import (
    DECLARE_DEAD,
    FORGET,
    HEARTBEAT,
    LEAVE,
    READ_NODES,
    TERM,
    claim_parameters,
)
from aioflow.store.postgres.membership import _ACTIVE, _STANDBYS
from tests.sim.broken import Broken
from tests.sim.cluster import model
from tests.sim.cluster.process import PROCESS, ClusterLoop, Process, seconds_outside
from tests.sim.cluster.rows import TABLES
from tests.sim.cluster.server import Request, Server, Session
from tests.sim.disk import Disk

SAMPLE = (1, 5)
"""Short seeds: an honest one with takeovers, and one whose standbys may claim at any time."""

LEAST = {
    "claim": 100,
    "claim after another": 40,
    "takeover": 25,
    "fenced": 10,
    "claims too early": 20,
    "handed over": 5,
    "daemon killed": 10,
    "daemon stopped": 15,
    "daemon told to stop": 5,
    "home copied": 5,
    "host cut off": 20,
    "connections reset": 20,
    "server stalls": 5,
    "server crashes": 5,
    "machines suspended": 5,
    "node drained": 5,
    "acknowledgement lost": 20,
    "acknowledgement late": 20,
    "run ended": 100,
}
"""Minimum number of each event in all nightly seeds together."""


@pytest.mark.parametrize("seed", SAMPLE)
def test_nodes_of_one_database_keep_their_promises(seed):
    verdict = model.play(seed)

    assert verdict.broken is None, f"seed {seed} of level 3"
    assert verdict.points["claim after another"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_nodes_of_one_database_keep_their_promises_under_faults_of_every_kind():
    points = Counter[str]()
    for seed in range(40):
        verdict = model.play(seed)
        assert verdict.broken is None, f"seed {seed} of level 3"
        points.update(verdict.points)

    assert {name: points[name] for name, least in LEAST.items() if points[name] < least} == {}


@pytest.mark.nightly
def test_a_seed_is_the_same_life_of_a_cluster_each_time():
    assert model.play(3, people=5).digest == model.play(3, people=5).digest


# ── the parts of the simulation ─────────────────────────────────────────────────────────


def test_a_stopped_process_runs_what_was_due_once_it_is_resumed():
    loop, process, ran = ClusterLoop(random.Random(0)), Process(), []

    async def work() -> None:
        PROCESS.set(process)
        await asyncio.sleep(1)
        ran.append(loop.time())

    async def watch() -> None:
        task = loop.create_task(work())
        await asyncio.sleep(0.5)
        process.is_stopped = True
        await asyncio.sleep(5)
        assert ran == []
        loop.resume(process)
        await task

    try:
        loop.run_until_complete(watch())
    finally:
        loop.close()
    assert [round(at, 3) for at in ran] == [5.5]


@pytest.mark.parametrize(
    ("spans", "left"),
    [([], 10), ([(0, 5)], 10), ([(8, 13)], 7), ([(12, 14), (13, 15)], 7), ([(18, 30)], 8)],
)
def test_time_is_measured_outside_of_outages(spans, left):
    assert seconds_outside(10, 20, spans) == left


# ── the server and PostgreSQL ───────────────────────────────────────────────────────────

STEPS = 150
LOCK_LIMIT = "SET LOCAL lock_timeout = '10ms'"
"""The limit applies only while a statement waits for a lock, however slow the machine is."""

COLUMNS = {
    "node": "node_no, epoch, commit_no, seen_at, steady_at, home, name, state, heartbeat",
    "number_lease": "name, next_no",
    "drained": "node_no, at",
}
ABOUT = NodeFacts(started_at=7, version="1", pid=7, host="h")

Statement = tuple[str, tuple[Any, ...]]


def drawn(rng: random.Random) -> list[Statement]:
    """Return the statements of a random transaction that the program could send."""

    def ready(statement: Any, **values: Any) -> Statement:
        made = compiled(statement, POSTGRES)
        return made.sql, made.placed(values)

    number, epoch, commit = rng.randint(1, 3), rng.randint(1, 9), rng.randint(0, 3)
    own = {"node_no": number, "of_epoch": epoch}
    lease = ready(LEASE_NUMBERS[POSTGRES], name=TERM, count=1)
    state = rng.choice(list(NodeState))
    match rng.choice(
        ("fence", "claim", "claim", "heartbeat", "declare", "leave", "forget", "read")
    ):
        case "fence":
            moved = {"before": commit, "number": commit + 1, "at": 5, "steady": 6}
            return [
                ready(FENCE, node_no=number, epoch=epoch, **moved),
                ready(READ_NODE, node_no=number),
                ready(LEASE_NUMBERS[POSTGRES], name="row", count=rng.randint(1, 9)),
            ]
        case "claim":
            about = claim_parameters(ABOUT, node_no=number, epoch=epoch, state=state)
            home = {"home": f"home{number}", "name": "n"}
            return [lease, ready(READ_NODES), ready(CLAIM_NODE[POSTGRES], **{**about, **home})]
        case "declare":
            is_careful = rng.random() < 0.5
            was = {"was_epoch": epoch, "was_commit_no": commit, "was_heartbeat": rng.randint(0, 2)}
            return [lease, ready(DECLARE_DEAD[is_careful], node_no=number, term=epoch + 10, **was)]
        case "heartbeat":
            return [ready(HEARTBEAT, **own, of_state=int(state), heartbeat_at=8)]
        case "leave":
            return [ready(LEAVE, **own)]
        case "forget":
            return [ready(FORGET, node_no=number)]
        case _:
            reads = ready(READ_NODES), (_STANDBYS, (number,)), (_ACTIVE, ())
            return [rng.choice(reads)]


class IgnoringWatcher:
    """Checks nothing, and raises the violations it is notified of."""

    def changed(self, session: Session, before: Any, after: Any) -> None:
        """See ``server.Watcher``."""

    def landed(self, session: Session, batch: Any) -> None:
        """See ``server.Watcher``."""

    def found(self, broken: Broken) -> None:
        """See ``server.Watcher``."""
        raise broken


class Pair:
    """A session of the simulated server, and a session of PostgreSQL."""

    def __init__(self, server: Server, real: asyncpg.Connection) -> None:
        self._session = server.open_session(None, {})
        self._real = real
        self.left: list[Statement] = []
        self.is_open = False

    async def ask(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Execute a statement in both sessions. Return the results, or the types of the errors."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._session.receive(Request(sql, values, answered.set_result))
        simulated = await answered
        if isinstance(simulated, BaseException):
            simulated = type(simulated).__name__
        else:
            simulated = [tuple(row) for row in simulated.rows]
        try:
            real: Any = [tuple(row) for row in await self._real.fetch(sql, *values)]
        except asyncpg.PostgresError as exc:
            real = type(exc).__name__
        return simulated, real

    async def execute_next(self, rng: random.Random) -> tuple[Any, Any]:
        """Execute the next statement of the open transaction, or begin another transaction."""
        if not self.is_open:
            self.left, self.is_open = [(LOCK_LIMIT, ()), *drawn(rng)], True
            return await self.ask("BEGIN")
        if self.left:
            result = await self.ask(*self.left.pop(0))
            if isinstance(result[0], str):
                self.left, self.is_open = [], False
                await self.ask("ROLLBACK")
            return result
        self.is_open = False
        return await self.ask(rng.choice(("COMMIT", "COMMIT", "ROLLBACK")))


@pytest.mark.postgres
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 40))]
)
async def test_statements_do_in_the_simulation_what_they_do_on_postgresql(
    seed, migrated_postgres_url, tmp_path
):
    """Interleave transactions of three sessions that see each other's commits and locks."""
    rng = random.Random(seed)
    url = make_url(migrated_postgres_url).set(drivername="postgresql")
    dsn = url.render_as_string(hide_password=False)
    reals = [await asyncpg.connect(dsn) for _ in range(3)]
    disk = Disk(Path(tmp_path))
    server = Server(disk.raw, rng, cast(Any, IgnoringWatcher()))
    pairs = [Pair(server, real) for real in reals]
    try:
        wrong = []
        for step in range(STEPS):
            simulated, real = await rng.choice(pairs).execute_next(rng)
            if simulated != real:
                wrong.append((step, simulated, real))
            if any(pair.is_open for pair in pairs):
                continue
            for table in TABLES:
                select = f"SELECT {COLUMNS[table]} FROM {table} ORDER BY 1"
                stored = [tuple(row) for row in await reals[0].fetch(select)]
                if disk.raw.execute(select).fetchall() != stored:
                    wrong.append((step, table, stored))
        assert wrong == []
    finally:
        for one in reals:
            one.terminate()
        server.close()
        await asyncio.sleep(0)
        server.rows.close()
        disk.close()
