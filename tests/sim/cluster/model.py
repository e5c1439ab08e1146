"""The third level: one to four daemons share one simulated PostgreSQL database.

The standby, the observation, the claim, the fence, the membership and the engine are the real ones,
and so are their statements. They run against a simulated server. Each host has its own clocks.
Daemons are suspended, killed, cut off and shut down; the server crashes or stalls. In *honest*
seeds, a node is declared dead only when the real observation says so. In all other seeds, a standby
claims whenever it likes, and everything that is committed must be correct nevertheless.
"""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import asyncpg
import msgspec

from aioflow.core.observation import Timing, Watch, observed
from aioflow.daemon import node as daemon_node
from aioflow.daemon import standby as daemon_standby
from aioflow.model.access import Actor, Role
from aioflow.model.batch import Batch
from aioflow.protocol.requests import DrainNode, Request, SetPaused, SetPool
from aioflow.store import tables as schema
from tests.journal_replay import compare_with_replay
from tests.sim import invariants, lengths, liveness, misbehaving, past, recovery, stored
from tests.sim.broken import Broken
from tests.sim.cluster.faults import ClusterFaults, Misfortune, rates
from tests.sim.cluster.host import Daemon, Host, open_life, prepare_facts
from tests.sim.cluster.judge import Judge
from tests.sim.cluster.life import ClusterNode, Life, renumbered
from tests.sim.cluster.network import Connection, Network
from tests.sim.cluster.process import PROCESS, ClusterLoop
from tests.sim.cluster.rows import Changed, Key, Row
from tests.sim.cluster.server import Server, Session
from tests.sim.disk import Disk
from tests.sim.drawing import small_turns
from tests.sim.faults import Fault
from tests.sim.files import Files, without_threads
from tests.sim.invariants import Turn
from tests.sim.loop import cancelled_in_order
from tests.sim.loop_model import LoopNode, _cause, _fence_broke, _logs
from tests.sim.pipe import host_clock
from tests.sim.row_check import _compared, _key_of, _scan
from tests.sim.verdict import Verdict
from tests.sim.workload import COUNTING, POOLS, SECOND

__all__ = ("PEOPLE", "Cluster", "play")

PEOPLE, PEOPLE_REST_US = 10, 16 * SECOND
TIMING = Timing(heartbeat_us=SECOND, lease_us=6 * SECOND, quick_lease_us=3 * SECOND)
_SETTLING_LEASES = 12
_STEADY_LEASES = 10
_SLOWER = 2_000.0
"""Factor by which the loops of the last node are slowed once no standby watches it."""

_OPERATOR = Actor(name="operator", role=Role.OPERATOR)
_LATEST_US = 3600 * SECOND
"""How late a timer may fire, because its process may be stopped."""


