"""Fails each sync of a run once, and checks what a power cut would leave at any later moment.

    LD_PRELOAD=disk.so python -m tests.store.failing_syncs FOLDER full [held] FILE:NTH ...

A run consists of two lives of a store: a sync fails in the first, and the second continues. Each
commit writes pages all over the file. The log is checkpointed continuously, and now and then a
reader prevents a checkpoint from completing. Before each sync, a power cut is simulated: what the
disk has at that moment must be a whole database with everything that was acknowledged, whether or
not the system has already written the pages of the database that wait for the sync.

``held``: another program has the database open all the time, so that the index of the log outlives
the first life.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

from msgspec.structs import replace

from aioflow.errors import StoreUnavailable, SyncFailed
from aioflow.model.batch import Batch
from aioflow.store import Durability, Store, open_store
from aioflow.store.sqlite import checkpointer, database_file
from tests.journal_replay import compare_with_replay
from tests.store.samples import DAG, NOON, RESULT, RUN, TASK, VAULT, VERSION, batch

FILES = ("aioflow.db", "aioflow.db-wal")
FIRST_COMMITS, SECOND_COMMITS = 16, 12
TASKS = 12
ATTEMPTS = 3
LOG_BYTES = 48 * 1024

disk = ctypes.CDLL(None)
disk.disk_syncs.restype = disk.disk_failures.restype = ctypes.c_long
_HOLDER = """
import sqlite3, sys
raw = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
raw.execute("SELECT count(*) FROM task").fetchone()
print("open", flush=True)
sys.stdin.read()
"""
_CALL = ctypes.CFUNCTYPE(None)


class Trial:
    """One run in a separate folder. One of its syncs fails."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        folder.mkdir()
        self._folder = folder.resolve()
        self._path = self._folder / FILES[0]
        self._durability = durability
        self._acknowledged = 0
        self._one_cut = Lock()
        self.cuts = 0
        self.errors: list[str] = []
        self.ended = False

    def begin(self, file: str, nth: int) -> None:
        """Follow the files from now on, and let the ``nth`` sync of this file fail."""
        for number, name in enumerate(FILES):
            disk.disk_follow(number, os.fsencode(self._folder / name))
        disk.disk_fail(FILES.index(file), ctypes.c_long(nth))
        self._call = _CALL(self.cut)
        disk.disk_before_sync(self._call)

    async def live(self, commits: int) -> None:
        """Open the store and commit. Simulate a power cut before each sync.

        If the store reports a failed sync, the life ends, as that of a daemon would.
        """
        try:
            async with open_store(
                f"sqlite:///{self._path}", VAULT, durability=self._durability
            ) as store:
                await self._commit_all(store, commits)
        except SyncFailed:
            self.ended = True
        self.cut()

    async def _commit_all(self, store: Store, commits: int) -> None:
        number = (await store.claim()).commit_no
        for last in range(number + 1, number + 1 + commits):
            with self._reading(often=last % 4):
                await self._commit(store, last)
            if self._durability == "normal" and last % 4 == 0:
                await store.checkpoint()  # else syncs are as rare as the machine is slow
            store.verify()

    async def _commit(self, store: Store, number: int) -> None:
        """Commit with retries, as the engine does."""
        numbers = [1000 * at + number * 919 % 1000 for at in range(TASKS)]
        tasks = [replace(TASK, task_no=task_no, map_index=task_no) for task_no in numbers]
        body = number.to_bytes(2, "big") * 2_000
        results = [replace(RESULT, task_no=task.task_no, body=body) for task in tasks]
        for attempt in range(ATTEMPTS):
            try:
                await store.commit(batch(number, new_tasks=tasks, results=results))
            except StoreUnavailable:
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                self._acknowledged = number
                return

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the database open in another process that does nothing with it."""
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        with subprocess.Popen(
            [sys.executable, "-c", _HOLDER, self._path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"open\n"
            yield
            holder.communicate()

    @contextmanager
    def _reading(self, *, often: int) -> Iterator[None]:
        """Usually hold a reader open, so that checkpoints cannot complete."""
        uri = f"{self._path.as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as raw:
            if often:
                raw.execute("BEGIN")
                raw.execute("SELECT count(*) FROM task").fetchone()
            yield

    def cut(self) -> None:
        """Check the current content of the disk. May run in any thread."""
        with self._one_cut:
            for is_written in (0, 1):
                self._cut(is_written)

    def _cut(self, is_written: int) -> None:
        self.cuts += 1
        left = self._folder / f"left-{self.cuts}"
        left.mkdir()
        disk.disk_left(0, os.fsencode(left / FILES[0]), is_written)
        disk.disk_left(1, os.fsencode(left / FILES[1]), 0)
        try:
            self._judge(left / FILES[0])
        except Exception as exc:  # noqa: BLE001 - reported at the end, from any thread
            self.errors.append(f"cut {self.cuts}: {type(exc).__name__}: {exc}")
        shutil.rmtree(left)

    def _judge(self, left: Path) -> None:
        acknowledged = self._acknowledged
        with closing(sqlite3.connect(left)) as raw:
            found = raw.execute("PRAGMA integrity_check").fetchall()
            assert found == [("ok",)], found[:3]
            assert raw.execute("PRAGMA foreign_key_check").fetchall() == []
            (count, last) = raw.execute("SELECT count(*), max(commit_no) FROM journal").fetchone()
            (stored,) = raw.execute("SELECT count(*) FROM result").fetchone()
        assert count == last, f"{count} batches of {last}"
        assert stored == TASKS * (last - 1), f"{stored} results of {last} batches"
        if self._durability == "full":
            assert last >= acknowledged, f"{acknowledged} acknowledged, {last} there"

    async def judge(self) -> None:
        """Assert that the tables match the journal."""
        disk.disk_before_sync(None)
        assert not self.errors, self.errors[:3]
        async with open_store(f"sqlite:///{self._path}", VAULT, exclusive=False) as store:
            assert await compare_with_replay(store) == []


async def made(folder: Path) -> Path:
    """Return a database with the first batch, with which all trials begin."""
    path = folder / FILES[0]
    async with open_store(f"sqlite:///{path}", VAULT) as store:
        await store.claim()
        await store.commit(
            Batch(number=1, at=NOON, new_versions=[VERSION], dags=[DAG], new_runs=[RUN])
        )
    return path


async def try_one(
    folder: Path, start: Path, durability: Durability, file: str, nth: int, *, held: bool
) -> dict[str, Any]:
    """Let one sync fail, and check the result."""
    trial = Trial(folder, durability)
    shutil.copy(start, folder)
    trial.begin(file, nth)
    with trial.holding() if held else nullcontext():
        await trial.live(FIRST_COMMITS)
        failures = disk.disk_failures(FILES.index(file))
        if failures:
            await trial.live(SECOND_COMMITS)
    await trial.judge()
    shutil.rmtree(folder)
    return {"cuts": trial.cuts, "failed": failures, "ended": trial.ended}


async def main(folder: Path, durability: Durability, wanted: list[str]) -> None:
    """Try the named syncs. If a file has no number, try every sync until none is left to fail.

    On a slow machine, the sync with the given number may happen at the end of a life or not at all.
    In that case, the previous ones are tried until one ends a life.
    """
    checkpointer.WAL_GOAL_BYTES = LOG_BYTES
    database_file._WAL_LIMIT_BYTES = LOG_BYTES
    start = await made(folder)
    held = "held" in wanted
    for name in [one for one in wanted if one != "held"]:
        file, _, only = name.partition(":")
        for nth in range(int(only), 0, -1) if only else range(1, 10_000):
            where = f"{file}:{nth}"
            try:
                found = await try_one(
                    folder / f"{file}-{nth}", start, durability, file, nth, held=held
                )
            except Exception as exc:  # noqa: BLE001 - the next one is tried, too
                found = {"error": f"{type(exc).__name__}: {exc}"}
            print(json.dumps({"where": where, **found}), flush=True)
            if found.get("ended") if only else found.get("failed") == 0:
                break


if __name__ == "__main__":
    _folder, _durability, *_wanted = sys.argv[1:]
    asyncio.run(main(Path(_folder), _durability, _wanted))  # type: ignore[arg-type]
