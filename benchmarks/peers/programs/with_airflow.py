"""The work as a user of Airflow writes it: services in their own processes, and a client."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psycopg2
import serving

PARALLELISM = 16
SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")
DAGS = {"fan_async", "fan_def", "fan_in", "hops_2", "hops_5", "hops_40", "flight", "late"}


class WithAirflow(serving.Program):
    """The services, and a client."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        port = serving.free_port()
        self.base = f"http://localhost:{port}"
        here = Path(__file__).parent
        settings = {
            "CORE__DAGS_FOLDER": here / "airflow_dags",
            "CORE__LOAD_EXAMPLES": False,
            "CORE__EXECUTOR": "LocalExecutor",
            "CORE__PARALLELISM": PARALLELISM,
            "CORE__MAX_MAP_LENGTH": 20_000,
            "CORE__DEFAULT_POOL_TASK_SLOT_COUNT": 20_000,
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": True,
            "CORE__EXECUTION_API_SERVER_URL": f"{self.base}/execution/",
            "TRIGGERER__CAPACITY": 20_000,
            "API__WORKERS": 1,
            "API__PORT": port,
            "API__BASE_URL": self.base,
            "LOGGING__LOGGING_LEVEL": "WARNING",
            "SCHEDULER__MAX_TIS_PER_QUERY": 512,
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.1,
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 3600,
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 20,
            "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 10,
            "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": 10,
            "DATABASE__SQL_ALCHEMY_CONN": self.database.replace(
                "postgresql://", "postgresql+psycopg2://"
            ),
        }
        os.environ.update({f"AIRFLOW__{name}": str(value) for name, value in settings.items()})
        os.environ["AIRFLOW_HOME"] = str(self.folder / "airflow")
        os.environ["PYTHONPATH"] = str(here)
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.services: list[subprocess.Popen[bytes]] = []
        self.connection: Any = None
        self.began = 0.0
        self.due = 0.0
        self.run_id = ""
        self.handed_over = 0

    # ── life cycle ──────────────────────────────────────────────────────────────────────

    async def start(self) -> serving.Answer:
        if not self.rows("SELECT to_regclass('dag_run') IS NOT NULL")[0][0]:
            migrate = await asyncio.create_subprocess_exec("airflow", "db", "migrate")
            assert await migrate.wait() == 0
        self._run_services()
        is_ready = await serving.eventually(self._is_ready, 85 * self.patience, 0.1)
        assert is_ready, "not ready"
        self.token = self._request("GET", "/auth/token")["access_token"]
        return {"resident": [service.pid for service in self.services]}

    def _run_services(self) -> None:
        self.began = time.time()
        for name in SERVICES:
            command = [str(Path(sys.executable).with_name("airflow")), name]
            self.services.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))

    def _is_ready(self) -> bool:
        try:
            self._request("GET", "/api/v2/version")
        except OSError:
            return False
        jobs = "SELECT count(DISTINCT job_type) FROM job WHERE state = 'running' AND start_date >"
        ((running,),) = self.rows(f"{jobs} to_timestamp(%s)", self.began)
        dags = {name for (name,) in self.rows("SELECT dag_id FROM dag")}
        return int(running) >= len(SERVICES) - 1 and dags >= DAGS

    async def stop(self) -> None:
        await serving.end(self.services)

    def rows(self, statement: str, *arguments: Any) -> list[Any]:
        if self.connection is None:  # one for all polls: each costs the server a process
            self.connection = psycopg2.connect(self.database)
            self.connection.autocommit = True
        with self.connection.cursor() as cursor:
            cursor.execute(statement, arguments)
            return list(cursor.fetchall())

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        if hasattr(self, "token"):
            request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())

    # ── work ────────────────────────────────────────────────────────────────────────────

    def _trigger(self, dag_id: str, **conf: Any) -> str:
        body = {"logical_date": None, "conf": conf}
        return str(self._request("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    async def _until_ended(self, run_id: str, seconds: float) -> None:
        def state() -> str:
            ((found,),) = self.rows("SELECT state FROM dag_run WHERE run_id = %s", run_id)
            return str(found) if found in {"success", "failed"} else ""

        found = await serving.eventually(state, seconds, 0.1)
        assert found == "success", found or "not ended"

    async def _run(self, dag_id: str, seconds: float, **conf: Any) -> tuple[str, float]:
        began = time.monotonic()
        run_id = self._trigger(dag_id, **conf)
        await self._until_ended(run_id, seconds)
        return run_id, time.monotonic() - began

    async def tasks(self, kind: str, count: int, seconds: float) -> serving.Answer:
        await self._run(f"fan_{kind}", seconds, count=count)
        return {}

    async def chain(self, hops: int, seconds: float) -> serving.Answer:
        return {"seconds": (await self._run(f"hops_{hops}", seconds))[1]}

    async def fan(self, count: int, seconds: float) -> serving.Answer:
        run_id, took = await self._run("fan_in", seconds, count=count)
        path = f"/api/v2/dags/fan_in/dagRuns/{run_id}/taskInstances/total/xcomEntries/return_value"
        return {"seconds": took, "total": int(self._request("GET", path)["value"])}

    def _deferred(self) -> int:
        statement = "SELECT count(*) FROM trigger WHERE triggerer_id IS NOT NULL"
        ((count,),) = self.rows(statement)
        return int(count)

    async def waits(self, count: int, seconds: float, far: bool = False) -> serving.Answer:
        self.due = time.time() + (86_400.0 if far else self.patience * (10.0 + count / 6))
        began = time.monotonic()
        file = str(self.folder / "late")
        self.run_id = self._trigger("late", dues=[self.due] * count, file=file)
        self.handed_over += count
        await serving.eventually(lambda: self._deferred() >= self.handed_over, seconds, 0.1)
        took = time.monotonic() - began
        assert time.time() < self.due, "due before all were handed over"
        return {"seconds": took}

    async def waits_end(self, seconds: float) -> serving.Answer:
        assert time.time() < self.due, "due before the end was awaited"
        await asyncio.sleep(self.due - time.time())
        await self._until_ended(self.run_id, seconds)
        return {"seconds": time.time() - self.due}

    async def lateness(self, count: int, per_second: float, seconds: float) -> serving.Answer:
        file = self.folder / f"late-{time.time()}"
        first = time.time() + self.patience * (8.0 + count / 6)
        dues = [first + number / per_second for number in range(count)]
        await self._run("late", seconds, dues=dues, file=str(file))
        return {"late_ms": [float(line) for line in file.read_text().splitlines()]}

    async def flight(self, count: int, ledger: str, seconds: float) -> serving.Answer:
        self._trigger("flight", count=count, ledger=ledger)
        return {}

    async def again(self, seconds: float) -> serving.Answer:
        return {}

    async def recorded(self) -> list[int]:
        rows = self.rows(
            "SELECT map_index FROM task_instance WHERE dag_id = 'flight' AND state = 'success'"
            " AND task_id = 'in_flight'"
        )
        return [int(index) for (index,) in rows]

    async def immediate(self, count: int, seconds: float) -> serving.Answer:
        file = self.folder / f"immediate-{time.time()}"
        run_id = self._trigger("late", dues=[time.time() - 1.0] * count, file=str(file))
        ended = "SELECT 1 FROM dag_run WHERE run_id = %s AND end_date IS NOT NULL"
        await serving.eventually(lambda: self.rows(ended, run_id), seconds - 5.0, 0.2)
        successes = (
            "SELECT count(*) FROM task_instance WHERE run_id = %s AND task_id = 'late'"
            " AND state = 'success'"
        )
        return {"ended": int(self.rows(successes, run_id)[0][0])}


if __name__ == "__main__":
    serving.main(WithAirflow)
