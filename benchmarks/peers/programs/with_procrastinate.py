"""The work as a user of procrastinate writes it: a client, and workers in their own processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import serving

WORKERS = 2
CONCURRENCY = 50

COUNT = (
    "SELECT count(*) AS n FROM procrastinate_jobs WHERE task_name LIKE '%%.{}' AND status = '{}'"
)


class WithProcrastinate(serving.Program):
    """The client."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        os.environ["PEER_DATABASE"] = self.database
        import procrastinate_tasks

        self.jobs = procrastinate_tasks
        self.app = procrastinate_tasks.app
        self.workers: list[subprocess.Popen[bytes]] = []
        self.due = 0.0
        self.waits_count = 0

    async def start(self) -> serving.Answer:
        await self.app.open_async()
        if not await self._has_schema():
            await self.app.schema_manager.apply_schema_async()
        per_worker = -(-self.in_flight // WORKERS) or CONCURRENCY
        for _ in range(WORKERS):
            self.workers.append(self._worker(per_worker))
        await self.jobs.noop.batch_defer_async(*({"number": n} for n in range(WORKERS)))
        assert await serving.eventually(self._is_working, 80 * self.patience), "no worker begins"
        return {"resident": [worker.pid for worker in self.workers]}

    async def _is_working(self) -> bool:
        rows = await self.rows("SELECT count(*) AS n FROM procrastinate_workers")
        fresh = rows[0]["n"] >= WORKERS
        return fresh and await self.count("noop", "todo") == 0

    def _worker(self, concurrency: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, Path(__file__).with_name("procrastinate_worker.py"), str(concurrency)],
            stdin=subprocess.DEVNULL,
        )

    async def stop(self) -> None:
        await serving.end(self.workers)

    async def rows(self, statement: str) -> list[dict[str, Any]]:
        return list(await self.app.connector.execute_query_all_async(statement))

    async def _has_schema(self) -> bool:
        rows = await self.rows("SELECT to_regclass('procrastinate_jobs') IS NOT NULL AS n")
        return bool(rows[0]["n"])

    async def count(self, task: str, status: str) -> int:
        return int((await self.rows(COUNT.format(task, status)))[0]["n"])

    async def _succeeded(self, task: str, count: int, seconds: float, pause: float = 0.05) -> bool:
        async def look() -> bool:
            return await self.count(task, "succeeded") >= count

        return bool(await serving.eventually(look, seconds, pause))

    async def tasks(self, kind: str, count: int, seconds: float) -> serving.Answer:
        name, job = (
            ("noop", self.jobs.noop) if kind == "async" else ("noop_def", self.jobs.noop_def)
        )
        before = await self.count(name, "succeeded")
        await job.batch_defer_async(*({"number": number} for number in range(count)))
        assert await self._succeeded(name, before + count, seconds)
        return {}

    async def chain(self, hops: int, seconds: float) -> serving.Answer:
        file = self.folder / f"chain-{time.time()}"
        before = await self.count("hop", "succeeded")
        began = time.monotonic()
        await self.jobs.hop.defer_async(left=hops, file=str(file))
        await serving.eventually(file.exists, seconds, 0.001)
        assert await self._succeeded("hop", before + hops, seconds, 0.002)
        return {"seconds": time.monotonic() - began}

    async def waits(self, count: int, seconds: float, far: bool = False) -> serving.Answer:
        self.due = time.time() + (86_400.0 if far else self.patience * (12.0 + count / 1_000))
        self.waits_count = count
        began = time.monotonic()
        await self._wait_until([self.due] * count, self.folder / "due")
        took = time.monotonic() - began
        assert time.time() < self.due, "due before all were handed over"
        return {"seconds": took}

    async def _wait_until(self, dues: list[float], file: Path) -> None:
        """Defer one job per due time. Jobs with the same due time are deferred in one batch."""
        by_instant: dict[float, int] = {}
        for instant in dues:
            by_instant[instant] = by_instant.get(instant, 0) + 1
        for instant, count in by_instant.items():
            moment = datetime.fromtimestamp(instant, UTC)
            job = self.jobs.due.configure(schedule_at=moment)
            kwargs = {"instant": instant, "file": str(file)}
            for first in range(0, count, 1_000):
                await job.batch_defer_async(*[kwargs] * min(1_000, count - first))

    async def waits_end(self, seconds: float) -> serving.Answer:
        assert time.time() < self.due, "due before the end was awaited"
        await asyncio.sleep(self.due - time.time())
        assert await self._succeeded("due", self.waits_count, seconds)
        return {"seconds": time.time() - self.due}

    async def lateness(self, count: int, per_second: float, seconds: float) -> serving.Answer:
        file = self.folder / f"late-{time.time()}"
        first = time.time() + self.patience * (3.0 + count / 300)
        await self._wait_until([first + number / per_second for number in range(count)], file)
        assert time.time() < first, "due before all were handed over"

        def late() -> list[float]:
            text = file.read_text() if file.exists() else ""
            return [float(line) for line in text.splitlines()]

        await serving.eventually(lambda: len(late()) >= count, seconds, 0.1)
        return {"late_ms": late()}

    async def flight(self, count: int, ledger: str, seconds: float) -> serving.Answer:
        kwargs = ({"number": number, "ledger": ledger} for number in range(count))
        await self.jobs.in_flight.batch_defer_async(*kwargs)
        return {}

    async def again(self, seconds: float) -> serving.Answer:
        """Retry the jobs of dead workers from time to time, as the page on stalled jobs shows."""

        async def retry() -> None:
            while True:
                manager = self.app.job_manager
                silence = self.jobs.STALLED_SECONDS
                stalled = await manager.get_stalled_jobs(seconds_since_heartbeat=silence)
                await serving.gathered(manager.retry_job(job) for job in stalled)
                await asyncio.sleep(0.25)

        self.retrying = asyncio.create_task(retry())
        return {}

    async def recorded(self) -> list[int]:
        async with self.app.open_async():
            rows = await self.rows(
                "SELECT args ->> 'number' AS n FROM procrastinate_jobs"
                " WHERE task_name LIKE '%%.in_flight' AND status = 'succeeded'"
            )
        return [int(row["n"]) for row in rows]

    async def immediate(self, count: int, seconds: float) -> serving.Answer:
        job = self.jobs.over.configure(schedule_at=datetime.fromtimestamp(time.time() - 1, UTC))
        await job.batch_defer_async(*({"number": number} for number in range(count)))
        await self._succeeded("over", count, min(20.0, seconds))
        return {"ended": await self.count("over", "succeeded")}


if __name__ == "__main__":
    serving.main(WithProcrastinate)
