"""The home that a fault hits, the runs requested from it, and checks from outside the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import itertools
import json
import os
import re
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec

from aioflow.crypto import Vault
from aioflow.processes.orphans import Record, carries_mark, home_mark, read_start_ticks
from aioflow.store import open_store
from aioflow.worker import process_tree
from benchmarks.daemon import DaemonProcess, eventually
from tests.executors.processes import is_alive
from tests.journal_replay import compare_with_replay

__all__ = (
    "DAGS",
    "LENGTHS",
    "TICKS",
    "Begin",
    "Ground",
    "Victim",
    "database_copy",
    "digest",
    "has_ended",
    "wait_for_death",
)

DAGS = Path(__file__).parent / "dags"
TICKS = Path(__file__).parent / "ticks"
LENGTHS = Path(__file__).parent / "lengths"

RECOVERY_SECONDS = 30.0

_NUMBERS = re.compile(r"\d+(\.\d+)?")


class Begin(msgspec.Struct, frozen=True):
    """A line of the ledger: a body began or ended, or a trigger was assigned to a host."""

    what: str
    run_id: str
    task_id: str
    map_index: int
    pid: int
    at_us: int


class Victim(DaemonProcess):
    """A daemon that a fault is inflicted on. Its death is an outcome, not an error."""

    def wrap(self, words: Sequence[str], **environment: str) -> Victim:
        """Prefix the command with another program, and change the environment."""
        self._command = [*words, *self._command]
        if environment:
            self.environment = {**os.environ, **environment}
        return self

    def start(self, timeout: float = 60.0) -> Victim:
        super().start(timeout)
        return self

    def start_or_die(self) -> bool:
        """Start the daemon. Return whether it became ready."""
        try:
            self.start()
        except AssertionError:
            if self.is_alive:
                raise
            return False
        return True

    def children(self, role: str) -> list[int]:
        """Return the living processes of a role, according to the home."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for path in (self.home / "run" / "children").iterdir():
                with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
                    record = msgspec.json.decode(path.read_bytes(), type=Record)
                    if record.role == role and read_start_ticks(record.pid) == record.start_ticks:
                        found.append(record.pid)
        return found

    def child(self, role: str, *, not_in: Sequence[int] = (), timeout: float = 60.0) -> int:
        """Wait for a process of a role. Return its process id."""

        def there() -> int | None:
            return next((pid for pid in self.children(role) if pid not in not_in), None)

        return eventually(there, timeout, lambda: f"no {role}: {self.last_words()}")

    def last_words(self) -> str:
        """Return the end of the daemon's log."""
        return self.log.read_text(errors="replace")[-2000:]

    def log_lines(self) -> int:
        """Return how many lines the daemon has logged."""
        return self.log.read_bytes().count(b"\n")

    def causes(self, since: int) -> Counter[str]:
        """Return how often each message was logged from this line on, ignoring its numbers."""
        said = self.log.read_text(errors="replace").splitlines()[since:]
        return Counter(_NUMBERS.sub("#", _event(line)) for line in said)

    def judge_log(self, since: int, seconds: float) -> Counter[str]:
        """Assert that no cause was logged more than once a second, plus once at the beginning."""
        causes = self.causes(since)
        assert causes, "it said nothing of it"
        cause, times = causes.most_common(1)[0]
        assert times <= seconds + 1, f"{times} times in {seconds:.1f} s: {cause}"
        return causes

    def _is_ready(self) -> bool:
        try:
            return super()._is_ready()
        except http.client.HTTPException:
            return False  # it died in the middle of an answer


