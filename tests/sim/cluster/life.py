"""One life of a node: the real loops of ``daemon.node`` over the simulated server and processes.

``stand_by``, ``wait_for_end``, ``drain`` and the heartbeats are the daemon's own. The children, the
catalog and the API are replaced.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

from aioflow.clock import Clock
from aioflow.daemon.node import _Node, _Warm
from aioflow.daemon.parts import send_heartbeats
from aioflow.daemon.standby import StatusReader
from aioflow.errors import StoreUnavailable
from aioflow.model.batch import Batch
from aioflow.model.rows import NodeFacts, NodeMark
from aioflow.protocol.effects import AssignTrigger, StartTry
from aioflow.protocol.inputs import FileParsed, Input
from aioflow.store import Claim
from aioflow.store.membership import ActiveNode
from aioflow.store.postgres.membership import PostgresMembership
from aioflow.store.postgres.store import PostgresStore
from aioflow.store.postgres.writer import Limits, Writer
from tests.sim.broken import Broken
from tests.sim.cluster.process import PROCESS
from tests.sim.incarnation import Incarnation
from tests.sim.ledger import Ledger

__all__ = ("NOWHERE", "ClusterNode", "Life", "NodeStore", "facts_of", "renumbered")


class ObservingMembership(PostgresMembership):
    """A membership that records what a standby has observed."""

    def __init__(self, life: Life, dsn: str, writer: Writer, *, limit_seconds: float) -> None:
        super().__init__(dsn, dsn, writer, limit_seconds=limit_seconds)
        self._life = life

    async def find_active(self) -> ActiveNode | None:
        """See ``Membership``."""
        found = await super().find_active()
        self._life.observed = None if found is None else found.mark
        return found


class NodeStore:
    """A store that writes to the simulated server, and reads the file that mirrors its rows."""

    def __init__(self, life: Life, reads: Any, vault: Any) -> None:
        self._life = life
        self._reads = reads
        dsn, lease = life.dsn, life.settings.ha_lease_seconds
        writer = Writer(dsn, dsn, "full", Limits.of_lease(lease))
        nothing: Any = None
        self._writes = PostgresStore(dsn, vault, writer, nothing, nothing)
        self.membership = ObservingMembership(life, dsn, writer, limit_seconds=lease)
        self.node_messages = None
        self.heartbeat = self._writes.heartbeat
        self.lease_numbers = self._writes.lease_numbers
        self.damages = reads.damages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reads, name)

    async def claim(self, about: NodeFacts | None = None) -> Claim:
        """See ``Store``."""
        return await self._writes.claim(about)

    async def commit(self, batch: Batch) -> None:
        """See ``Store``."""
        self._life.committing = batch
        try:
            await self._writes.commit(batch)
        finally:
            self._life.committing = None

    async def leave(self) -> None:
        """See ``Store``."""
        self._life.has_left = True
        await self._writes.leave()

    async def list_dags(self) -> Any:
        """See ``Store``."""
        self._life.check_reachable()
        return await self._reads.list_dags()

    async def load_run(self, run_no: int) -> Any:
        """See ``Store``."""
        self._life.check_reachable()
        return await self._reads.load_run(run_no)

    async def list_nodes(self) -> Any:
        """See ``Store``."""
        self._life.check_reachable()
        return await self._reads.list_nodes()

    @asynccontextmanager
    async def unfinished(self) -> AsyncIterator[Any]:
        """See ``Store``."""
        self._life.check_reachable()
        async with self._reads.unfinished() as parts:
            yield parts


class Life:
    """The parts of the simulation that belong to one life of a node. All other parts are shared.

    Attributes:
        committing: The batch being committed, if any.
        observed: The marks of the active node in the last reply of the server.
        is_over: Whether its processes are dead.
        has_left: Whether it has recorded its shutdown in the database, or has tried to.
    """

    def __init__(self, world: Any, host: Any, number: int) -> None:
        self._world = world
        self.host, self.number = host, number
        self.dsn = f"life {number}"
        self.settings = host.settings
        self.committing: Batch | None = None
        self.observed: NodeMark | None = None
        self.is_over = self.has_left = self.has_recovered = False
        self.incarnation: Any = None
        self._unheard = Ledger()
        self.process = PROCESS.get()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def end(self) -> None:
        """Kill its children."""
        self.is_over = True

    def check_reachable(self) -> None:
        """Raise ``StoreUnavailable`` if its reads would fail."""
        world = self._world
        if self.host.number in world.network.cut or world.server.is_away:
            raise StoreUnavailable("away for a moment")

    # ── interface for the actors and the invariants ─────────────────────────────────────

    @property
    def clock(self) -> Clock:
        """The clock of the host."""
        clock: Clock = self.host.clock
        return clock

    @property
    def is_owner(self) -> bool:
        """Whether this life made the last claim."""
        owner: Life | None = self._world.owner
        return owner is self

    @property
    def ledger(self) -> Ledger:
        """The record of what user code has done.

        A node that was replaced gets a separate one: it does not know yet that it was replaced.
        """
        ledger: Ledger = self._world.ledger if self.is_owner else self._unheard
        return ledger

    @property
    def engine(self) -> Any:
        """The engine of this life."""
        return self.incarnation.engine

    @property
    def memory(self) -> Any:
        """The memory of the engine."""
        return self.engine.memory

    @property
    def slots(self) -> Any:
        """The slots of the engine."""
        return self.engine.slots

    def wall(self) -> int:
        """Return the wall time of the host."""
        return self.clock.now()

    def after(self, delay_us: int, function: Callable[[], None]) -> None:
        """Call ``function`` after a delay, unless the life is over by then."""
        loop = self._world.loop
        loop.call_later(delay_us / 1e6, lambda: None if self.is_over else function())

    def say(self, report: Input) -> None:
        """Put a report of an actor into the inbox."""
        if not self.is_over:
            self.incarnation.say(self._world.reports.as_real(report))

    def committed(self, batch: Batch) -> None:
        """Check a batch of this engine that has become durable."""
        self._world.acknowledged(self, batch)


class ClusterIncarnation(Incarnation):
    """An incarnation of a daemon that also checks the rules for the nodes of a cluster."""

    def __init__(self, life: Life, store: Any, about: NodeFacts) -> None:
        super().__init__(life, store)
        engine, timing = self.engine, life.timing
        engine._timing = timing
        engine._about = about
        engine._longest_delay = timing.lease_us / 6e6
        self._life = life

    def start_try(self, effect: StartTry) -> None:
        """See ``Incarnation``."""
        if self._is_right("starts a task"):
            super().start_try(effect)

    def host(self, effect: AssignTrigger) -> None:
        """See ``Incarnation``."""
        if self._is_right("hosts a trigger"):
            self._check(lambda: self._life._world.judge.assigned(effect.host))
            super().host(effect)

    def _is_right(self, what: str) -> bool:
        """Return whether this node still owns the database. In an honest seed it must."""
        life = self._life
        if life.is_owner:
            self._check(lambda: life._world.judge.works(life, what))
            return True
        life.points["effect of a replaced node"] += 1
        if life._world.is_honest:
            life.found(Broken("I24 certainty", f"{life.host.home} {what}, but was replaced"))
        return False


class ClusterNode(_Node):
    """See ``daemon.node``."""

    def __init__(
        self,
        settings: Any,
        store: Any,
        vault: Any,
        traces: Any,
        about: Any,
        stopped: Any,
    ) -> None:
        life = self._life = store._life
        fields: Any = self
        fields._settings, fields._store, fields._about = settings, store, about
        fields._clock = life.host.slow_clock
        fields.stopped = stopped
        fields._warm = _Warm()
        fields._standby = fields._queries = fields._api_server = fields._standby_server = None
        life.incarnation = ClusterIncarnation(life, store, about)
        fields._engine = engine = life.incarnation.engine
        fields._status = StatusReader(engine, lambda: self.counts)
        fields._deliveries = SimpleNamespace(drain=lambda: None, quiet=_nothing)
        fields._hosts = SimpleNamespace(shut_down=_nothing)
        life.node = self

    def describe(self) -> Any:
        """Return no description: there is no banner to show it."""
        return None

    async def start_warm(self, services: Any) -> None:
        """Start nothing: the children of a standby play no part here."""

    async def _start_children(self, services: Any) -> None:
        """Start nothing."""

    async def _keep_code(self) -> None:
        """Store nothing, because no code is run."""

    async def start(self, services: Any) -> None:
        """Start the engine and its triggerers, and report the DAG files in place of the catalog."""
        life = self._life
        seconds = self._settings.ha_heartbeat_seconds
        services.start_soon(send_heartbeats, self._engine, self._clock, seconds)
        await life.incarnation.start(services)
        life.points["served"] += 1
        for spec in life.dags:
            life.incarnation.say(
                FileParsed(file=spec.file, version=f"v-{spec.dag_id}", dags=(spec,), sources={})
            )
        life._world.serves(life)


async def _nothing(*_: object) -> None:
    """Do nothing."""


def facts_of(host: Any) -> NodeFacts:
    """Return what a node reports about itself."""
    return NodeFacts(
        started_at=host.clock.now(),
        version="1",
        pid=host.number,
        host=f"host{host.number}",
        home=host.home,
        name=host.home,
        heartbeat_ms=round(1000 * host.settings.ha_heartbeat_seconds),
    )


def renumbered(batch: Batch, number: int) -> Batch:
    """Return the batch with the number that is next in the tables of all nodes."""
    return msgspec.structs.replace(batch, number=number)


NOWHERE = Path("/nonexistent")
"""The home of every node. No node reads or writes it."""
