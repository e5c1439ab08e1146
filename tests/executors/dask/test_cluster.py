"""Pilots that are given up before they begin."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import anyio
import anyio.lowlevel
from distributed.batched import BatchedSend
from distributed.client import FutureCancelledError

from aioflow.executors.dask.cluster import Pilot, _new_client_type


class Future:
    """A cancelled Dask future. It stores its error, and raises it from its own frame."""

    def __init__(self) -> None:
        self.released = anyio.Event()
        self.error: FutureCancelledError | None = None

    async def _result(self) -> None:
        await self.released.wait()
        error = self.error = FutureCancelledError("aioflow-1", "given up")
        raise error

    def __await__(self) -> Any:
        return self._result().__await__()

    def release(self) -> None:
        self.released.set()


async def test_a_pilot_that_was_given_up_leaves_no_garbage():
    gc.collect()
    gc.disable()
    try:
        future = Future()
        pilot = Pilot(future)
        async with anyio.create_task_group() as group:
            group.start_soon(pilot.end)
            await anyio.lowlevel.checkpoint()
            pilot.release()
        gone = weakref.ref(future)
        del future, pilot, group
        await anyio.lowlevel.checkpoint()
        assert gone() is None
    finally:
        gc.enable()


async def test_messages_of_dask_are_not_kept_for_debugging():
    _new_client_type()
    assert BatchedSend(interval=1).recent_message_log.maxlen == 10
