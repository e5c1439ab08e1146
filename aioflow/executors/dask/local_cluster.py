"""A Dask cluster on this machine, for trials: a scheduler and workers, each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import anyio
from anyio.abc import Process

from aioflow.clock import SystemClock
from aioflow.errors import SettingsError

__all__ = ("local_cluster",)

START_SECONDS = 60.0
STOP_SECONDS = 5.0
_POLL_SECONDS = 0.05

_PROGRAM = """
import runpy, signal, sys
from aioflow.worker.process import die_with_parent
die_with_parent(signal.SIGTERM)
sys.argv = ["dask", *sys.argv[1:]]
runpy.run_module("dask", run_name="__main__")
"""
"""The command line of Dask, run in a process that ends with its parent."""


@asynccontextmanager
async def local_cluster(folder: Path, workers: int) -> AsyncIterator[str]:
    """Start a cluster and yield the scheduler's address. End the cluster after the block.

    Args:
        folder: For the files and logs of Dask.
        workers: Number of Dask workers, with one thread each.

    Raises:
        SettingsError: If Dask is not installed, or does not start.
    """
    if find_spec("distributed") is None:
        raise SettingsError("Dask is not installed; pip install 'aioflow-engine[dask]'")
    place, log = folder / "scheduler.json", folder / "dask.log"
    async with AsyncExitStack() as stack:
        local = "--host", "127.0.0.1", "--no-dashboard"
        scheduler = await stack.enter_async_context(
            _dask(log, "scheduler", *local, "--port", "0", "--scheduler-file", str(place))
        )
        address = await _address(scheduler, place, log)
        for _ in range(workers):
            await stack.enter_async_context(
                _dask(
                    log,
                    *("worker", address, *local, "--no-nanny", "--nthreads", "1"),
                    *("--local-directory", str(folder)),
                )
            )
        yield address


async def _address(scheduler: Process, place: Path, log: Path) -> str:
    """Return the address that the scheduler writes to a file."""
    with anyio.move_on_after(START_SECONDS):
        while scheduler.returncode is None:
            try:
                return str(json.loads(await anyio.Path(place).read_bytes())["address"])
            except (FileNotFoundError, ValueError):
                await SystemClock().sleep(_POLL_SECONDS)
    raise SettingsError(f"the Dask scheduler does not start; see {log}")


@asynccontextmanager
async def _dask(log: Path, *arguments: str) -> AsyncIterator[Process]:
    """Run a Dask command while the block runs."""
    with log.open("ab") as file:
        process = await anyio.open_process(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"},
        )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
            with anyio.move_on_after(STOP_SECONDS):
                await process.wait()
            if process.returncode is None:
                process.kill()
            await process.aclose()
