"""Previews of timetables: only a few at a time, each answered once or timed out."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from aioflow.executors import host_inspection
from aioflow.executors.host_inspection import FireTimePreviews
from aioflow.protocol.commands import PreviewFireTimes, StartTrigger
from aioflow.protocol.reports import FireTimesPreviewed

pytestmark = pytest.mark.timeout(30)

HOST = StartTrigger(7, 0, 7, -1, "v", "own:Hours", b"\x80", 0, None)


class Wire:
    """Records the commands sent to the host."""

    def __init__(self) -> None:
        self.orders: list[PreviewFireTimes] = []
        self.foresight = FireTimePreviews(self._put)

    def _put(self, order: object) -> None:
        assert isinstance(order, PreviewFireTimes)
        self.orders.append(order)

    async def ask(self, into: list[FireTimesPreviewed]) -> None:
        into.append(await self.foresight.request(HOST, after=5, count=2))

    async def sent(self, count: int) -> None:
        while len(self.orders) < count:
            await anyio.lowlevel.checkpoint()


async def test_a_reply_reaches_its_query():
    wire, first, second = Wire(), [], []
    async with anyio.create_task_group() as group:
        group.start_soon(wire.ask, first)
        group.start_soon(wire.ask, second)
        await wire.sent(2)
        for order in reversed(wire.orders):
            wire.foresight.answered(FireTimesPreviewed(order.question, (order.question,)))

    assert [order.host for order in wire.orders] == [HOST, HOST]
    assert {(order.after, order.count) for order in wire.orders} == {(5, 2)}
    assert [answer.fire_times for (answer,) in (first, second)] == [(1,), (2,)]


async def test_a_blocking_timetable_is_named_and_its_loss_is_reported_to_all_requests():
    wire, told = Wire(), []
    async with anyio.create_task_group() as group:
        group.start_soon(wire.ask, told)
        await wire.sent(1)
        named = wire.foresight.class_of(7), wire.foresight.class_of(8)
        wire.foresight.lost()

    assert named == ("own:Hours", "")
    assert told[0].failure is not None
    assert told[0].failure.reason == "lost"
    assert wire.foresight.class_of(7) == ""


async def test_a_query_without_a_reply_is_abandoned_and_a_late_reply_ignored(monkeypatch):
    monkeypatch.setattr(host_inspection, "PREVIEW_SECONDS", 0.01)
    wire, told = Wire(), []

    await wire.ask(told)
    wire.foresight.answered(FireTimesPreviewed(1, (3,)))

    assert told[0].failure is not None
    assert told[0].failure.reason == "timeout"


async def test_no_more_are_asked_at_a_time_than_leave_the_host_its_own_work():
    wire, told = Wire(), []
    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(wire.ask, told)
        await anyio.wait_all_tasks_blocked()
        at_once = len(wire.orders)
        while len(told) < 10:
            for order in wire.orders:
                wire.foresight.answered(FireTimesPreviewed(order.question))
            await anyio.wait_all_tasks_blocked()

    assert at_once == 4
    assert len({order.question for order in wire.orders}) == 10
