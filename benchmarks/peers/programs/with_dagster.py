"""The work as a user of Dagster writes it: services in their own processes, runs in this one."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import serving


class WithDagster(serving.Program):
    """The services, and the process that executes runs."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        home = self.folder / "dagster"
        home.mkdir(exist_ok=True)
        os.environ["DAGSTER_HOME"] = str(home)
        settings: dict[str, Any] = {"telemetry": {"enabled": False}}
        if self.database:
            url = self.database.replace("postgresql://", "postgresql+psycopg2://")
            settings["storage"] = {"postgres": {"postgres_url": url}}
        (home / "dagster.yaml").write_text(json.dumps(settings))
        self.port = serving.free_port()
        self.services: list[subprocess.Popen[bytes]] = []

    async def start(self) -> serving.Answer:
        logging.disable(logging.CRITICAL)
        self._run_services()
        assert await serving.eventually(self._is_ready, 80 * self.patience, 0.05), "not ready"
        import dagster
        import dagster_jobs

        self.jobs = dagster_jobs
        self.instance = dagster.DagsterInstance.get()
        return {"resident": [service.pid for service in self.services]}

    def _run_services(self) -> None:
        file = str(Path(__file__).with_name("dagster_jobs.py"))
        web = ["dagster-webserver", "-h", "127.0.0.1", "-p", str(self.port), "-f", file]
        for program, *words in (web, ["dagster-daemon", "run", "-f", file]):
            command = [str(Path(sys.executable).with_name(program)), *words]
            self.services.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))

    def _is_ready(self) -> bool:
        return serving.is_up(f"http://127.0.0.1:{self.port}/server_info")

    async def stop(self) -> None:
        await serving.end(self.services)

    async def _execute(self, job: Any, count: int | None = None) -> tuple[float, Any]:
        config = {} if count is None else {"ops": {"numbers": {"config": {"count": count}}}}
        began = time.monotonic()
        result = await asyncio.to_thread(
            job.execute_in_process, instance=self.instance, run_config=config
        )
        assert result.success
        return time.monotonic() - began, result

    async def tasks(self, kind: str, count: int, seconds: float) -> serving.Answer:
        await self._execute(self.jobs.many if kind == "async" else self.jobs.many_def, count)
        return {}

    async def chain(self, hops: int, seconds: float) -> serving.Answer:
        return {"seconds": (await self._execute(self.jobs.chain(hops)))[0]}

    async def fan(self, count: int, seconds: float) -> serving.Answer:
        took, result = await self._execute(self.jobs.fan, count)
        return {"seconds": took, "total": result.output_for_node("total")}


if __name__ == "__main__":
    serving.main(WithDagster)
