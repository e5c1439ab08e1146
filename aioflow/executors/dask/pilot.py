"""Functions that Dask runs for the backend, outside of this module's own package.

They are sent by value: the machine of the scheduler need not have aioflow, and on a Dask worker
without it they say so. They may use the standard library only, and import the rest when they run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

__all__ = ("NO_AIOFLOW", "Pilot", "Sweep", "pilot_function", "sweep_function")

NO_AIOFLOW = b"!"
"""First byte of the result of a pilot that found no aioflow. The rest is a sentence."""

Pilot: TypeAlias = Callable[[bytes], Awaitable[bytes]]
Sweep: TypeAlias = Callable[..., Awaitable[int]]


def pilot_function() -> Pilot:
    """Return the Dask task that holds one worker."""

    async def aioflow_worker(order: bytes) -> bytes:
        from distributed import get_worker

        try:
            from aioflow.executors.dask.agent import serve_pilot
        except ImportError as exc:
            return b"!" + f"{get_worker().address} cannot import aioflow ({exc})".encode()
        return await serve_pilot(get_worker(), order)

    return aioflow_worker  # a function inside a function: Dask can only send it by value


def sweep_function() -> Sweep:
    """Return a function that ends what runs on a Dask worker for earlier daemons of a node."""

    async def aioflow_sweep(home_id: str, node_no: int, epoch: int, dask_worker: Any = None) -> int:
        plugin = dask_worker.plugins.get("aioflow")
        return 0 if plugin is None else await plugin.end_older(home_id, node_no, epoch)

    return aioflow_sweep
