"""The disk fails or is full, or the database is locked, replaced or damaged."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Self

from benchmarks.daemon import eventually
from tests.faults import tools
from tests.faults.ground import Ground, Victim, database_copy, digest, has_ended, wait_for_death

__all__ = (
    "REFUSED",
    "STRANGERS",
    "another_writer",
    "calls_that_fail",
    "damaged_after_a_kill",
    "disk_full",
    "log_lost_while_stopped",
    "read_only_home",
    "refused_at_start",
    "strange_database",
    "stuck_reader",
    "sync_that_fails",
)

ANSWERS_AT_LEAST = 20
TOLD_SECONDS = 7.0
"""A request that has to wait for the database is refused within this time."""

FAILED_SECONDS = 60.0
"""Duration recorded for a request that is rejected or not answered."""


class _Reader:
    """Reads continuously, as an open page does, and records the slowest responses."""

    def __init__(self, daemon: Victim, run_id: str) -> None:
        self._daemon = daemon
        self._paths = ("/api/v1/runs", "/api/v1/dags", f"/api/v1/runs/{run_id}", "/metrics")
        self.answers = 0
        self.slowest: dict[str, float] = dict.fromkeys(self._paths, 0.0)
        self._enough = Event()
        self._threads = [Thread(target=self._read, args=(path,)) for path in self._paths]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(70.0)

    def _read(self, path: str) -> None:
        while not self._enough.is_set():
            began = time.monotonic()
            try:
                status = self._daemon.get(path, status=None)[0]
            except OSError:
                status = 0
            took = time.monotonic() - began if status == 200 else FAILED_SECONDS
            self.slowest[path] = max(self.slowest[path], took)
            self.answers += status == 200
            self._enough.wait(0.05)

    def judge(self) -> float:
        """Assert that each request was answered. Return the seconds of the slowest response."""
        assert self.answers >= ANSWERS_AT_LEAST, self.answers
        assert max(self.slowest.values()) < FAILED_SECONDS, f"not answered: {self.slowest}"
        return round(max(self.slowest.values()), 2)


@contextmanager
def _working(ground: Ground, count: int = 8, seconds: float = 0.0) -> Iterator[tuple[Victim, str]]:
    """Run a daemon that has completed one run and works on another, which is checked at the end."""
    with ground.daemon() as daemon:
        ground.ask_until_answered(daemon, count=count)
        ground.judge(daemon, count=count)
        run_id = ground.ask(daemon, count=count, seconds=seconds)
        assert run_id is not None
        yield daemon, run_id
        ground.ask_again(daemon, count=count)
        ground.judge(daemon, count=count)
    ground.judge_nobody_left()


# ── a disk that fails ───────────────────────────────────────────────────────────────────


def calls_that_fail(folder: Path, call: str, error: str, seconds: float) -> dict[str, float]:
    """Let a call fail once or for a while. The run still ends in the right state.

    Args:
        seconds: How long the call fails; 0 for a single failure.
    """
    tools.needs("strace")
    ground = Ground(folder)
    when = "when=2" if seconds == 0 else "when=1+"
    output = folder / "injected"
    with ground.daemon() as daemon:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
        lines = daemon.log_lines()
        inject = f"error={error}:{when}"
        with ExitStack() as asked, tools.injecting(daemon.process.pid, call, inject, output):
            began = time.monotonic()
            asked.enter_context(ground.asking(daemon))  # answered when the fault has ended
            eventually(lambda: "INJECTED" in output.read_text(), 60.0)
            _hold(seconds)
            if seconds:
                assert len(ground.acknowledged) == 1, "acknowledged, not stored"
            over = time.monotonic()
        lasted = time.monotonic() - began  # a single call fails again for each new thread
        eventually(lambda: "database unavailable" in daemon.log.read_text(), 60.0)
        injected = output.read_text().count("INJECTED")
        assert injected >= 1
        ground.ask_again(daemon)
        resumed = time.monotonic() - over
        said = sum(daemon.judge_log(lines, lasted).values())
        ground.judge(daemon)
    ground.judge_nobody_left()
    return {
        "injected": injected,
        "lines_said": said,
        "runs": len(ground.acknowledged),
        "resumed_seconds": round(resumed, 2),
    }


def sync_that_fails(folder: Path, error: str, *, starts_that_fail: int = 0) -> dict[str, float]:
    """Let a sync fail: the daemon exits with the reason, and a later start recovers all.

    Args:
        starts_that_fail: How many starts still find the disk failing before that.
    """
    tools.needs("strace")
    ground = Ground(folder)
    inject = f"error={error}:when=1+"
    daemon = ground.daemon().start()
    try:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
        with tools.injecting(daemon.process.pid, "fdatasync", inject):
            ground.ask(daemon)
            assert wait_for_death(daemon, lambda: len(ground.acknowledged) > 1), "it lives"
        _judge_sync_failure(daemon)
        for _ in range(starts_that_fail):
            again = ground.daemon().wrap(tools.traced("fdatasync,fsync", inject))
            assert not again.start_or_die(), "it came up"
            _judge_sync_failure(again)
        began = time.monotonic()
        with ground.daemon() as last:
            ground.ask_again(last)
            resumed = time.monotonic() - began
            ground.judge(last)
            eventually(lambda: "alert" in last.log.read_text() and '"sync"' in last.last_words())
    finally:
        if daemon.is_alive:
            daemon.kill(whole_tree=True)
    ground.judge_nobody_left()
    return {"runs": len(ground.acknowledged), "resumed_seconds": round(resumed, 2)}


def _judge_sync_failure(daemon: Victim) -> None:
    assert daemon.process.returncode == 1, daemon.process.returncode
    last = daemon.log.read_text().splitlines()[-1]
    assert last.startswith("aioflow: "), last
    assert last.endswith("[store.sync]"), last


def _hold(seconds: float) -> None:
    """Sleep for the duration of the fault."""
    time.sleep(seconds)


def disk_full(folder: Path, *, seconds: float = 3.0) -> dict[str, float]:
    """Fill the disk of the home for a while. Reads continue, and later so does the run."""
    with tools.memory_disk(folder / "disk", 48) as disk:
        ground = Ground(folder, home=disk / "home")
        with _working(ground, seconds=1.0) as (daemon, run_id):
            lines, full = daemon.log_lines(), time.monotonic()
            filler = tools.fill(disk)
            with ground.asking(daemon):
                eventually(lambda: "database unavailable" in daemon.last_words(), 60.0)
                before = len(ground.acknowledged)
                with _Reader(daemon, run_id) as reader:
                    _hold(seconds)
                    eventually(lambda: reader.answers >= ANSWERS_AT_LEAST, 60.0)
                    assert not has_ended(daemon, run_id)
                    assert len(ground.acknowledged) == before, "acknowledged, not stored"
                    filler.unlink()
                    freed = time.monotonic()
            ground.ask_until_answered(daemon)
            resumed = time.monotonic() - freed
            slowest = reader.judge()
            said = sum(daemon.judge_log(lines, time.monotonic() - full).values())
            eventually(lambda: has_ended(daemon, run_id), 60.0, daemon.last_words)
            ended = time.monotonic() - freed
        return {
            "resumed_seconds": round(resumed, 2),
            "ended_seconds": round(ended, 2),
            "slowest_read_seconds": slowest,
            "answers_read": reader.answers,
            "lines_said": said,
        }


def another_writer(folder: Path, seconds: float) -> dict[str, float]:
    """Lock the database in another program. Nothing fails, and long waits are reported."""
    ground = Ground(folder)
    with _working(ground, seconds=0.05) as (daemon, run_id):
        with _Reader(daemon, run_id) as reader:
            asked = time.monotonic()
            thread = Thread(target=lambda: ground.ask(daemon))
            with tools.write_locked(ground.database):
                thread.start()
                thread.join(seconds)
                was_told = not thread.is_alive()
                _hold(max(0.0, asked + seconds - time.monotonic()))
                eventually(lambda: reader.answers >= ANSWERS_AT_LEAST, 60.0)
                assert "ask-3" not in ground.acknowledged, "acknowledged, not stored"
            thread.join(30.0)
            waited = time.monotonic() - asked
        if seconds > TOLD_SECONDS:
            assert was_told, f"no 503 within {seconds} s; answered after {waited:.1f} s"
        slowest = reader.judge()
    return {
        "waited_seconds": round(waited, 2),
        "slowest_read_seconds": slowest,
        "answers_read": reader.answers,
    }


# ── another database than the one we knew ───────────────────────────────────────────────


def _deleted(ground: Ground, folder: Path) -> None:
    ground.database.unlink()


def _older_copy(ground: Ground, folder: Path) -> None:
    (folder / "older.db").replace(ground.database)


def _of_another(ground: Ground, folder: Path) -> None:
    other = Ground(folder / "other")
    other.folder.mkdir()
    with other.daemon() as daemon:
        other.ask_until_answered(daemon)
        other.judge(daemon)
    other.database.replace(ground.database)


def _truncated(ground: Ground, folder: Path) -> None:
    os.truncate(ground.database, 0)


def _foreign(ground: Ground, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "theirs.db")) as theirs:
        theirs.execute("CREATE TABLE task (theirs)")
    (folder / "theirs.db").replace(ground.database)


def _newer(ground: Ground, folder: Path) -> None:
    with closing(sqlite3.connect(database_copy(ground, folder / "newer.db"))) as newer, newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    (folder / "newer.db").replace(ground.database)


def _corrupt(ground: Ground, folder: Path) -> None:
    """Replace all pages but the first with noise."""
    copy = database_copy(ground, folder / "corrupt.db")
    size = copy.stat().st_size
    copy.write_bytes(copy.read_bytes()[:4096] + random.Random(1).randbytes(size - 4096))
    copy.replace(ground.database)


STRANGERS: dict[str, Callable[[Ground, Path], None]] = {
    "deleted": _deleted,
    "older_copy": _older_copy,
    "of_another": _of_another,
    "truncated": _truncated,
    "foreign": _foreign,
    "newer": _newer,
    "corrupt": _corrupt,
}
"""Files that may replace the database file while the daemon is running."""

REFUSED = {
    "foreign": "store.foreign",
    "newer": "store.schema",
    "corrupt": "store.foreign",
    "of_another": "store.strange",
}
"""Files that the daemon refuses at start, with the error code."""


def strange_database(folder: Path, stranger: str) -> dict[str, float]:
    """Replace the database of a running daemon: it exits, and leaves the new file as it is."""
    ground = Ground(folder)
    daemon = ground.daemon().start()
    try:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
        database_copy(ground, folder / "older.db")
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
        STRANGERS[stranger](ground, folder)
        before = digest(ground.database) if ground.database.exists() else None
        acknowledged = len(ground.acknowledged)
        began = time.monotonic()
        ground.ask(daemon)
        assert wait_for_death(daemon, lambda: len(ground.acknowledged) > acknowledged), "it lives"
        took = time.monotonic() - began
        after = digest(ground.database) if ground.database.exists() else None
        assert after == before, "it wrote into a file that it did not know"
        assert daemon.process.returncode == 1, daemon.process.returncode
        assert len(ground.acknowledged) == acknowledged, "acknowledged, not stored"
        last = daemon.log.read_text().splitlines()[-1]
        assert last.startswith("aioflow: "), last
        assert "[store." in last, last
    finally:
        if daemon.is_alive:
            daemon.kill(whole_tree=True)
    ground.judge_nobody_left()
    return {"noticed_seconds": round(took, 2)}


def refused_at_start(folder: Path, stranger: str) -> dict[str, float]:
    """Start on a file that is not this home's database: refused in one line, and left unchanged."""
    ground = Ground(folder)
    with ground.daemon() as daemon:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
    STRANGERS[stranger](ground, folder)
    before, lines = digest(ground.database), daemon.log_lines()
    again, began = ground.daemon(), time.monotonic()
    assert not again.start_or_die(), "it came up on it"
    took = time.monotonic() - began
    assert again.process.returncode == 1, again.process.returncode
    [said] = again.log.read_text().splitlines()[lines:]
    assert said.endswith(f"[{REFUSED[stranger]}]"), said
    assert digest(ground.database) == before, "it wrote into a file that it did not know"
    ground.judge_nobody_left()
    return {"refused_seconds": round(took, 2)}


