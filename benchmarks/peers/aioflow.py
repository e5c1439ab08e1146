"""aioflow itself: a daemon of this checkout, used by its socket and measured by its database."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.cluster import Database
from benchmarks.daemon import TASK_SUCCESS, DaemonProcess
from benchmarks.peers.system import Start, System, Variant, wait_until
from benchmarks.waiting import TASK_DEFERRED

__all__ = ("SYSTEM", "DaemonInstance")

DAGS = Path(__file__).parent / "dags"
MORE_DAGS = Path(__file__).parents[1] / "dags"

FAR_AWAY = 30 * 86_400.0

SYSTEM = System(
    name="aioflow",
    title="aioflow",
    packages=(),
    program="",
    variants=(
        Variant("SQLite", "survives a power cut: an fsync per commit (durability full)", "SQLite"),
        Variant(
            "SQLite, normal",
            "survives kill -9, not a power cut: no fsync per commit (durability normal)",
            "SQLite, normal",
            {"durability": "normal"},
        ),
        Variant(
            "PostgreSQL", "survives a power cut: synchronous_commit and fsync on", "PostgreSQL"
        ),
    ),
    settings=(
        "Two slots for `def` tasks (`--cpu-slots 2`); everything else is the default.",
        (
            "The client is a request over the Unix socket; its processes are the daemon and its"
            " children."
        ),
    ),
    written={
        "tasks_async": "a mapped task of `async def`; the rate is from the request to the last"
        " success in the database, so it includes the task that returns the list",
        "start_ready": "until the API answers and the DAG files have been read",
        "chain": "40 `def` tasks, each in a worker process",
        "waits": "an operator that defers a `DateTimeTrigger` and is resumed in a `def` method of a"
        " worker process",
        "kill": "a mapped task of `async def`, 500 in flight",
    },
)


class DaemonInstance:
    """One daemon on a home of its own."""

    def __init__(self, variant: Variant, start: Start) -> None:
        self._start = start
        start.folder.mkdir(parents=True, exist_ok=True)
        flags = ("--dags", str(MORE_DAGS), "--cpu-slots", "2")
        database = start.database or None
        self._daemon = DaemonProcess(start.folder / "home", DAGS, db=database, flags=flags)
        durability = str(variant.options.get("durability", "full"))
        self._daemon.environment = {**os.environ, "AIOFLOW_DB__DURABILITY": durability}
        self._runner = asyncio.Runner()
        self._database: Database | None = None
        self._until = time.monotonic() + start.seconds
        self._waiting = ""
        self._due = 0.0

    # ── life cycle ──────────────────────────────────────────────────────────────────────

    def start(self) -> float:
        """Start the daemon and wait until it is ready and has read the DAG files."""
        began = time.monotonic()
        try:
            self._daemon.start(timeout=self._left())
            self._daemon.knows("flight", timeout=self._left())
        except BaseException:
            self.kill()
            raise
        return time.monotonic() - began

    def processes(self) -> list[psutil.Process]:
        """Return the daemon and its descendants."""
        return self._daemon.tree()

    def resident(self) -> list[psutil.Process]:
        """Return the daemon and its descendants."""
        return self._daemon.tree()

    def kill(self) -> None:
        """``kill -9`` the daemon and its descendants."""
        if self._daemon.is_alive:
            self._daemon.kill(whole_tree=True)

    def stop(self) -> None:
        """Stop the daemon, and close the connection to its database."""
        self._daemon.close()
        if self._database is not None:
            self._database.close()
            self._database = None
        self._runner.close()

    # ── work ────────────────────────────────────────────────────────────────────────────

    def ask(self, work: str, **size: Any) -> dict[str, Any]:
        """Do some work."""
        answer: dict[str, Any] = getattr(self, f"_{work}")(**size)
        return answer

    def _tasks(self, kind: str, count: int) -> dict[str, Any]:
        return {"seconds": self._seconds(f"fan_{kind}", {"count": count})}

    def _chain(self, hops: int) -> dict[str, Any]:
        return {"seconds": self._seconds(f"hops_{hops}", None)}

    def _fan(self, count: int) -> dict[str, Any]:
        run_id, seconds = self._run("fan_in_async", {"count": count})
        last = "AND task.map_index < 0 ORDER BY task.ended_at DESC LIMIT 1"
        ((total,),) = self._fetch(f"{_RESULTS} {last}", run_id)
        return {"seconds": seconds, "total": msgspec.msgpack.decode(total)}

    def _waits(self, count: int, *, far: bool = False) -> dict[str, Any]:
        patience = self._start.patience
        self._due = time.time() + (FAR_AWAY if far else patience * (12.0 + count / 1_000))
        run_id, began = self._request("burst", {"count": count, "due": self._due})
        self._until_true(lambda: self._count(run_id, TASK_DEFERRED) == count)
        seconds = time.monotonic() - began
        assert time.time() < self._due, "due before all were handed over"
        self._waiting = run_id
        return {"seconds": seconds}

    def _waits_end(self) -> dict[str, Any]:
        assert time.time() < self._due, "due before the end was awaited"
        time.sleep(self._due - time.time())
        self._until_true(lambda: self._has_ended(self._waiting))
        return {"seconds": time.time() - self._due}

    def _lateness(self, count: int, per_second: float) -> dict[str, Any]:
        after = self._start.patience * (2.0 + count / 500)
        conf = {"count": count, "per_second": per_second, "after": after}
        run_id, _ = self._run("lateness", conf)
        rows = self._fetch(f"{_RESULTS} AND task.map_index >= 0", run_id)
        return {"late_ms": [msgspec.msgpack.decode(body) for (body,) in rows]}

    def _flight(self, count: int, ledger: str) -> dict[str, Any]:
        self._request("flight", {"count": count, "ledger": ledger})
        return {}

    def _again(self) -> dict[str, Any]:
        return {}

    def _immediate(self, count: int) -> dict[str, Any]:
        run_id, _ = self._run("immediate", {"count": count})
        return {"ended": self._count(run_id, TASK_SUCCESS) - 1}  # the list's task does not count

    def recorded(self) -> list[int]:
        """Return the children with a recorded success."""
        sql = (
            "SELECT map_index FROM task JOIN run USING (run_no) WHERE run.dag_id = 'flight'"
            f" AND task.state = {TASK_SUCCESS} AND map_index >= 0"
        )
        return [int(index) for (index,) in self._fetch(sql)]

    # ── requests and rows ───────────────────────────────────────────────────────────────

    def _request(self, dag_id: str, conf: dict[str, Any] | None) -> tuple[str, float]:
        """Start a run; return its id and the time of the request."""
        self._daemon.knows(dag_id, timeout=self._left())
        began = time.monotonic()
        return self._daemon.trigger(dag_id, conf), began

    def _run(self, dag_id: str, conf: dict[str, Any] | None) -> tuple[str, float]:
        """Start a run and wait for its end; return its id, and the seconds."""
        run_id, began = self._request(dag_id, conf)
        self._until_true(lambda: self._has_ended(run_id))
        seconds = time.monotonic() - began
        state = self._daemon.run(run_id, limit=1)["state"]
        assert state == "success", state
        return run_id, seconds

    def _seconds(self, dag_id: str, conf: dict[str, Any] | None) -> float:
        return self._run(dag_id, conf)[1]

    def _has_ended(self, run_id: str) -> bool:
        return bool(self._fetch("SELECT 1 FROM run WHERE run_id = '{}' AND ended_at > 0", run_id))

    def _count(self, run_id: str, state: int) -> int:
        ((count,),) = self._fetch(f"{_COUNT} AND task.state = {state}", run_id)
        return int(count)

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _until_true(self, look: Callable[[], bool]) -> None:
        wait_until(look, self._left(), growth=0.002)

    def _fetch(self, sql: str, run_id: str = "") -> Sequence[Any]:
        """Read rows over our own connection, with ``run_id`` inserted into the statement.

        This is safe, because the daemon itself returned the id.
        """
        statement = sql.replace("{}", run_id)
        if not self._start.database:
            with self._daemon.database() as database:
                return database.execute(statement).fetchall()
        if self._database is None:  # one for all polls: each costs the server a process
            self._database = Database(self._runner, self._start.database)
        return self._database.ask(statement)


_COUNT = "SELECT count(*) FROM task JOIN run USING (run_no) WHERE run.run_id = '{}'"
_RESULTS = (
    "SELECT result.body FROM result JOIN task USING (task_no) JOIN run ON"
    " run.run_no = task.run_no WHERE run.run_id = '{}'"
)
