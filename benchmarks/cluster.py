"""Two daemons on one PostgreSQL database: how soon the standby takes over, and what it costs.

Claims under test, with 100 DAG files and 100 running tasks: after ``kill -9`` of the active daemon,
the first of these tasks runs again within 2.0 s (p50) and 3.5 s (p99); after SIGSTOP within 3.6 s
(p50); 10,000 waits have their triggers again within 5 s. With ``ha.enabled``, a daemon runs 0.98
times as many no-op tasks per second as without; an idle daemon, with its sessions, uses at most 0.5
% of a core.

Method: real daemons at ``durability=full`` and a private PostgreSQL server whose commits wait for
the disk. In each round, one daemon is killed or stopped. The other one is observed by its row in
the database, its health, and the file to which each task appends a line when it begins. Seconds
count from the fault. Then the first daemon is started again and stands by. Waits are resumed in the
order of their rows, so the last one resumes once all triggers run. The rates of two daemons, with
``ha.enabled`` and without, are measured alternately; the figure is the median of the ratios. Idle
processor time is that of all processes of a daemon, plus that of its sessions at the server, half
of which counts for each of two daemons on one database. Statements are counted in the log of the
server.

    python -m benchmarks.cluster --kills 20 --stops 5
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec
import psutil

from benchmarks.daemon import eventually, fsync_ms, put
from benchmarks.harness import Figure, command, median, percentiles, report
from benchmarks.nodes import NodeProcess
from benchmarks.waiting import TASK_DEFERRED
from tests.postgres_server import PostgresServer, private_postgres

DAGS = Path(__file__).parent / "dags"
FULL = {
    "kills": 20,
    "stops": 5,
    "handovers": 5,
    "files": 100,
    "running": 100,
    "waits": 10_000,
    "wait_rounds": 3,
    "tasks": 10_000,
    "pairs": 9,
    "idle_seconds": 20.0,
}
TINY = {
    "kills": 1,
    "stops": 1,
    "handovers": 1,
    "files": 2,
    "running": 2,
    "waits": 20,
    "wait_rounds": 1,
    "tasks": 500,
    "pairs": 1,
    "idle_seconds": 6.0,
}

LOOK_SECONDS = 0.005
SETTLE_SECONDS = 1.0  # for a node to stand by and start its child processes
LEAD_SECONDS = 2.0
PATIENCE_SECONDS = 180.0
_STATEMENT = re.compile(r"^(\w+)\|aioflow[^|]*\|LOG:  (?:execute|statement)", re.MULTILINE)

SLEEPERS = """
import asyncio, time
from aioflow import dag, task

@task
def numbers(count: int) -> list[int]:
    return list(range(count))

@task
async def sleeper(number: int, file: str) -> None:
    with open(file, "a") as begun:
        begun.write(f"{time.time()}\\n")
    await asyncio.sleep(3_600)

@dag
def sleepers(count: int, file: str) -> None:
    sleeper.partial(file=file).expand(number=numbers(count))
"""

OTHER = """
from aioflow import dag, task

@task
def short() -> None:
    return None

@dag(dag_id="other_{number}")
def other() -> None:
    short()
