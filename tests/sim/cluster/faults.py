"""Faults of the third level: faults of the daemons, of the network, and of the server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import anyio

from tests.sim.faults import Fault
from tests.sim.loop_faults import LoopFaults
from tests.sim.workload import SECOND

__all__ = ("ClusterFaults", "Misfortune", "rates")

KINDS = {
    "request lost": 0.01,
    "request late": 0.03,
    "reply lost": 0.01,
    "reply late": 0.03,
    "acknowledgement lost": 0.08,
    "acknowledgement late": 0.15,
    "daemon stopped": 0.15,
    "machines suspended": 0.1,
    "daemon killed": 0.06,
    "daemon told to stop": 0.06,
    "home copied": 0.05,
    "host cut off": 0.1,
    "connections reset": 0.1,
    "server stalls": 0.12,
    "server crashes": 0.08,
    "wall clock stepped": 0.05,
    "node drained": 0.1,
    "node undrained": 0.1,
    "claims too early": 0.15,
}
"""The highest probability of each kind at one opportunity."""

_OF_THE_STORE = ("drained", "ended at once", "key lost", "power cut", "no process", "capacity")


class ClusterFaults(LoopFaults):
    """See ``LoopFaults``. Faults of the store of a single node are left to the second level."""

    def __init__(self, seed: int, left_out: frozenset[Fault] = frozenset()) -> None:
        super().__init__(seed, left_out)
        rng = random.Random(f"cluster faults {seed}")
        loudness = rng.choice((0.2, 0.6, 1.0, 1.0))
        for kind, most in KINDS.items():
            self._odds[kind] = most * loudness * rng.random() * rng.choice((0, 1, 1))
            self._chances[kind] = random.Random(f"{kind} {seed}")
        for kind in _OF_THE_STORE:
            self._odds[kind] = 0.0


class Misfortune:
    """Draws faults of the daemons, their hosts and the server, until faults end for good."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._lease = world.timing.lease_us / 1e6

    async def run(self) -> None:
        """Draw faults at random intervals."""
        world = self._world
        while not world.faults.healed:
            await anyio.sleep(self._lease * world.chance.random())
            for host in world.hosts:
                self._strike(host)
            self._strike_server()
            self._suspend()
            self._drain()

    def heal(self) -> None:
        """End all faults that last."""
        world = self._world
        for host in world.hosts:
            world.network.heal(host.number)
        for daemon in world.daemons:
            daemon.resume()
        world.server.come_back()
        world.server.resume()
        for daemon in world.daemons:
            if all(daemon is not host.daemon for host in world.hosts):
                self.kill(daemon)  # of a home that was copied

    def _seconds(self) -> float:
        """Return how long a fault lasts: from a fraction of a lease to a few leases."""
        chance = self._world.chance
        return float(self._lease * chance.choice((0.2, 1.0, 2.0, 4.0)) * (1 + chance.random()) / 2)

    def _later(self, function: Any, seconds: float) -> None:
        self._world.loop.call_later(seconds, function)

    def _happens(self, kind: str) -> bool:
        world = self._world
        if world.faults.happens(kind):
            world.points[kind] += 1
            return True
        return False

    def _strike(self, host: Any) -> None:
        world, daemon = self._world, host.daemon
        if self._happens("host cut off"):
            world.network.cut.add(host.number)
            self._later(lambda: world.network.heal(host.number), self._seconds())
        if self._happens("connections reset"):
            seconds = world.chance.choice((0.0, self._seconds()))
            world.network.reset(lambda one: one.host == host.number, seconds)
        if self._happens("wall clock stepped"):
            host.clock.stepped_us += world.chance.choice((6, -2)) * 3600 * SECOND
        if daemon is None or daemon.ended.is_set() or daemon.is_stopped:
            return
        if self._happens("daemon stopped"):
            daemon.stop()
            self._later(daemon.resume, self._seconds())
        elif self._happens("daemon killed"):
            self.kill(daemon)
        elif self._happens("home copied"):
            self._copy(daemon)
        elif self._happens("daemon told to stop"):
            daemon.terminate()

    def _copy(self, daemon: Any) -> None:
        """Let another daemon start on the home of one that is stopped, but has not ended."""
        world, life = self._world, daemon.life
        daemon.stop()
        self._later(daemon.resume, 2 * self._seconds())
        if world.chance.random() < 0.7:
            world.network.reset(lambda one: one.writer is life)
        daemon.ended.set()

    def kill(self, daemon: Any) -> None:
        """Kill a daemon. Its connections close soon, or later as if its machine had been lost."""
        world, life = self._world, daemon.life
        daemon.kill()
        seconds = world.chance.choice((0.0, 0.01, self._seconds()))
        world.network.reset(lambda one: one.writer is life, seconds)

    def _strike_server(self) -> None:
        world = self._world
        if self._happens("server stalls"):
            world.server.stall()
            self._later(world.server.resume, self._seconds())
        if self._happens("server crashes"):
            world.server.crash()
            world.network.reset(lambda one: True)
            self._later(world.server.come_back, self._seconds())

    def _suspend(self) -> None:
        """Stop all daemons at once, as when the physical machine under all of them is suspended."""
        if self._happens("machines suspended"):
            seconds = self._seconds()
            for host in self._world.hosts:
                daemon = host.daemon
                if daemon is not None and not daemon.is_stopped:
                    daemon.stop()
                    self._later(daemon.resume, seconds + 0.1 * self._world.chance.random())

    def _drain(self) -> None:
        world = self._world
        for kind, is_drained in (("node drained", True), ("node undrained", False)):
            if self._happens(kind):
                known = [1, *range(2, len(world.hosts) + 1)]
                world.drain(world.chance.choice(known), is_drained=is_drained)


def rates(count: int, rng: random.Random) -> Iterator[float]:
    """Yield the speed of the monotonic clock of each host, relative to real time."""
    for _ in range(count):
        yield rng.choice((1.0, 1.0, rng.uniform(0.9, 1.1)))
