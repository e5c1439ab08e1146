"""The jobs for procrastinate, imported by the workers and by the client."""

from __future__ import annotations

import asyncio
import os
import time

import procrastinate
import serving

STALLED_SECONDS = 2.0
"""Seconds after its last heartbeat at which a worker counts as dead."""

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(
        conninfo=os.environ["PEER_DATABASE"], min_size=4, max_size=20
    ),
    import_paths=["procrastinate_tasks"],
)


@app.task(queue="work")
async def noop(number: int) -> None:
    return None


@app.task(queue="work")
def noop_def(number: int) -> None:
    return None


@app.task(queue="work")
async def hop(left: int, file: str) -> None:
    if left > 1:
        await hop.defer_async(left=left - 1, file=file)
    else:
        serving.mark(file, "end 0")


@app.task(queue="work")
async def due(instant: float, file: str) -> None:
    serving.mark(file, f"{(time.time() - instant) * 1000}")


@app.task(queue="work")
async def over(number: int) -> None:
    return None


@app.task(queue="work")
async def in_flight(number: int, ledger: str) -> None:
    serving.mark(ledger, f"start {number}")
    await asyncio.sleep(serving.task_seconds(number))
    serving.mark(ledger, f"end {number}")