"""


class Takeover(NamedTuple):
    """Seconds from the fault of the active daemon to each event.

    Attributes:
        claimed: The standby has claimed the database.
        committed: The standby has made a commit.
        begun: The first task runs again; 0 if none was running.
        ready: The standby is ready.
    """

    claimed: float
    committed: float
    begun: float
    ready: float


class Database:
    """Reads a database over its own connection."""

    def __init__(self, runner: asyncio.Runner, url: str) -> None:
        self._runner = runner
        self._connection: Any = runner.run(asyncpg.connect(url))

    def ask(self, sql: str, *values: object) -> list[Any]:
        """Return the rows of a statement."""
        return [tuple(row) for row in self._runner.run(self._connection.fetch(sql, *values))]

    def close(self) -> None:
        """Close the connection."""
        self._runner.run(self._connection.close())


class Bench:
    """Two nodes of a cluster, and a daemon without ``ha.enabled`` on another database."""

    def __init__(self, folder: Path, server: PostgresServer, runner: asyncio.Runner) -> None:
        self.folder = folder
        self.server = server
        self.database = Database(runner, server.url)
        self.database.ask("CREATE DATABASE alone")
        self.database_alone = Database(runner, server.url_of("alone"))
        dags = folder / "dags"
        put(dags / "sleepers.py", SLEEPERS)
        flags = ("--dags", str(DAGS), "--cpu-slots", "2", "--trigger-capacity", "200000")
        self.active, self.standby = (
            NodeProcess(folder, name, dags, server.url, flags=flags) for name in ("a", "b")
        )
        self.alone = NodeProcess(
            folder, "alone", dags, server.url_of("alone"), flags=flags, is_alone=True
        )

    @property
    def daemons(self) -> tuple[NodeProcess, NodeProcess, NodeProcess]:
        """All three daemons."""
        return self.active, self.standby, self.alone

    def close(self) -> None:
        """Kill the daemons that are alive, and close the connections."""
        for daemon in self.daemons:
            if daemon.is_alive:
                daemon.go_on()
                daemon.kill(whole_tree=True)
        self.database.close()
        self.database_alone.close()

    def start_standby(self) -> None:
        """Start the second node, and wait until it stands by, with all its processes."""
        self.standby.launch()
        asked = "SELECT state FROM node WHERE name = $1"
        eventually(
            lambda: self.database.ask(asked, self.standby.name) == [(0,)],
            PATIENCE_SECONDS,
            self.words,
        )
        eventually(lambda: self.standby.health("ready") == 200, PATIENCE_SECONDS, self.words)
        time.sleep(SETTLE_SECONDS)

    def words(self) -> str:
        """Return the ends of the daemons' logs."""
        return "\n".join(daemon.last_words() for daemon in self.daemons)

    # ── takeovers ───────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        """Kill the active daemon."""
        self.active.process.kill()

    def stop(self) -> None:
        """Stop the active daemon by SIGSTOP."""
        self.active.stand_still()

    def hand_over(self) -> None:
        """Ask the active daemon to end."""
        self.active.process.terminate()

    def round(self, fault: Callable[[], None], *, running: int = 0) -> Takeover:
        """Cause a fault, let the standby take over, and exchange the nodes. Return the times."""
        file = self.folder / f"begun-{time.monotonic_ns()}"
        run_id = ""
        if running:
            run_id = self.active.trigger("sleepers", {"count": running, "file": str(file)})
            eventually(lambda: len(_times(file)) >= running, PATIENCE_SECONDS, self.words)
        found = self._watched(fault, file, running)
        if run_id:
            self.standby.request("POST", f"/api/v1/runs/{run_id}/cancel", status=None)
            self.standby.wait(run_id)
        self.exchange()
        return found

    def exchange(self) -> None:
        """Start the formerly active daemon again; now it stands by."""
        daemon = self.active
        if daemon.is_alive and psutil.Process(daemon.process.pid).status() == "stopped":
            daemon.kill(whole_tree=True)
        daemon.process.wait(60)
        self.active, self.standby = self.standby, daemon
        self.start_standby()

    def _watched(self, fault: Callable[[], None], file: Path, running: int) -> Takeover:
        successor = self.standby
        asked = "SELECT state, commit_no FROM node WHERE name = $1"
        ((_, commit_no),) = self.database.ask(asked, successor.name)
        began, seen = time.time(), dict[str, float]()
        fault()

        def look() -> bool:
            ((state, now_at),) = self.database.ask(asked, successor.name)
            _note(seen, "claimed", is_so=state == 1)
            _note(seen, "committed", is_so=state == 1 and now_at > commit_no)
            if "committed" in seen:
                _note(seen, "ready", is_so=successor.is_ready())
            return "ready" in seen and (not running or len(_times(file)) > running)

        eventually(look, PATIENCE_SECONDS, self.words, look_seconds=LOOK_SECONDS)
        seconds = {name: round(at - began, 3) for name, at in seen.items()}
        begun = round(_times(file)[running] - began, 3) if running else 0.0
        return Takeover(seconds["claimed"], seconds["committed"], begun, seconds["ready"])

    # ── waits ───────────────────────────────────────────────────────────────────────────

    def defer(self, dag_id: str, conf: dict[str, object], total: int, due: float = inf) -> str:
        """Start a run. Wait until ``total`` tasks are deferred in all, or until ``due``."""
        run_id = self.active.trigger(dag_id, conf)
        asked = f"SELECT count(*) FROM task WHERE state = {TASK_DEFERRED}"

        def look() -> bool:
            return self.database.ask(asked) == [(total,)] or time.time() >= due

        eventually(look, PATIENCE_SECONDS + total / 100, self.words)
        return run_id

    def all_hosted_seconds(self, waits: int, lead: float = LEAD_SECONDS) -> float:
        """Kill the active daemon; return the seconds until the last trigger runs again.

        Args:
            lead: Seconds in which the last task has to be deferred. If they are not enough,
                everything
                is repeated with more.
        """
        due = time.time() + lead
        last = self.defer("burst", {"count": 1, "due": due}, waits + 1, due)
        time.sleep(max(0.0, due - 0.05 - time.time()))
        killed = time.time()
        if killed >= due:
            self.active.wait(last)
            return self.all_hosted_seconds(waits, 3 * lead)
        self.kill()
        eventually(self.standby.is_ready, PATIENCE_SECONDS, self.words)
        assert self.standby.wait(last)["state"] == "success"
        resumed = due + self._late_seconds(last)
        self.exchange()
        return resumed - killed

    def _late_seconds(self, run_id: str) -> float:
        ((body,),) = self.database.ask(
            "SELECT result.body FROM result JOIN task USING (task_no) JOIN run ON"
            " run.run_no = task.run_no WHERE run.run_id = $1 AND task.map_index = 0",
            run_id,
        )
        return msgspec.msgpack.decode(body, type=float) / 1000

    # ── costs ───────────────────────────────────────────────────────────────────────────

    def rate(self, daemon: NodeProcess, tasks: int) -> float:
        """Run a fan-out; return its tasks per second, according to its rows."""
        run_id = daemon.trigger("fan_async", {"count": tasks})
        daemon.wait(run_id)
        database = self.database_alone if daemon is self.alone else self.database
        ((first, last),) = database.ask(
            "SELECT min(task.started_at), max(task.ended_at) FROM task JOIN run USING (run_no)"
            " WHERE run.run_id = $1 AND task.map_index >= 0",
            run_id,
        )
        return tasks / ((last - first) / 1e6)

    def rates(self, tasks: int, pairs: int) -> tuple[list[float], list[float]]:
        """Measure the active node and the daemon without ``ha.enabled`` alternately."""
        with_ha, without = list[float](), list[float]()
        for daemon in (self.active, self.alone):
            self.rate(daemon, min(500, tasks))
        for pair in range(pairs):
            both = ((self.active, with_ha), (self.alone, without))
            for daemon, into in both if pair % 2 else both[::-1]:
                into.append(self.rate(daemon, tasks))
        return with_ha, without

    def idle_percent(self, seconds: float) -> dict[str, float]:
        """Return the processor time of each idle daemon, with its sessions, in percent."""
        before = self._spent()
        time.sleep(seconds)
        return {
            name: round(100 * (spent - before[name]) / seconds, 2)
            for name, spent in self._spent().items()
        }

    def _spent(self) -> dict[str, float]:
        """Return the processor time of each daemon, with its share of that of the sessions."""
        spent = {}
        for database, daemons in (
            ("postgres", (self.active, self.standby)),
            ("alone", (self.alone,)),
        ):
            sessions = self._sessions_seconds(database) / len(daemons)
            for daemon in daemons:
                spent[daemon.name] = sum(map(_cpu_seconds, daemon.tree())) + sessions
        return spent

    def _sessions_seconds(self, database: str) -> float:
        rows = self.database.ask(
            "SELECT pid FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE $2",
            *(database, "aioflow%"),
        )
        return sum(_cpu_seconds(psutil.Process(pid)) for (pid,) in rows if psutil.pid_exists(pid))

    def statements(self, seconds: float) -> dict[str, float]:
        """Return how many statements idle daemons execute per second, by database."""
        self._configure("log_statement = 'all'", "log_line_prefix = '%d|%a|'")
        time.sleep(SETTLE_SECONDS)
        size = self.server.log.stat().st_size
        time.sleep(seconds)
        logged = self.server.log.read_bytes()[size:].decode(errors="replace")
        self._configure("log_statement = 'none'")
        found = Counter(_STATEMENT.findall(logged))
        return {database: round(count / seconds, 1) for database, count in found.items()}

    def _configure(self, *settings: str) -> None:
        for setting in settings:
            self.database.ask(f"ALTER SYSTEM SET {setting}")
        self.database.ask("SELECT pg_reload_conf()")