class Ground:
    """One home, its ledger, and every run requested from it.

    Attributes:
        acknowledged: For the key of each acknowledged request, the id of the run.
        asked: Keys of all requests, whether acknowledged or not.
    """

    def __init__(self, folder: Path, *, home: Path | None = None) -> None:
        self.folder = folder
        self.home = home or folder / "home"
        self.ledger = folder / "ledger.txt"
        self.acknowledged: dict[str, str] = {}
        self.asked: list[str] = []
        self.begun_again = 0
        self._judged: set[str] = set()
        self._keys = itertools.count(1)

    @property
    def database(self) -> Path:
        """The database file of the home."""
        return self.home / "aioflow.db"

    def daemon(self, *flags: str, dags: Path = DAGS) -> Victim:
        """Return a daemon for the home that is not started yet."""
        return Victim(self.home, dags, flags=("--cpu-slots", "2", *flags))

    # ── asking ──────────────────────────────────────────────────────────────────────────

    def ask(
        self, daemon: Victim, *, key: str | None = None, dag_id: str = "small", **conf: Any
    ) -> str | None:
        """Request a run. Return its id, or ``None`` if there was no successful response.

        With the key of an earlier request, that request is repeated.
        """
        if key is None:
            key = f"ask-{next(self._keys)}"
            self.asked.append(key)
        body = {"conf": {"ledger": str(self.ledger), **conf}, "key": key}
        try:
            status, answer = daemon.request(
                "POST", f"/api/v1/dags/{dag_id}/runs", body, status=None
            )
        except (OSError, http.client.HTTPException):
            return None
        if status not in {200, 201}:
            return None
        run_id = str(answer["run_id"])
        assert self.acknowledged.setdefault(key, run_id) == run_id, "one key, two runs"
        return run_id

    def ask_until_answered(self, daemon: Victim, **conf: Any) -> str:
        """Request a run until the request succeeds: its DAG may not be known yet."""
        key = f"ask-{next(self._keys)}"
        self.asked.append(key)
        return eventually(lambda: self.ask(daemon, key=key, **conf), 30.0, daemon.last_words)

    @contextmanager
    def asking(self, daemon: Victim, **conf: Any) -> Iterator[None]:
        """Request a run while the block is running. The request may succeed or fail."""
        thread = Thread(target=lambda: self.ask(daemon, **conf))
        thread.start()
        try:
            yield
        finally:
            thread.join(90.0)
            assert not thread.is_alive(), "a request was left without an answer"

    def ask_again(self, daemon: Victim, **conf: Any) -> None:
        """Repeat every request that was not acknowledged, as a client would."""
        for key in self.asked:
            if key not in self.acknowledged:
                answered = eventually(lambda key=key: self.ask(daemon, key=key, **conf), 30.0)  # type: ignore[misc]
                assert answered

    # ── judging ─────────────────────────────────────────────────────────────────────────

    def judge(self, daemon: Victim, *, count: int = 8, timeout: float = RECOVERY_SECONDS) -> None:
        """Assert that every acknowledged run ends in the right state, and no work was doubled."""
        for key, run_id in self.acknowledged.items():
            if run_id in self._judged:
                assert daemon.get(f"/api/v1/runs/{run_id}?limit=1", status=None)[0] == 200, key
                continue
            run = daemon.wait(run_id, timeout)
            assert run["state"] == "success", daemon.run(run_id)
            self.judge_run(daemon.run(run_id), count)
            self._judged.add(run_id)
        self.judge_database()

    def judge_run(self, run: Mapping[str, Any], count: int) -> None:
        """Check a run of ``small`` that has ended."""
        assert run["counts"] == {"success": count + 5}, run["counts"]
        tasks = {(task["task_id"], task["map_index"]): task for task in run["tasks"]}
        wanted = sum(number * number for number in range(count)) + 3
        assert tasks["total", -1]["result"] == wanted
        assert tasks["stumble", -1]["try_number"] == 2
        self.judge_ledger(run["run_id"], tasks)
        self.judge_durations(tasks.values())

    def judge_ledger(self, run_id: str, tasks: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
        """Assert that no body started after its recorded success, or more often than allowed."""
        starts = self._starts(run_id, list(tasks))
        begins: dict[tuple[str, int], list[int]] = {}
        for line in self.lines(run_id):
            if line.what == "begin":
                begins.setdefault((line.task_id, line.map_index), []).append(line.at_us)
        for name, moments in begins.items():
            ended = _us(tasks[name]["ended_at"])
            assert max(moments) <= ended, f"{name} begun {max(moments) - ended} us after its end"
            assert len(moments) <= starts[name], (name, moments, starts[name], tasks[name])
            self.begun_again += len(moments) - (2 if name[0] == "stumble" else 1)
        for name in tasks:
            assert name in begins or name[0] == "numbers", f"{name} succeeded and never began"

    def _starts(self, run_id: str, names: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Return how often each task was started, according to the database.

        A start is stored before the body begins. The count of interruptions is not used, because
        any durable progress resets it.
        """
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)
        try:
            rows = connection.execute(
                "SELECT task_index, map_index, start_no FROM task"
                " WHERE run_no = (SELECT run_no FROM run WHERE run_id = ?)",
                (run_id,),
            ).fetchall()
        finally:
            connection.close()
        order = list(dict.fromkeys(task_id for task_id, _ in names))
        return {(order[task_index], index): start_no for task_index, index, start_no in rows}

    @staticmethod
    def judge_durations(tasks: Any) -> None:
        """Assert that no body ended before it started."""
        for task in tasks:
            if task["started_at"] and task["ended_at"]:
                assert _us(task["ended_at"]) >= _us(task["started_at"]), task

    def lines(self, run_id: str) -> list[Begin]:
        """Return the ledger's lines of a run. The last line may have been truncated by a kill."""
        if not self.ledger.exists():
            return []
        found = []
        for line in self.ledger.read_text().splitlines():
            words = line.split()
            if len(words) == 6 and words[1] == run_id:
                what, _, task_id, *numbers = words
                index, pid, nanoseconds = map(int, numbers)
                found.append(Begin(what, run_id, task_id, index, pid, nanoseconds // 1000))
        return found

    def begun(self, run_id: str) -> list[Begin]:
        """Return the starts of a run's bodies according to the ledger."""
        return [line for line in self.lines(run_id) if line.what == "begin"]

    def judge_database(self) -> None:
        """Assert that the database is intact, and that its rows match its journal."""
        connection = sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)
        try:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        finally:
            connection.close()
        assert asyncio.run(self._differences()) == []

    async def _differences(self) -> list[str]:
        vault = Vault.open(self.home / "key")
        async with open_store(f"sqlite:///{self.database}", vault, exclusive=False) as store:
            return await compare_with_replay(store)

    def judge_nobody_left(self, timeout: float = 60.0) -> None:
        """Assert that no process of the home is alive."""
        eventually(lambda: not self.processes(), timeout, lambda: f"left: {self.processes()}")

    def processes(self) -> list[int]:
        """Return every process that a daemon of this home has started."""
        if not self.home.exists():
            return []
        carries = carries_mark(f"{home_mark(self.home)}:")
        return [pid for pid in process_tree.process_ids() if carries(pid) and is_alive(pid)]


def wait_for_death(daemon: Victim, or_else: Callable[[], bool], timeout: float = 60.0) -> bool:
    """Wait until the daemon is dead or the condition holds. Return whether the daemon is dead."""
    eventually(lambda: not daemon.is_alive or or_else(), timeout, daemon.last_words)
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.process.wait(0.0 if daemon.is_alive else 5.0)
    return not daemon.is_alive


def has_ended(daemon: DaemonProcess, run_id: str | None) -> bool:
    """Return whether a run has ended. Return ``False`` if the daemon does not answer."""
    if run_id is None:
        return False
    try:
        status, run = daemon.get(f"/api/v1/runs/{run_id}?limit=1", status=None)
    except (OSError, http.client.HTTPException):
        return False
    return status == 200 and run["state"] not in {"queued", "running"}


def database_copy(ground: Ground, to: Path) -> Path:
    """Copy the current database, including the content of its log."""
    source = sqlite3.connect(f"file:{ground.database}?mode=ro", uri=True)
    target = sqlite3.connect(to)
    try:
        source.backup(target)
    finally:
        target.close()
        source.close()
    return to


def digest(path: Path) -> str:
    """Return a digest of the content of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _event(line: str) -> str:
    """Return a log line without its time."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return str(json.loads(line)["event"])
    return line


def _us(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1e6)