class Cluster(LoopNode):
    """All hosts, their server and their clients.

    Attributes:
        chance: The random generator of everything that the third level adds.
        is_honest: Whether nodes are declared dead by the real observation only.
        is_settling: Whether faults are over and all nodes but one are shut down.
        drained_at: For each drained node, the commit that drained it.
    """

    def __init__(
        self,
        seed: int,
        loop: ClusterLoop,
        left_out: frozenset[Fault] = frozenset(),
        dropped: tuple[tuple[int, int], ...] = (),
        trace: Callable[[str], None] | None = None,
        people: int = PEOPLE,
    ) -> None:
        super().__init__(seed, loop, left_out, dropped, trace, people)
        self.faults = ClusterFaults(seed, left_out)
        self.chance = random.Random(f"cluster {seed}")
        self.loop = loop
        self.timing = TIMING
        self.nodes = self.chance.choice((1, 2, 2, 3, 3, 4))
        self.is_honest = self.chance.random() < 0.6
        self.is_settling = self._is_closing = False
        self.daemons: list[Daemon] = []
        self.hosts: list[Host] = []
        self.lives: dict[str, Life] = {}
        self.drained_at: dict[int, int] = {}
        self.serving: Life | None = None
        self.reports = self._reports
        self._misfortune = Misfortune(self)

    # ── interface for the nodes ─────────────────────────────────────────────────────────

    @property
    def owner(self) -> Life | None:
        """The life that made the last claim."""
        found: Life | None = self.judge.owner
        return found

    @property
    def _incarnation(self) -> Any:
        assert self.owner is not None
        return self.owner.incarnation

    def new_life(self, host: Host) -> Life:
        """Return the next life of a node on a host."""
        life = Life(self, host, len(self.lives))
        self.lives[life.dsn] = life
        return life

    async def connect(
        self,
        dsn: str,
        *,
        timeout: float = 60.0,
        command_timeout: float | None = None,
        server_settings: Any = None,
    ) -> Connection:
        """See ``asyncpg.connect``."""
        life = self.lives[dsn]
        return await self.network.connect(
            life.host.number,
            life,
            timeout=timeout,
            limit=command_timeout,
            settings=server_settings or {},
        )

    def serves(self, life: Life) -> None:
        """Record that a node has read all unfinished runs and now works."""
        self.serving = life
        self._voters.arrive()

    def acknowledged(self, life: Life, batch: Batch) -> None:
        """Check a batch that the engine has learned to be durable."""
        self.turns += 1
        self.digest.update(msgspec.msgpack.encode(batch))
        for row in batch.new_decisions:
            self._voters.notice(row)
        if self._trace is not None:
            self._trace(f"   {life.host.home} learns of commit {batch.number}")
        last = life.engine.epoch, life.memory.node_no, batch.number
        if life is not self.owner or self.judge.accepted[-1:] != [last]:
            return
        try:
            self._check_of(life, batch)
        except Broken as exc:
            self.found(exc)

    def _check_of(self, life: Life, batch: Batch) -> None:
        invariants.check(life, Turn(batch, [], self._before or invariants.Before({}, {})))
        for change in batch.run_changes:
            if change.quarantine is not None and change.run_no not in self._reports.spoilt:
                raise Broken("quarantine", f"run {change.run_no}: {change.quarantine}")
        begins_anew = any(state.name == "PENDING" for _, state in batch.steps)
        is_drawn = self.rng.random() < 0.05
        if (is_drawn or not life.has_recovered) and not begins_anew:
            life.has_recovered = True
            recovery.memory_is_what_rows_say(life)
            liveness.slots_are_what_tasks_hold(life)

    def found(self, broken: Broken) -> None:
        """See ``LoopNode``."""
        if not self._is_closing:
            super().found(broken)

    # ── commits of the server ───────────────────────────────────────────────────────────

    def changed(self, session: Session, before: Any, after: Changed) -> None:
        """See ``server.Watcher``."""
        self._tell_of(session, before, after)
        self.judge.changed(session, before, after)

    def landed(self, session: Session, batch: Batch) -> None:
        """See ``server.Watcher``."""
        self.judge.landed(session, batch)
        whole = renumbered(batch, self.tables.commit_no + 1)
        life = session.writer
        if self._trace is not None:
            self._trace(f"── {life.host.home} commits {batch.number} at {self.loop.time():.6f}")
        self._before = invariants.before(life, whole)
        self.tables.commit(whole)
        past.note_begun(self.tables, whole)
        self.ledger.record(whole)
        for node_no, at in batch.drained:
            self.drained_at.pop(node_no, None)
            if at is not None:
                self.drained_at[node_no] = self.tables.commit_no

    def _tell_of(self, session: Session, before: dict[Key, Row], after: Changed) -> None:
        if self._trace is None:
            return
        columns = list(self.columns)
        at = [columns.index(name) for name in ("epoch", "commit_no", "heartbeat", "state")]
        for key, row in after.items():
            was = before.get(key)
            if key[0] == "node":
                old, new = (None if one is None else [one[i] for i in at] for one in (was, row))
                text = f"   at {self.loop.time():.6f} {session.name}: node {key[1]} {old} -> {new}"
                self._trace(text)

    # ── clients ─────────────────────────────────────────────────────────────────────────

    def ask(self, request: Request, by: Actor | None = None) -> None:
        """See ``LoopNode``. Without an active node, the request is dropped."""
        owner = self.owner
        if owner is not None and not owner.is_over:
            super().ask(request, by or _OPERATOR)

    def drain(self, node_no: int, *, is_drained: bool) -> None:
        """Drain or undrain a node, provided that some node is active."""
        self.ask(DrainNode(node_no=node_no, is_drained=is_drained))

    async def _surely(self, request: Request) -> None:
        """Send a request, again and again until it is answered."""
        for _ in range(_SETTLING_LEASES):
            with anyio.move_on_after(4 * self.timing.lease_us / 1e6):
                await self._crowd.ask(request)
                return
        self.found(Broken("L5 takeover", f"no node answers {request}"))

    # ── the time with faults, and the time without ──────────────────────────────────────

    async def live(self, disk: Disk, files: Files) -> None:
        """See ``LoopNode``."""
        self.disk, self.files = disk, files
        self._over = anyio.Event()
        self.columns = [column.name for column in schema.node.c]
        self.judge = Judge(self, self.columns)
        self.server = Server(disk.raw, self.chance, self)
        longest = 0.9 * self.timing.lease_us / 1e6
        self.network = Network(self.server, self.chance, self.faults.happens, longest)
        self.hosts = [
            Host(self, number, rate, self.timing)
            for number, rate in enumerate(rates(self.nodes, self.chance), start=1)
        ]
        try:
            async with anyio.create_task_group() as services:
                self._services = services
                for host in self.hosts:
                    services.start_soon(host.run)
                services.start_soon(self._misfortune.run)
                services.start_soon(self._clients)
                await self._over.wait()
                services.cancel_scope.cancel()
        finally:
            await self._end_all()
        if self.broken is not None:
            raise self.broken
        await self._judge_rows()

    async def _clients(self) -> None:
        while self._people_left > 0:
            self._people_left -= 1
            await anyio.sleep(self.rng.randint(1, PEOPLE_REST_US) / 1e6)
            for request in self._crowd.requests():
                self.ask(request)
        self.faults.healed = True
        self._misfortune.heal()
        await self._one_node_stays()
        await self._all_but_one_leave()
        self._voters.arrive()
        for name in POOLS[1:]:
            wide = self.rng.random() < 0.5
            pool = SetPool(name=name, slots=4, include_deferred=wide and name == COUNTING)
            await self._surely(pool)
        for spec in self.dags:  # no new runs, only the existing ones
            is_paused = spec.if_paused != "stop" and spec.trigger is None
            await self._surely(SetPaused(dag_id=spec.dag_id, paused=is_paused))
        await self._everything_ends()
        self._over.set()

    async def _one_node_stays(self) -> None:
        """L5, L7: check that a node becomes active soon, and that the same node stays active."""
        lease = self.timing.lease_us / 1e6
        await self._is_served()
        for host in self.hosts:
            await self._surely(DrainNode(node_no=host.number, is_drained=False))
        await anyio.sleep(2 * lease)
        for host in self.hosts:  # after SIGTERM, one hands over when its tasks have ended
            daemon = host.daemon
            if daemon is not None and daemon.signals.stopped.is_set():
                await daemon.ended.wait()
        await self._is_served()
        term = self.judge.terms[-1]
        await anyio.sleep(_STEADY_LEASES * lease)
        if self.judge.terms[-1] != term:
            raise_of = f"{term} has become {self.judge.terms[-1]} though nothing failed"
            self.found(Broken("L7 steady", raise_of))

    async def _is_served(self) -> None:
        until = self.loop.time() + _SETTLING_LEASES * self.timing.lease_us / 1e6
        while self.serving is None or self.serving is not self.owner or self.serving.is_over:
            if self.loop.time() > until:
                self.found(Broken("L5 takeover", "no node is active, though nothing fails"))
                await anyio.sleep_forever()
            await anyio.sleep(0.5)

    async def _all_but_one_leave(self) -> None:
        """Shut the standbys down. Without observers, the active node may have slow loops."""
        self.is_settling = True
        owner = self.owner
        assert owner is not None
        for host in self.hosts:
            if host is not owner.host and host.daemon is not None:
                host.daemon.terminate()
                await host.daemon.ended.wait()
        owner.host.clock.slower = _SLOWER
        self.points["nodes"] += self.nodes

    async def _end_all(self) -> None:
        """End all processes in an orderly way, so that nothing of the seed is left."""
        self._is_closing = True
        with anyio.CancelScope(shield=True):
            self.server.close()
            self.network.cut.clear()
            self.network.reset(lambda one: True)
            for daemon in self.daemons:
                daemon.is_killed = False
                self.loop.resume(daemon)
                daemon.scope.cancel()
            for daemon in self.daemons:
                while not daemon.task.done():
                    await anyio.sleep(1)
            for life in self.lives.values():
                if life.incarnation is not None:
                    life.incarnation.children.bury()
            self.server.rows.close()

    async def _judge_rows(self) -> None:
        """Compare the database with the tables of the model, and with a replay of its journal."""
        for table, read, wanted in _compared(self.tables, self.disk.everything):
            key_of = _key_of(table)
            rows = {key_of(values): read(values) for values in _scan(self.disk.raw, table)}
            if rows != dict(wanted):
                raise Broken("rows", f"{table.name} differs")
        differences = await compare_with_replay(self.disk.store)
        if differences:
            raise Broken("I1 journal", "; ".join(differences[:5]))