def _times(file: Path) -> list[float]:
    """Return the times at which tasks began. An incomplete last line is ignored."""
    text = file.read_text() if file.exists() else ""
    return [float(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _note(seen: dict[str, float], name: str, *, is_so: bool) -> None:
    if is_so:
        seen.setdefault(name, time.time())


def _cpu_seconds(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return float(sum(process.cpu_times()[:2]))
    return 0.0


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """Start the server and prepare the daemons, without starting them."""
    with private_postgres(is_durable=True) as server, asyncio.Runner() as runner:
        found = Bench(folder, server, runner)
        try:
            yield found
        finally:
            found.close()


def measure(
    folder: Path,
    *,
    kills: int,
    stops: int,
    handovers: int,
    files: int,
    running: int,
    waits: int,
    wait_rounds: int,
    tasks: int,
    pairs: int,
    idle_seconds: float,
) -> dict[str, Any]:
    """Measure the costs, then the takeovers."""
    fsync = fsync_ms(folder)
    for number in range(files):
        put(folder / "dags" / f"other_{number}.py", OTHER.format(number=number))
    with bench(folder) as of:
        of.active.start(PATIENCE_SECONDS)
        of.alone.start(PATIENCE_SECONDS)
        with_ha, without = of.rates(tasks, pairs)
        of.start_standby()
        idle = of.idle_percent(idle_seconds)
        statements = of.statements(idle_seconds / 2)
        of.alone.stop()
        killed = [of.round(of.kill, running=running) for _ in range(kills)]
        stopped = [of.round(of.stop, running=running) for _ in range(stops)]
        handed_over = [of.round(of.hand_over) for _ in range(handovers)]
        waiting = of.defer("waits", {"count": waits}, waits)
        hosted = [of.all_hosted_seconds(waits) for _ in range(wait_rounds)]
        of.active.request("POST", f"/api/v1/runs/{waiting}/cancel", status=None)
    ratio = median([one / other for one, other in zip(with_ha, without, strict=True)])
    figures = [
        *_takeover_figures("kill -9", killed, {"p50": 2.0, "p99": 3.5}),
        *_takeover_figures("SIGSTOP", stopped, {"p50": 3.6}),
        Figure(
            "SIGTERM to ready at the standby, p50",
            percentiles([one.ready for one in handed_over])["p50"],
            "s",
        ),
        Figure(
            f"kill -9 to all of {waits:,} waits hosted again",
            round(median(hosted), 2),
            "s",
            at_most=5.0,
        ),
        Figure(
            "no-op tasks with ha.enabled",
            round(ratio, 3),
            "of the rate without",
            1.0,
            "the same daemon with ha.enabled off, by turns",
            at_least=0.98,
        ),
        *(
            Figure(
                f"idle processor time, {name}",
                idle[daemon],
                "% of a core",
                idle["alone"],
                "the same daemon with ha.enabled off, at the same time",
                at_most=0.5,
            )
            for name, daemon in (("active", "a"), ("standby", "b"))
        ),
        Figure(
            "statements of an idle node",
            statements.get("postgres", 0.0) / 2,
            "per s",
            statements.get("alone", 0.0),
            "the same daemon with ha.enabled off, at the same time",
        ),
    ]
    return report(
        "cluster",
        figures=figures,
        files=files,
        running=running,
        waits=waits,
        tasks=tasks,
        durability="full",
        fsync_ms=fsync,
        all_kills=[one._asdict() for one in killed],
        all_stops=[one._asdict() for one in stopped],
        all_handovers=[one._asdict() for one in handed_over],
        all_hosted=[round(seconds, 3) for seconds in hosted],
        all_with_ha=[round(rate) for rate in with_ha],
        all_without=[round(rate) for rate in without],
    )


def _takeover_figures(
    fault: str, rounds: Sequence[Takeover], claims: dict[str, float]
) -> list[Figure]:
    begun = percentiles([one.begun for one in rounds])
    ready = percentiles([one.ready for one in rounds])
    figures = [
        Figure(f"{fault} to the first task again, {which}", begun[which], "s", at_most=most)
        for which, most in claims.items()
    ]
    return [*figures, Figure(f"{fault} to ready at the standby, p50", ready["p50"], "s")]


if __name__ == "__main__":
    command(__doc__, measure, FULL)
