"""Values that take long to serialize do not block the loop of a shared host."""

from __future__ import annotations

import asyncio
import time

import pytest

from aioflow.author.codec import Steps
from aioflow.worker.task_supervisor import SLICE_SECONDS, Slices


def endless() -> Steps[int]:
    while True:
        yield


def steps(count: int) -> Steps[int]:
    for _ in range(count):
        until = time.thread_time() + SLICE_SECONDS / 4
        while time.thread_time() < until:
            pass
        yield
    return count


async def busiest_turn(work: asyncio.Future) -> float:
    """Return the longest time that one iteration of the loop took until the work was done."""
    most = 0.0
    while not work.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        most = max(most, time.thread_time() - began)
    return most


async def test_short_work_is_done_without_yielding_to_the_loop():
    work = Slices(seconds=60).run(steps(2))  # however busy the machine is

    with pytest.raises(StopIteration) as done:
        work.send(None)

    assert done.value.value == 2


async def test_each_iteration_of_the_loop_does_one_slice_of_much_work():
    slices = Slices()
    work = asyncio.gather(*(slices.run(steps(40)) for _ in range(20)))

    most = await busiest_turn(work)

    assert await work == [40] * 20
    assert most < 8 * SLICE_SECONDS


async def test_short_work_does_not_wait_for_the_end_of_long_work():
    slices = Slices()
    long = asyncio.ensure_future(slices.run(endless()))
    await asyncio.sleep(0)

    assert await slices.run(steps(1)) == 1

    long.cancel()


async def test_an_error_is_raised_where_the_work_was_requested_and_others_continue():
    def broken() -> Steps[int]:
        yield
        raise ValueError("no")

    slices = Slices()

    results = await asyncio.gather(
        slices.run(broken()), slices.run(steps(9)), return_exceptions=True
    )

    assert repr(results[0]) == "ValueError('no')"
    assert results[1] == 9
