"""A host of the cluster: its clock, its home, and the daemons that are started on it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio

from aioflow.daemon.node import _Serving
from aioflow.daemon.standby import Rejoins
from aioflow.daemon.stop_signals import StopSignals
from aioflow.errors import Fenced, HomeBusy, StoreUnavailable
from aioflow.model.rows import NodeFacts
from tests.sim.broken import Broken
from tests.sim.cluster.life import NOWHERE, Life, NodeStore, facts_of
from tests.sim.cluster.process import PROCESS, Process

__all__ = ("Daemon", "Host", "open_life", "prepare_facts")

_EXPECTED = (Fenced, HomeBusy, StoreUnavailable)
"""Errors with which a daemon may exit. Its service manager restarts it."""


class HostClock:
    """The clocks of a host: the monotonic one may be fast or slow, the wall clock may step."""

    def __init__(self, loop: Any, begin_us: int, rate: float, offset_us: int) -> None:
        self._loop = loop
        self._rate = rate
        self._offset_us = offset_us
        self.stepped_us = begin_us
        self.slower = 1.0

    def now(self) -> int:
        """See ``Clock``."""
        return int(self._loop.time() * 1e6 * self._rate) + self.stepped_us

    def monotonic_us(self) -> int:
        """See ``Clock``."""
        return int(self._loop.time() * 1e6 * self._rate) + self._offset_us

    async def sleep(self, seconds: float) -> None:
        """See ``Clock``."""
        await anyio.sleep(seconds / self._rate)


class _Slow:
    """The clock that the loops of a node use. Sleeps become longer once all faults are over."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.now, self.monotonic_us = host.clock.now, host.clock.monotonic_us

    async def sleep(self, seconds: float) -> None:
        await self._host.clock.sleep(seconds * self._host.clock.slower)


class Host:
    """A host of the cluster; see the module.

    Attributes:
        home: The identity of its home.
        daemon: The process that was started last.
    """

    def __init__(self, world: Any, number: int, rate: float, timing: Any) -> None:
        self.world, self.number = world, number
        self.home = f"home{number}"
        rng = world.chance
        self.clock = HostClock(world.loop, world.clock.offset, rate, rng.randint(0, 10**12))
        self.slow_clock = _Slow(self)
        self.settings = SimpleNamespace(
            ha_enabled=True,
            ha_heartbeat_seconds=timing.heartbeat_us / 1e6,
            ha_lease_seconds=timing.lease_us / 1e6,
            ha_quick_lease_seconds=timing.quick_lease_us / 1e6,
            grace_seconds=0.0,
            shown_db="the database",
            home=NOWHERE,
        )
        self.daemon: Daemon | None = None

    async def run(self) -> None:
        """Keep a daemon running: start one, and start another whenever it has ended."""
        world = self.world
        while not world.is_settling:
            daemon = self.daemon = Daemon(self)
            daemon.start()
            await daemon.ended.wait()
            world.points["daemon ended"] += 1
            longest = 3 if world.faults.healed else world.chance.choice((0.1, 3, 60))
            await anyio.sleep(world.chance.random() * longest)


class Daemon(Process):
    """A process that runs a daemon.

    Attributes:
        ended: Set when the daemon has exited or was killed.
    """

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.host = host
        self.world = host.world
        self.signals = StopSignals()
        self.ended = anyio.Event()
        self.life: Life | None = None
        self.task: Any = None
        self.scope = anyio.CancelScope()

    def start(self) -> None:
        """Start the daemon."""
        host = self.host
        host.settings.grace_seconds = host.world.chance.choice((0.0, 1.0, 30.0))
        self.task = host.world.loop.create_task(self._main())
        host.world.daemons.append(self)

    async def _main(self) -> None:
        PROCESS.set(self)
        nothing: Any = None
        try:
            with self.scope:
                serving = _Serving(
                    self.host.settings,  # type: ignore[arg-type]
                    nothing,
                    nothing,
                    lambda _: None,
                    self.signals,
                )
                await self._serve(serving)
        except* _EXPECTED:
            self.world.points["exit with an error"] += 1
        except* Exception as group:  # noqa: BLE001 - any unexpected error is a finding
            problem: BaseException = group
            while isinstance(problem, BaseExceptionGroup):
                problem = problem.exceptions[0]
            self.world.found(Broken("raised", f"{type(problem).__name__}: {problem}", problem))
        finally:
            self.ended.set()

    async def _serve(self, serving: _Serving) -> None:
        """See ``daemon.node.serve``."""
        rejoins = Rejoins(self.host.clock)
        while not self.signals.stopped.is_set():
            try:
                await serving.run(take_over=False)
                self._has_handed_over()
            except* Fenced:
                self.world.points["fenced"] += 1
                if not rejoins.may_rejoin():
                    raise

    def _has_handed_over(self) -> None:
        """L8: check that a daemon that ends after SIGTERM has handed over without a lease wait."""
        life = self.life
        if life is None or life.incarnation is None or life.engine.epoch is None:
            return  # it was never active
        self.world.points["handed over"] += 1
        if not life.has_left:
            self.world.found(Broken("L8 hand-over", f"{self.host.home} ends, and has not left"))

    # ── faults ──────────────────────────────────────────────────────────────────────────

    def terminate(self) -> None:
        """Send SIGTERM."""
        if not self.signals.stopped.is_set():
            self.signals.receive(signal.SIGTERM)

    def stop(self) -> None:
        """Send SIGSTOP."""
        if not self.is_stopped:
            self.is_stopped, self.stopped_at = True, self.world.loop.time()

    def resume(self) -> None:
        """Send SIGCONT, unless it was killed."""
        if self.is_stopped and not self.is_killed:
            self.world.loop.resume(self)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.is_stopped = self.is_killed = True
        if self.life is not None:
            self.life.is_over = True
        self.ended.set()


@asynccontextmanager
async def _open(daemon: Daemon) -> AsyncIterator[NodeStore]:
    world = daemon.world
    life = daemon.life = world.new_life(daemon.host)
    store = NodeStore(life, world.disk.another_store(), world.disk.everything)
    try:
        yield store
    finally:
        life.end()
        await store.membership.close()
        await store._writes._writing().close()


async def open_life(stack: Any, *_: Any) -> NodeStore:
    """See ``daemon.startup.open_database``."""
    store: NodeStore = await stack.enter_async_context(_open(PROCESS.get()))
    return store


async def prepare_facts(settings: Any, store: Any, *, take_over: bool) -> NodeFacts:
    """See ``store.takeover.prepare_claim``."""
    return facts_of(PROCESS.get().host)