def damaged_after_a_kill(folder: Path) -> dict[str, float]:
    """Damage a page after a kill. The start refuses the file, and states what to do."""
    ground = Ground(folder)
    daemon = ground.daemon().start()
    ground.ask_until_answered(daemon)
    ground.judge(daemon)
    daemon.kill(whole_tree=True)
    with closing(sqlite3.connect(ground.database)) as raw:  # copies the log back, and removes it
        wanted = "SELECT rootpage FROM sqlite_master WHERE name = 'run_live'"
        (page,) = raw.execute(wanted).fetchone()
    with ground.database.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(random.Random(1).randbytes(4096))
    before, lines = digest(ground.database), daemon.log_lines()
    again, began = ground.daemon(), time.monotonic()
    assert not again.start_or_die(), "it came up on it"
    took = time.monotonic() - began
    assert again.process.returncode == 1, again.process.returncode
    [said] = again.log.read_text().splitlines()[lines:]
    assert said.endswith("[store.foreign]"), said
    assert "aioflow db check" in said, said
    assert digest(ground.database) == before
    ground.judge_nobody_left()
    return {"refused_seconds": round(took, 2)}


def log_lost_while_stopped(folder: Path) -> dict[str, float]:
    """Delete the write-ahead log after a crash. The rest is consistent, or the file is refused."""
    ground = Ground(folder)
    daemon = ground.daemon().start()
    ground.ask_until_answered(daemon)
    ground.judge(daemon)
    log = Path(f"{ground.database}-wal")
    eventually(log.exists)
    daemon.kill(whole_tree=True)
    lost = log.stat().st_size
    log.unlink()
    ground.judge_nobody_left()
    again = ground.daemon()
    came_up = again.start_or_die()
    if came_up:
        ground.acknowledged.clear()  # changes that were only in the log are lost with it
        ground.asked.clear()
        ground.ask_until_answered(again)
        ground.judge(again)
        assert again.stop() == 0
    else:
        assert again.process.returncode == 1
        assert again.log.read_text().splitlines()[-1].startswith("aioflow: ")
    ground.judge_nobody_left()
    return {"bytes_lost": lost, "came_up": came_up}