def _observed_or_not(watch: Watch | None, poll: Any, timing: Timing) -> Watch | None:
    """See ``core.observation``. In seeds that are not honest, any node may appear dead."""
    found = observed(watch, poll, timing)
    world = PROCESS.get().world
    if found is None or world.is_honest or not world.faults.happens("claims too early"):
        return found
    world.points["claims too early"] += 1
    return msgspec.structs.replace(found, due=found.polled_at)


@contextmanager
def _simulated(world: Cluster) -> Iterator[None]:
    """Replace the parts of the daemon that reach outside the simulation."""
    with (
        patch.object(daemon_node, "open_database", open_life),
        patch.object(daemon_node, "prepare_claim", prepare_facts),
        patch.object(daemon_node, "_Node", ClusterNode),
        patch.object(daemon_standby, "observed", _observed_or_not),
        patch.object(asyncpg, "connect", world.connect),
        patch.object(lengths, "_LATEST_US", _LATEST_US),
    ):
        yield


def play(
    seed: int,
    left_out: frozenset[Fault] = frozenset(),
    dropped: tuple[tuple[int, int], ...] = (),
    trace: Callable[[str], None] | None = None,
    people: int = PEOPLE,
) -> Verdict:
    """Run one seed; see ``loop_model.play``."""
    loop = ClusterLoop(random.Random(f"loop {seed}"))
    world = Cluster(seed, loop, left_out, dropped, trace, people)
    loop.set_exception_handler(lambda _, context: _fence_broke(world, context))
    misbehaving.Misbehaving.payloads = itertools.count()
    misbehaving.Misbehaving.killed = set()
    broken: Broken | None = None
    with (
        tempfile.TemporaryDirectory(prefix="aioflow-sim-") as folder,
        _logs(is_traced=trace is not None),
        host_clock(lambda: _wall(world)),
        cancelled_in_order(),
        small_turns(seed),
        without_threads(),
        _simulated(world),
    ):
        disk = Disk(Path(folder))
        try:
            loop.run_until_complete(world.live(disk, Files(Path(folder, "results"))))
            stored.canaries_are_sealed(Path(folder))
        except Broken as exc:
            broken = exc
        except Exception as exc:  # noqa: BLE001 - whatever ends the engine is what we look for
            broken = world.broken or Broken("raised", repr(_cause(exc)), exc)
        finally:
            loop.close()
            disk.close()
    return world.verdict(seed, broken)


def _wall(world: Cluster) -> int:
    process = PROCESS.get()
    now: int = world.wall() if process is None else process.host.clock.now()
    return now
