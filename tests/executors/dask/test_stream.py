from __future__ import annotations

import asyncio
import random
from collections import deque

import anyio
import anyio.lowlevel
import pytest

from aioflow.executors.dask.stream import Stream


class Wire:
    """One end of an in-memory connection that delivers or loses messages, and breaks."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._arrived: deque[object] = deque()
        self._changed = asyncio.Event()
        self.is_closed = False
        self.other: Wire

    @classmethod
    def pair(cls, chance: random.Random) -> tuple[Wire, Wire]:
        one, two = cls(chance), cls(chance)
        one.other, two.other = two, one
        return one, two

    async def write(self, msg: object) -> None:
        if self._chance.random() < 0.1:
            self.abort()  # this message is lost, and those that were not read
        await asyncio.sleep(0)
        if self.is_closed:
            raise OSError("closed")
        self.other._arrived.append(msg)
        self.other._changed.set()
        if self._chance.random() < 0.1:
            self.abort()

    async def read(self) -> object:
        while not self._arrived and not self.is_closed:
            self._changed.clear()
            await self._changed.wait()
        if self.is_closed:
            raise OSError("closed")
        return self._arrived.popleft()

    def abort(self) -> None:
        for wire in (self, self.other):
            wire.is_closed = True
            wire._changed.set()


@pytest.mark.parametrize("seed", range(20))
async def test_no_message_is_lost_or_doubled_however_often_the_connection_breaks(seed):
    chance = random.Random(seed)
    got: dict[str, list[tuple[int, int, bytes]]] = {"one": [], "two": []}
    ends = {name: Stream(lambda *m, n=name: got[n].append(m), lambda: None) for name in got}
    sent = [(chance.randrange(5), number, b"x" * chance.randrange(2_000)) for number in range(300)]

    async def send(end: Stream) -> None:
        for message in sent:
            end.put(*message)
            if chance.random() < 0.3:
                await anyio.lowlevel.checkpoint()

    async def connect() -> None:
        while len(got["one"]) < len(sent) or len(got["two"]) < len(sent):
            one, two = Wire.pair(chance)
            received = {name: end.received for name, end in ends.items()}
            async with anyio.create_task_group() as connection:
                connection.start_soon(ends["one"].run, one, received["two"])
                connection.start_soon(ends["two"].run, two, received["one"])
                connection.start_soon(_end_when_done, got, len(sent), one)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for end in ends.values():
                group.start_soon(send, end)
            group.start_soon(connect)

    assert got["one"] == got["two"] == sent


async def _end_when_done(got: dict[str, list], count: int, wire: Wire) -> None:
    while any(len(messages) < count for messages in got.values()):
        if wire.is_closed:
            return
        await anyio.lowlevel.checkpoint()
    wire.abort()


async def test_what_was_acknowledged_is_dropped():
    got: list[bytes] = []
    one = Stream(lambda *_: None, lambda: None)
    two = Stream(lambda _kind, _no, data: got.append(data), lambda: None)
    for number in range(5_000):
        one.put(0, number, b"x" * 1_000)
    wires = Wire.pair(Never())
    async with anyio.create_task_group() as group:
        group.start_soon(one.run, wires[0], 0)
        group.start_soon(two.run, wires[1], 0)
        with anyio.fail_after(60):
            await one.flushed()
        assert one.backlog == 0
        wires[0].abort()
    assert len(got) == 5_000


class Never(random.Random):
    def random(self) -> float:
        return 1.0


async def test_a_stream_with_another_end_is_refused():
    one = Stream(lambda *_: None, lambda: None)
    one.put(0, 1)
    wire, _ = Wire.pair(Never())
    with pytest.raises(ValueError, match="message 7 was not sent"):
        await one.run(wire, 7)


async def test_a_beat_is_echoed():
    one, two = (Stream(lambda *_: None, lambda: None) for _ in range(2))
    one.beat(3)
    wires = Wire.pair(Never())
    async with anyio.create_task_group() as group:
        group.start_soon(one.run, wires[0], 0)
        group.start_soon(two.run, wires[1], 0)
        with anyio.fail_after(60):
            while one.echoed != 3:
                await anyio.lowlevel.checkpoint()
        wires[0].abort()