def read_only_home(folder: Path) -> dict[str, float]:
    """Start on a home that is not writable: refused in one line, and left unchanged."""
    ground = Ground(folder)
    with ground.daemon() as daemon:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
    before = digest(ground.database)
    with tools.read_only(ground.home, folder / "shown") as shown:
        began = time.monotonic()
        refused = subprocess.run(
            [*Victim(shown, ground.folder)._command[:4], "--home", shown, "--port", "0"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
        took = time.monotonic() - began
    assert refused.returncode == 1, refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
    assert digest(ground.database) == before
    return {"refused_seconds": round(took, 2)}


def stuck_reader(folder: Path, *, mebibytes: int = 80) -> dict[str, float]:
    """Hold a reader open for a while. Work continues, and the log becomes short afterwards."""
    ground = Ground(folder)
    log = Path(f"{ground.database}-wal")
    padding = "x" * 900_000
    slowest = 0.0
    with ground.daemon() as daemon:
        ground.ask_until_answered(daemon)
        ground.judge(daemon)
        reader = sqlite3.connect(f"file:{ground.database}?mode=ro", uri=True, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM run").fetchone()
        while log.stat().st_size < mebibytes * 2**20:
            began = time.monotonic()
            assert ground.ask(daemon, count=1, padding=padding) is not None
            slowest = max(slowest, time.monotonic() - began)
        largest = log.stat().st_size
        for run_id in ground.acknowledged.values():
            assert daemon.wait(run_id)["state"] == "success"
        reader.execute("ROLLBACK")
        reader.close()

        def is_short() -> bool:
            assert ground.ask(daemon) is not None
            return log.stat().st_size <= 64 * 2**20

        eventually(is_short, 30.0, lambda: str(log.stat().st_size), look_seconds=0.2)
        warned = '"level": "warning"' in daemon.log.read_text()
        after = log.stat().st_size
    ground.judge_nobody_left()
    ground.judge_database()
    assert warned, f"a log of {largest >> 20} MiB that cannot be cut is not worth a line"
    return {
        "largest_mib": largest >> 20,
        "after_mib": after >> 20,
        "runs": len(ground.acknowledged),
        "slowest_seconds": round(slowest, 3),
    }
