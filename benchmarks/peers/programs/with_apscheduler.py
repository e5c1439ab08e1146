"""The work as a user of APScheduler 4 writes it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Iterable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import apscheduler_jobs as jobs
import serving
import sqlalchemy as sa
from apscheduler import AsyncScheduler
from apscheduler.datastores.sqlalchemy import SQLAlchemyDataStore
from apscheduler.triggers.date import DateTrigger
from sqlalchemy.ext.asyncio import create_async_engine

AT_A_TIME = 100


class WithAPScheduler(serving.Program):
    """One process with a scheduler."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        url = self.database.replace("postgresql://", "postgresql+asyncpg://")
        self.engine = create_async_engine(url or f"sqlite+aiosqlite:///{self.folder}/jobs.sqlite")
        self.due = 0.0

    async def start(self) -> serving.Answer:
        limit = self.in_flight or AT_A_TIME
        scheduler = AsyncScheduler(SQLAlchemyDataStore(self.engine), max_concurrent_jobs=limit)
        self.scheduler = jobs.scheduler = await scheduler.__aenter__()
        for job in (jobs.noop, jobs.noop_def, jobs.hop, jobs.due, jobs.in_flight):
            # No limit, because the count of running jobs is not corrected after a kill.
            await scheduler.configure_task(job, max_running_jobs=None)
        await scheduler.start_in_background()
        return {}

    async def rows(self, statement: str) -> list[Any]:
        async with self.engine.connect() as connection:
            return list(await connection.execute(sa.text(statement)))

    async def _all_ended(self) -> bool:
        """Return whether nothing is left to do. Ended schedules, which remain, are ignored."""
        waiting = "SELECT count(*) FROM schedules WHERE next_fire_time IS NOT NULL"
        left = f"SELECT (SELECT count(*) FROM jobs) + ({waiting})"
        return bool((await self.rows(left))[0][0] == 0)

    async def _until_ended(self, seconds: float) -> None:
        assert await serving.eventually(self._all_ended, seconds, 0.02), "not all jobs ended"

    async def tasks(self, kind: str, count: int, seconds: float) -> serving.Answer:
        job = jobs.noop if kind == "async" else jobs.noop_def
        await self._add(self.scheduler.add_job(job, args=[number]) for number in range(count))
        await self._until_ended(seconds)
        return {}

    async def _add(self, adding: Iterable[Awaitable[Any]]) -> None:
        """Add jobs or schedules: several at a time, but one by one on SQLite (one writer)."""
        await serving.gathered(adding, 20 if self.database else 1)

    async def chain(self, hops: int, seconds: float) -> serving.Answer:
        began = time.monotonic()
        await self.scheduler.add_job(jobs.hop, args=[hops])
        await self._until_ended(seconds)
        return {"seconds": time.monotonic() - began}

    async def _schedule(self, dues: list[float]) -> None:
        await self._add(
            self.scheduler.add_schedule(
                jobs.due, DateTrigger(datetime.fromtimestamp(instant, UTC)), args=[instant]
            )
            for instant in dues
        )

    async def waits(self, count: int, seconds: float, far: bool = False) -> serving.Answer:
        self.due = time.time() + (86_400.0 if far else self.patience * (12.0 + count / 80))
        began = time.monotonic()
        await self._schedule([self.due] * count)
        took = time.monotonic() - began
        assert time.time() < self.due, "due before all were handed over"
        return {"seconds": took}

    async def waits_end(self, seconds: float) -> serving.Answer:
        assert time.time() < self.due, "due before the end was awaited"
        await asyncio.sleep(self.due - time.time())
        await self._until_ended(seconds)
        return {"seconds": time.time() - self.due}

    async def lateness(self, count: int, per_second: float, seconds: float) -> serving.Answer:
        jobs.late_ms.clear()
        first = time.time() + self.patience * (3.0 + count / 60)
        await self._schedule([first + number / per_second for number in range(count)])
        assert time.time() < first, "due before all were handed over"
        await serving.eventually(lambda: len(jobs.late_ms) >= count, seconds)
        return {"late_ms": list(jobs.late_ms)}

    async def flight(self, count: int, ledger: str, seconds: float) -> serving.Answer:
        numbers = {}
        for number in range(count):
            job = await self.scheduler.add_job(jobs.in_flight, args=[number, ledger])
            numbers[job.hex] = number
        (self.folder / "numbers").write_text(json.dumps(numbers))
        return {}

    async def again(self, seconds: float) -> serving.Answer:
        """Add a job each second.

        Only such an event makes the scheduler look for the jobs of a dead scheduler.
        """

        async def wake() -> None:
            while True:
                await self.scheduler.add_job(jobs.noop, args=[0])
                await asyncio.sleep(1.0)

        self.waking = asyncio.create_task(wake())
        return {}

    async def recorded(self) -> list[int]:
        numbers = json.loads((self.folder / "numbers").read_text())
        left = {UUID(str(row[0])).hex for row in await self.rows("SELECT id FROM jobs")}
        return [number for job, number in numbers.items() if job not in left]

    async def immediate(self, count: int, seconds: float) -> serving.Answer:
        jobs.late_ms.clear()
        await self._schedule([time.time() - 1.0] * count)
        await serving.eventually(self._all_ended, min(20.0, seconds), 0.1)
        return {"ended": len(jobs.late_ms)}


if __name__ == "__main__":
    serving.main(WithAPScheduler)
