"""If no thread can be started, the call waits. A started function is never started again."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.from_thread
import pytest

from aioflow._threads import in_thread


@pytest.fixture
def starts(monkeypatch):
    """Return a list of errors. While it is not empty, starting a thread raises its last entry."""
    real, refusals = threading.Thread.start, []

    def start(thread):
        if refusals:
            raise RuntimeError(refusals.pop())
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return refusals


@asynccontextmanager
async def one_is_busy() -> AsyncIterator[None]:
    """Occupy one thread, possibly the only one, for the duration of the block."""
    begun, release = anyio.Event(), threading.Event()

    def hold() -> None:
        anyio.from_thread.run_sync(begun.set)
        release.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(in_thread, hold)
        await begun.wait()
        try:
            yield
        finally:
            release.set()


async def test_a_function_returns_what_it_returns():
    assert await in_thread(divmod, 7, 2) == (3, 1)


async def test_a_thread_that_cannot_be_started_is_waited_for(starts):
    async with one_is_busy():
        starts += ["can't start new thread"] * 3
        ran_in = await in_thread(threading.get_ident)

    assert starts == []
    assert ran_in != threading.get_ident()


async def test_an_error_of_the_function_is_its_own_and_it_runs_once():
    calls = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="new thread"):
        await in_thread(fail)

    assert calls == [1]


async def test_waiting_for_a_thread_can_be_cancelled(starts):
    async with one_is_busy():
        starts += ["can't start new thread"] * 1_000
        with anyio.move_on_after(0.02) as scope:
            await in_thread(threading.get_ident)
        starts.clear()

    assert scope.cancelled_caught


async def test_other_reasons_not_to_start_are_reported(starts):
    async with one_is_busy():
        starts += ["the interpreter ends"]
        with pytest.raises(RuntimeError, match="the interpreter ends"):
            await in_thread(threading.get_ident)
