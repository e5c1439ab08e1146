"""A single trigger on virtual time: the result of ``collect``, and when it stops."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aioflow import Share, Trigger, TriggerEvent, Unserializable, Watch
from aioflow.testing import BEGINS_AT, Sim, collect
from aioflow.worker.trigger.instance import TriggerWrong
from aioflow_triggers import FileTrigger, NewFiles, TimeDeltaTrigger

HOUR = timedelta(hours=1)

ended: list[str] = []


@dataclass(frozen=True)
class Ticks(Trigger[int]):
    """Yields a number each hour, beginning after the last stored number."""

    count: int = 1_000_000

    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        first = 0 if self.last is None else self.last.payload + 1
        for number in range(first, self.count):
            await asyncio.sleep(3600)
            yield TriggerEvent(number, key=str(number))

    async def cleanup(self, reason: str) -> None:
        ended.append(reason)


@dataclass(frozen=True)
class Clock(Trigger[list[Any]]):
    """Yields the time as it sees it, after an hour in a thread."""

    async def run(self) -> AsyncIterator[TriggerEvent[list[Any]]]:
        await asyncio.to_thread(time.sleep, 3600)
        waited = asyncio.get_running_loop().time() - self.since_monotonic
        yield TriggerEvent([datetime.now(UTC), self.since, waited])


@dataclass(frozen=True)
class Acknowledges(Trigger[int]):
    """Records after each ``yield`` which event was stored last."""

    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        for number in range(3):
            ended.append(f"{number} behind {self.last and self.last.payload}")
            yield TriggerEvent(number)


@dataclass(frozen=True)
class Yields(Trigger[Any]):
    """Yields the value of its class attribute."""

    what: str

    async def run(self) -> AsyncIterator[TriggerEvent[Any]]:
        wrong: dict[str, Any] = {"bare": 1, "lost": TriggerEvent(object())}
        yield wrong[self.what]


class Bell(Watch[str, str]):
    async def run(self) -> AsyncIterator[tuple[str, TriggerEvent[str]]]:
        await asyncio.sleep(60)
        yield "other", TriggerEvent("other")
        yield "mine", TriggerEvent("mine", key="bell")


@dataclass(frozen=True)
class BellTrigger(Trigger[str]):
    def share(self) -> Share:
        return Share(Bell, wanted="mine")


@dataclass
class Lost(Trigger[int]):
    what: Any = field(default=None)

    async def run(self) -> AsyncIterator[TriggerEvent[int]]:
        yield TriggerEvent(1)


class FakeQueue:
    """A queue of messages. The id of each message is its body."""

    def __init__(self, bodies: list[str]) -> None:
        self.acknowledged: list[str] = []
        self._bodies = deque(bodies)

    async def receive(self, seconds: float) -> str | None:
        if self._bodies:
            return self._bodies.popleft()
        await asyncio.sleep(seconds)
        return None

    async def acknowledge(self, message: str) -> None:
        self.acknowledged.append(message)


queues: dict[str, FakeQueue] = {}


@dataclass(frozen=True)
class Messages(Trigger[str]):
    """The example from the documentation on testing."""

    queue: str

    async def run(self) -> AsyncIterator[TriggerEvent[str]]:
        queue = queues[self.queue]
        unstored: deque[str] = deque()
        while True:
            message = await queue.receive(5)
            if message is not None:
                unstored.append(message)
                yield TriggerEvent(message, key=message)
            while self.last is not None and self.last.key in unstored:
                await queue.acknowledge(unstored.popleft())


@pytest.fixture(autouse=True)
def _nothing_ended():
    ended.clear()


async def test_the_events_of_a_trigger_that_ends_come_in_order():
    assert await collect(Ticks(3)) == [TriggerEvent(n, key=str(n)) for n in range(3)]
    assert ended == ["finished"]


async def test_a_trigger_continues_after_its_last_event_and_the_next_call_knows_nothing_of_that():
    trigger = Ticks(5)

    behind = await collect(trigger, last=TriggerEvent(2))
    again = await collect(trigger)

    assert [event.payload for event in behind] == [3, 4]
    assert [event.payload for event in again] == [0, 1, 2, 3, 4]


async def test_a_stream_without_end_stops_with_its_time_or_its_count():
    in_time = await collect(Ticks(), timeout=5.5 * 3600)
    enough = await collect(Ticks(), count=2)
    nothing = await collect(Ticks(), timeout="59m")

    assert [event.payload for event in in_time] == [0, 1, 2, 3, 4]
    assert [event.payload for event in enough] == [0, 1]
    assert nothing == []
    assert ended == ["timeout", "finished", "timeout"]


async def test_each_event_is_stored_before_the_trigger_continues():
    await collect(Acknowledges())

    assert ended == ["0 behind None", "1 behind 0", "2 behind 1"]


@pytest.mark.parametrize(
    ("count", "acknowledged"), [(2, ["a"]), (3, ["a", "b"]), (None, ["a", "b", "c"])]
)
async def test_a_stream_acknowledges_what_is_stored_and_nothing_else(count, acknowledged):
    queues["orders"] = FakeQueue(["a", "b", "c"])

    await collect(Messages("orders"), count=count, timeout="1m")

    assert queues["orders"].acknowledged == acknowledged


async def test_time_is_virtual_and_begins_where_the_test_says():
    real = datetime.now(UTC)
    ((now, since, waited),) = [event.payload for event in await collect(Clock())]
    at = datetime(2026, 5, 1, 6, tzinfo=UTC)
    ((late, asked, long),) = [
        event.payload for event in await collect(Clock(), since=at - 3 * HOUR, at=at)
    ]

    assert (now, since, waited) == (BEGINS_AT + HOUR, BEGINS_AT, pytest.approx(3600))
    assert (late, asked, long) == (at + HOUR, at - 3 * HOUR, pytest.approx(4 * 3600))
    assert datetime.now(UTC) - real < HOUR


async def test_the_triggers_of_the_catalogue_are_collected_as_well(tmp_path: Path):
    at = datetime(2026, 5, 1, tzinfo=UTC)
    (tmp_path / "a.csv").write_text("a")

    (waited,) = await collect(TimeDeltaTrigger("5h"), since=at - 3 * HOUR, at=at, timeout="3h")
    (file,) = await collect(FileTrigger(tmp_path / "a.csv"))
    files = await collect(NewFiles(tmp_path / "*.csv", existing=True))

    assert waited.payload is not None
    assert file.payload["size_bytes"] == 1
    assert [event.payload["path"] for event in files] == [str(tmp_path / "a.csv")]
    assert await collect(TimeDeltaTrigger("5h"), timeout="4h") == []


async def test_a_trigger_that_shares_a_watch_has_one_for_itself():
    assert await collect(BellTrigger()) == [TriggerEvent("mine", key="bell")]


async def test_refusals_of_a_host_apply():
    @dataclass
    class Local(Lost):
        pass

    with pytest.raises(Unserializable):
        await collect(Local())
    with pytest.raises(TriggerWrong, match="wrap it"):
        await collect(Yields("bare"))
    with pytest.raises(Unserializable):
        await collect(Yields("lost"))


async def test_it_may_be_called_beside_a_simulation(sim: Sim):
    await sim.advance("5h")
    before = sim.now

    assert len(await collect(Ticks(2))) == 2
    assert datetime.now(UTC) == sim.now == before
