"""One worker process of procrastinate."""

from __future__ import annotations

import asyncio
import sys

from procrastinate_tasks import STALLED_SECONDS, app

POLLING_SECONDS = 0.1
HEARTBEAT_SECONDS = 0.5


async def main(concurrency: int) -> None:
    """Work until the process is stopped."""
    async with app.open_async():
        await app.run_worker_async(
            queues=["work"],
            concurrency=concurrency,
            fetch_job_polling_interval=POLLING_SECONDS,
            update_heartbeat_interval=HEARTBEAT_SECONDS,
            stalled_worker_timeout=STALLED_SECONDS,
        )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
