"""Pilots without demand are retained for a while for the next run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import anyio
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from aioflow.clock import SystemClock
from aioflow.executors.dask.agent_link import AgentLink
from aioflow.executors.dask.backend import DaskBackend, _Worker
from aioflow.executors.dask.cluster import Pilot
from aioflow.executors.dask.options import DaskOptions
from aioflow.model.states import Failure
from aioflow.model.workers import WorkerSpec
from tests.executors.dask.cluster import SPEC, demand

OTHER = WorkerSpec(executor="dask", resources=(("GPU", 1.0),))


class Clock(SystemClock):
    seconds = 0.0

    def monotonic_us(self) -> int:
        return round(self.seconds * 1e6)


class Future:
    """A Dask future, reduced to what giving it up needs."""

    def release(self) -> None:
        pass


class Backend(DaskBackend):
    """A backend without a cluster, whose clock is set by the test."""

    def __init__(self) -> None:
        super().__init__("dask", DaskOptions(address="tcp://x:1", idle_seconds=10.0))
        self.clock = self._clock = Clock()
        self.streams: list[MemoryObjectSendStream[Any] | MemoryObjectReceiveStream[Any]] = []

    def add(self, number: int, spec: WorkerSpec = SPEC, *, is_up: bool = False) -> _Worker:
        worker = self._workers[number] = _Worker(number, spec, Pilot(Future()), 0)
        if is_up:
            worker.output, items = anyio.create_memory_object_stream[bytes | Failure](math.inf)
            self.streams += [worker.output, items]
            worker.link = cast(AgentLink, object())
        return worker

    def after(self, seconds: float) -> list[int]:
        """Let some seconds pass. Return the numbers of the remaining pilots."""
        self.clock.seconds += seconds
        self._give_up_pilots()
        return list(self._workers)


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = Backend()
    backend.add(1, is_up=True)
    for number in (2, 3, 4):
        backend.add(number)
    yield backend
    for stream in backend.streams:
        stream.close()


def test_pilots_that_wait_without_demand_are_kept_for_half_of_the_idle_time(backend):
    assert backend.after(0) == [1, 2, 3, 4]
    assert backend.after(4.9) == [1, 2, 3, 4]
    assert backend.after(0.2) == [1]


def test_pilots_that_are_demanded_again_in_time_are_not_given_up(backend):
    backend.after(4.9)
    backend.set_demand(demand(4))
    backend.after(1)
    backend.set_demand([])

    assert backend.after(0) == backend.after(4.9) == [1, 2, 3, 4]
    assert backend.after(0.2) == [1]


def test_the_last_pilots_are_given_up_first(backend):
    backend.set_demand(demand(2))

    backend.after(0)

    assert backend.after(5) == [1, 2]


def test_pilots_without_demand_make_way_for_another_spec_that_lacks_workers(backend):
    backend.add(5, OTHER)
    backend.set_demand(demand(1, OTHER))

    assert backend.after(0) == [1, 5]


def test_pilots_are_kept_beside_another_spec_that_has_its_workers(backend):
    backend.add(5, OTHER, is_up=True)
    backend.set_demand(demand(1, OTHER))

    assert backend.after(0) == [1, 2, 3, 4, 5]


def test_no_reason_is_asked_for_why_pilots_wait_that_nobody_demands(backend):
    backend.set_demand(demand(4))
    assert backend._waiting_since(0) == {SPEC}

    backend.set_demand(demand(1))
    backend.after(0)

    assert backend._waiting_since(0) == set()
