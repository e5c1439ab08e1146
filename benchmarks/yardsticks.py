"""Yardsticks: the machine's bare performance at the same work, a lower bound for any design."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import uvloop

from aioflow.model.ids import RunNo, StartNo, TaskNo
from aioflow.protocol.commands import StartTask
from aioflow.protocol.reports import Succeeded
from aioflow.worker.link import BlockingLink, frames
from benchmarks.daemon import DaemonProcess
from benchmarks.harness import median

__all__ = (
    "Written",
    "bare_lateness_ms",
    "bare_start_ms",
    "commit_ms",
    "pipe_per_second",
    "rows_seconds",
    "written_since",
)


class Written(msgspec.Struct, frozen=True):
    """The rows that a daemon wrote in one period: the bodies of its journal, and whole task rows.

    Attributes:
        schema: The statements that create its tables and indexes.
    """

    schema: list[str]
    bodies: list[bytes]
    tasks: list[tuple[object, ...]]

    @property
    def commits(self) -> int:
        """The number of commits."""
        return len(self.bodies)


def written_since(daemon: DaemonProcess, commit_no: int) -> Written:
    """Return the rows that a daemon has written after that commit."""
    with daemon.database() as database:
        schema = [
            sql
            for (sql,) in database.execute(
                "SELECT sql FROM sqlite_master WHERE name IN"
                " ('run', 'task', 'journal', 'task_by_run') OR tbl_name = 'task'"
                " AND type = 'index' AND sql NOT NULL AND name != 'task_by_run'"
            )
        ]
        bodies = [
            body
            for (body,) in database.execute(
                "SELECT body FROM journal WHERE commit_no > ? ORDER BY commit_no", (commit_no,)
            )
        ]
        tasks = database.execute(
            "SELECT * FROM task WHERE run_no = (SELECT max(run_no) FROM run) ORDER BY task_no"
        ).fetchall()
    return Written(schema, bodies, tasks)


def rows_seconds(folder: Path, written: Written) -> float:
    """Write the same task rows and journal in as many durable commits with bare ``sqlite3``.

    Each row is inserted in one commit and updated to its final state in a later one.
    """
    path = folder / "yardstick.db"
    raw = _database(path)
    for sql in sorted(written.schema, key=lambda sql: not sql.startswith("CREATE TABLE")):
        raw.execute(sql)
    marks = ",".join("?" * len(written.tasks[0])) if written.tasks else ""
    commits, rows = written.commits, written.tasks
    began = time.perf_counter()
    done = changed = 0
    for number, body in enumerate(written.bodies):
        raw.execute("BEGIN IMMEDIATE")
        upto = len(rows) * (number + 1) // commits
        if done < upto:
            raw.executemany(f"INSERT INTO task VALUES ({marks})", rows[done:upto])
        ended = [(row[4], row[5], row[0]) for row in rows[changed:done]]
        raw.executemany("UPDATE task SET state = ?, try_number = ? WHERE task_no = ?", ended)
        changed, done = done, upto
        raw.execute("INSERT INTO journal VALUES (?, 0, ?, 1, ?)", (number + 1, body, number + 1))
        raw.execute("COMMIT")
    took = time.perf_counter() - began
    raw.close()
    path.unlink()
    return took


def _database(path: Path) -> sqlite3.Connection:
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    return raw


def commit_ms(folder: Path, rounds: int = 200) -> float:
    """Return the median time of a durable commit of one small row with bare ``sqlite3``, in ms."""
    path = folder / "commit.db"
    raw = _database(path)
    raw.execute("CREATE TABLE one (number INTEGER PRIMARY KEY, text TEXT) STRICT")
    took = []
    for number in range(rounds):
        began = time.perf_counter()
        raw.execute("INSERT INTO one VALUES (?, 'x')", (number,))
        took.append(time.perf_counter() - began)
    raw.close()
    path.unlink()
    return round(median(took) * 1000, 3)


def pipe_per_second(messages: int, *, per_frame: int = 16) -> float:
    """Return the starts answered per second by two bare processes that use aioflow's frames."""
    near, far = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        near.close()
        _answer(BlockingLink(far), messages, per_frame)
        os._exit(0)
    far.close()
    start = StartTask(RunNo(1), TaskNo(1), StartNo(1), 1, 1, 1)
    reader = near.makefile("rb")
    began = time.perf_counter()
    for _ in range(messages // per_frame):
        for frame in frames([start] * per_frame):
            near.sendall(frame)
        _skip_frame(reader.read)
    took = time.perf_counter() - began
    reader.close()
    near.close()
    os.waitpid(pid, 0)
    return messages // per_frame * per_frame / took


def _answer(link: BlockingLink, messages: int, per_frame: int) -> None:
    for _ in range(messages // per_frame):
        link.send([Succeeded(s.task_no, s.start_no, 1, 2) for s in link.receive()])  # type: ignore[union-attr]


def _skip_frame(read: Callable[[int], bytes]) -> None:
    read(int.from_bytes(read(4), "little"))


_LATE = """
import asyncio, json, sys, time, uvloop

async def main(count, per_second):
    first = time.time() + 0.3 + count / 100_000
    late = []

    async def wait(due):
        await asyncio.sleep(due - time.time())
        late.append(max(0.0, time.time() - due) * 1000)  # its loop knows milliseconds only

    await asyncio.gather(*(wait(first + n / per_second) for n in range(count)))
    print(json.dumps(late))

uvloop.run(main(int(sys.argv[1]), float(sys.argv[2])))
"""


def bare_lateness_ms(count: int, per_second: float) -> list[float]:
    """Return how late bare ``asyncio`` tasks resume if they sleep until the same times, in ms."""
    command = [sys.executable, "-c", _LATE, str(count), str(per_second)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=list[float])


def bare_start_ms(rounds: int = 5) -> float:
    """Return the median life of a bare interpreter with event loop and ``sqlite3``, in ms."""
    code = f"import sqlite3, asyncio, {uvloop.__name__}; asyncio.run(asyncio.sleep(0))"
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        took.append(time.perf_counter() - began)
    return round(median(took) * 1000, 1)
