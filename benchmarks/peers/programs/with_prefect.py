"""The work as a user of Prefect 3 writes it: a server in its own process, the flow in this one."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import serving


class WithPrefect(serving.Program):
    """The server, and the process that runs flows."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        port = serving.free_port()
        self.url = f"http://127.0.0.1:{port}/api"
        self.command = ["server", "start", "--host", "127.0.0.1", "--port", str(port)]
        os.environ.update(
            PREFECT_HOME=str(self.folder / "prefect"),
            PREFECT_API_URL=self.url,
            PREFECT_LOGGING_LEVEL="ERROR",
            PREFECT_LOGGING_TO_API_ENABLED="false",
            PREFECT_SERVER_ANALYTICS_ENABLED="false",
            PREFECT_CLI_PROMPT="false",
            PREFECT_TASKS_DEFAULT_NO_CACHE="true",
            PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED="false",
            PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE="500",
            PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE="20",
            PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE="20",
            PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL="1",
            DO_NOT_TRACK="1",
        )
        self.flows: Any = None

    async def start(self) -> serving.Answer:
        prefect = Path(sys.executable).with_name("prefect")
        self._run_server(prefect)
        assert await serving.eventually(self._is_healthy, 80 * self.patience, 0.05), (
            "the server is not healthy"
        )
        import prefect_flows

        self.flows = prefect_flows
        return {"resident": [self.server.pid]}

    def _run_server(self, prefect: Path) -> None:
        self.server = subprocess.Popen([prefect, *self.command], stdin=subprocess.DEVNULL)

    def _is_healthy(self) -> bool:
        return serving.is_up(f"{self.url}/health")

    async def stop(self) -> None:
        await serving.end([self.server])

    def _recorded(self, flow_run: str) -> int:
        """Return how many tasks of a flow run are completed according to the server."""
        body = {
            "flow_runs": {"id": {"any_": [flow_run]}},
            "task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}},
        }
        request = urllib.request.Request(
            f"{self.url}/task_runs/count",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.read())

    async def _until_recorded(self, flow_run: str, count: int, seconds: float) -> None:
        async def look() -> bool:
            return await asyncio.to_thread(self._recorded, flow_run) >= count

        assert await serving.eventually(look, seconds, 0.05), "not all states were recorded"

    async def tasks(self, kind: str, count: int, seconds: float) -> serving.Answer:
        flow = self.flows.many if kind == "async" else self.flows.many_def
        flow_run = await flow(count)
        await self._until_recorded(flow_run, count, seconds)
        return {}

    async def chain(self, hops: int, seconds: float) -> serving.Answer:
        began = time.monotonic()
        flow_run = await self.flows.chain(hops)
        await self._until_recorded(flow_run, hops, seconds)
        return {"seconds": time.monotonic() - began}

    async def fan(self, count: int, seconds: float) -> serving.Answer:
        began = time.monotonic()
        flow_run, total = await self.flows.fan(count)
        await self._until_recorded(flow_run, count + 1, seconds)
        return {"seconds": time.monotonic() - began, "total": total}

    async def flight(self, count: int, ledger: str, seconds: float) -> serving.Answer:
        (self.folder / "count").write_text(str(count))
        self.running = asyncio.create_task(self.flows.flight(count, ledger))
        return {}

    async def again(self, seconds: float) -> serving.Answer:
        count = int((self.folder / "count").read_text())
        ledger = str(self.folder / "ledger")
        self.running = asyncio.create_task(self.flows.flight(count, ledger))
        return {}

    async def recorded(self) -> list[int]:
        """Return the numbers of the tasks whose final state the server has recorded."""
        statement = (
            "SELECT name FROM task_run WHERE state_type = 'COMPLETED' AND name LIKE 'flight-%'"
        )
        if self.database:
            import asyncpg

            connection = await asyncpg.connect(self.database)
            rows = [tuple(row) for row in await connection.fetch(statement)]
            await connection.close()
        else:
            database = sqlite3.connect(self.folder / "prefect" / "prefect.db")
            rows = database.execute(statement).fetchall()
            database.close()
        return sorted({int(name.rpartition("-")[2]) for (name,) in rows})


if __name__ == "__main__":
    serving.main(WithPrefect)
