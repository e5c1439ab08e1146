"""While no process can be started, one waiter polls for all and logs little; then all continue."""

from __future__ import annotations

import itertools
import logging

import anyio
import pytest

from aioflow.processes import NoHeadroom
from aioflow.processes.memory import ProcessHeadroom

pytestmark = pytest.mark.asyncio(loop_factories=["virtual"])


class LoopClock:
    """A clock that shows the time of the event loop."""

    def now(self) -> int:
        return self.monotonic_us()

    def monotonic_us(self) -> int:
        return round(anyio.current_time() * 1e6)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class Machine:
    """A system that is or is not able to start processes, and records each attempt."""

    def __init__(self) -> None:
        self.room = ProcessHeadroom(LoopClock())
        self.is_full = True
        self.asked_at: list[float] = []
        self.started_at: list[float] = []

    def spawn(self) -> None:
        with self.room.attempt("slot"):
            self.asked_at.append(anyio.current_time())
            if self.is_full:
                raise BlockingIOError(11, "Resource temporarily unavailable")

    async def want(self) -> None:
        """Try to start a process until that succeeds."""
        while True:
            try:
                self.spawn()
            except NoHeadroom:
                await self.room.wait()
            else:
                self.started_at.append(anyio.current_time())
                return


@pytest.fixture
def said(caplog):
    """Return a function that returns the messages logged so far."""
    caplog.set_level(logging.INFO, "aioflow.processes.memory")
    return lambda: caplog.messages


def gaps(moments: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(moments)]


async def test_however_many_want_one_a_second_is_tried():
    machine = Machine()
    with anyio.move_on_after(60.5):
        async with anyio.create_task_group() as group:
            for _ in range(64):
                group.start_soon(machine.want)

    assert len(machine.asked_at) == 61
    assert min(gaps(machine.asked_at)) >= 1.0


@pytest.mark.nightly
async def test_no_second_has_two_lines_and_an_hour_has_few(said):
    machine = Machine()
    with anyio.move_on_after(3_600):
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(machine.want)

    # There are lines after 0, 1, 3, 7, 15, 31 and 63 s, and then every minute.
    lines = said()
    assert len(lines) == 65
    assert "attempt 1 in 0 s" in lines[0]
    assert "Resource temporarily unavailable" in lines[0]
    assert "attempt 2 in 1 s" in lines[1]
    assert "attempt 4 in 3 s" in lines[2]


async def test_the_first_refusal_is_said_at_once(said):
    machine = Machine()
    with pytest.raises(NoHeadroom, match="unavailable"):
        machine.spawn()

    assert len(said()) == 1


async def test_when_one_is_started_all_others_are_at_the_same_moment(said):
    machine = Machine()
    async with anyio.create_task_group() as group:
        for _ in range(64):
            group.start_soon(machine.want)
        await anyio.sleep(30.25)
        machine.is_full = False
        given = anyio.current_time()

    assert len(machine.started_at) == 64
    assert max(machine.started_at) - given <= 1.0
    assert max(machine.started_at) == min(machine.started_at)
    assert said()[-1] == "processes start again, after 31.0 s"


async def test_a_machine_that_wavers_does_not_fill_the_log(said):
    machine, refused = Machine(), 0
    for turn in range(200):
        machine.is_full = turn % 2 == 0
        try:
            machine.spawn()
        except NoHeadroom:
            refused += 1
            await machine.room.wait()

    assert refused == 100
    assert sum("no slot process" in line for line in said()) <= 101


async def test_other_errors_than_the_machines_are_no_refusal(said):
    room = ProcessHeadroom(LoopClock())
    with pytest.raises(ValueError, match="ours"), room.attempt("slot"):
        raise ValueError("ours")
    with room.attempt("slot"):
        pass

    assert said() == []


async def test_the_wait_ends_at_once_if_there_is_capacity():
    began = anyio.current_time()
    await ProcessHeadroom(LoopClock()).wait()

    assert anyio.current_time() == began
